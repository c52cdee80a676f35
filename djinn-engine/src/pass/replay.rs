//! Decode passes that are captured once and replayed.
//!
//! The calls of a pass depend on its numbers of rows, the position of the weight stream, its work at hooks, and the
//! logits for the host. Tokens, positions, page tables and vectors lie in memory that the pass reads. So a pass with
//! the same key as an earlier one is replayed: the host makes one call for the whole model. Inputs and the choice of
//! tokens are enqueued before and after it, since two passes may be under way, each with its own.

use super::batch::Outputs;
use crate::hooks::AtLaunch;
use djinn_device::{Capture, Device};
use djinn_srg::Rows;
use djinn_vmu::StreamPosition;

/// The most captures kept. Each takes some device memory; a device may have room for fewer.
const MOST: usize = 8;

/// A capture that was not replayed for this many passes may be replaced. A capture costs as much as several passes, so
/// a batch whose size changes all the time must not cause one after another.
const IDLE_PASSES: u64 = 64;

/// Determines the calls of a pass.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Key {
    pub(crate) rows: Rows,
    pub(crate) position: StreamPosition,
    /// Work at hooks, with its addresses and numbers.
    pub(crate) hooks: Vec<AtLaunch>,
    pub(crate) outputs: Outputs,
}

/// What to do with a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HowToRun {
    /// Enqueue it: its shape is new, and its kernels may not be loaded yet.
    Enqueue,
    /// Capture it, then replay it.
    Capture,
    /// Replay it. The weight stream is then at this position.
    Replay(Capture, StreamPosition),
}

/// The captures of an engine.
#[derive(Debug)]
pub(crate) struct Replays {
    /// The most captures that are kept.
    most: usize,
    /// Keys of passes that were enqueued once, the latest last.
    seen: Vec<Key>,
    /// Captures, the latest used last.
    kept: Vec<Kept>,
    passes: u64,
}

#[derive(Debug)]
struct Kept {
    key: Key,
    capture: Capture,
    /// The position of the weight stream after it.
    end: StreamPosition,
    used: u64,
}

impl Default for Replays {
    fn default() -> Self {
        Replays { most: MOST, seen: Vec::new(), kept: Vec::new(), passes: 0 }
    }
}

impl Replays {
    pub(crate) fn choose(&mut self, key: &Key) -> HowToRun {
        self.passes += 1;
        if let Some(at) = self.kept.iter().position(|kept| kept.key == *key) {
            let found = Kept { used: self.passes, ..self.kept.remove(at) };
            let how = HowToRun::Replay(found.capture, found.end);
            self.kept.push(found);
            return how;
        }
        if let Some(at) = self.seen.iter().position(|seen| seen == key) {
            let oldest = self.kept.first().filter(|_| self.kept.len() == self.most);
            if oldest.is_some_and(|kept| self.passes - kept.used <= IDLE_PASSES) {
                return HowToRun::Enqueue;
            }
            self.seen.remove(at);
            return HowToRun::Capture;
        }
        if self.seen.len() == MOST {
            self.seen.remove(0);
        }
        self.seen.push(key.clone());
        HowToRun::Enqueue
    }

    /// Makes room for another capture. Returns the one that it replaces, to be freed once its replays are done.
    #[must_use]
    pub(crate) fn make_room(&mut self) -> Option<Capture> {
        (self.kept.len() == self.most).then(|| self.kept.remove(0).capture)
    }

    /// Keeps a capture after which the weight stream is at `end`.
    pub(crate) fn keep(&mut self, key: Key, capture: Capture, end: StreamPosition) {
        self.kept.push(Kept { key, capture, end, used: self.passes });
    }

    /// Notes that the device has no room for another capture. Returns whether it has room for any.
    pub(crate) fn refused(&mut self) -> bool {
        self.most = self.kept.len();
        self.most > 0
    }

    /// Frees all captures. Their replays are done.
    pub(crate) fn free<D: Device>(&mut self, device: &D) {
        for kept in self.kept.drain(..) {
            device.free_capture(kept.capture);
        }
    }
}
