//! Decode passes that were captured once and are replayed.
//!
//! What a pass enqueues depends on its numbers of rows, on where streaming stands when it begins, on what it does at
//! hooks, and on which logits the host gets; tokens, positions, page tables and vectors lie in memory that it reads. So a pass that begins like an earlier one
//! is replayed:
//! the host makes one call for the whole model. Inputs and the choice of tokens are enqueued before and after it, since
//! two passes may be under way, each with its own.

use super::batch::Outputs;
use crate::hooks::AtLaunch;
use djinn_device::{Capture, Device};
use djinn_srg::Rows;
use djinn_vmu::StreamPosition;

/// The most captures kept; each takes some device memory beside the plan, which the device reserves.
const MOST: usize = 8;

/// A capture that was not replayed for this many passes may make room for another. Making one takes as long as several
/// passes: a batch whose size changes all the time must not make one after the other.
const IDLE_PASSES: u64 = 64;

/// What a pass enqueues follows from this.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Key {
    pub(crate) rows: Rows,
    pub(crate) position: StreamPosition,
    /// What it reads and changes at hooks: from where to where, and by which numbers.
    pub(crate) hooks: Vec<AtLaunch>,
    pub(crate) outputs: Outputs,
}

/// What to do with a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Enqueue it: it may never come again, and its kernels may not be loaded yet.
    Enqueue,
    /// It came before: capture it, then replay it.
    Capture,
    /// Replay it; streaming then stands at the position.
    Replay(Capture, StreamPosition),
}

/// The captures of an engine.
#[derive(Debug, Default)]
pub(crate) struct Replays {
    /// Passes that were enqueued once, the latest last.
    seen: Vec<Key>,
    /// The latest used last, each with the pass that used it.
    kept: Vec<Kept>,
    passes: u64,
}

#[derive(Debug)]
struct Kept {
    key: Key,
    capture: Capture,
    /// Where streaming stands after it.
    end: StreamPosition,
    used: u64,
}

impl Replays {
    pub(crate) fn choose(&mut self, key: &Key) -> Choice {
        self.passes += 1;
        if let Some(at) = self.kept.iter().position(|kept| kept.key == *key) {
            let found = Kept { used: self.passes, ..self.kept.remove(at) };
            let choice = Choice::Replay(found.capture, found.end);
            self.kept.push(found);
            return choice;
        }
        if let Some(at) = self.seen.iter().position(|seen| seen == key) {
            let oldest = self.kept.first().filter(|_| self.kept.len() == MOST);
            if oldest.is_some_and(|kept| self.passes - kept.used <= IDLE_PASSES) {
                return Choice::Enqueue;
            }
            self.seen.remove(at);
            return Choice::Capture;
        }
        if self.seen.len() == MOST {
            self.seen.remove(0);
        }
        self.seen.push(key.clone());
        Choice::Enqueue
    }

    /// Keeps a capture, after which streaming stands at `end`. Gives the one that it takes the place of, to be
    /// freed once its replays are done.
    #[must_use]
    pub(crate) fn keep(&mut self, key: Key, capture: Capture, end: StreamPosition) -> Option<Capture> {
        let evicted = (self.kept.len() == MOST).then(|| self.kept.remove(0).capture);
        self.kept.push(Kept { key, capture, end, used: self.passes });
        evicted
    }

    /// Frees all captures, whose replays are done.
    pub(crate) fn free<D: Device>(&mut self, device: &D) {
        for kept in self.kept.drain(..) {
            device.free_capture(kept.capture);
        }
    }
}
