//! Decode passes that were captured once and are replayed.
//!
//! What a pass enqueues depends on its numbers of rows and on where streaming stands when it begins; tokens,
//! positions and page tables lie in memory that it reads. So a pass that begins like an earlier one is replayed:
//! the host makes one call, and does nothing between the pass's first operation and its last.

use djinn_device::{Capture, Device};
use djinn_srg::Rows;
use djinn_vmu::Phase;

/// The most captures kept; each takes some device memory beside the plan, which the device reserves.
const MOST: usize = 8;

/// What a pass enqueues follows from this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) rows: Rows,
    pub(crate) phase: Phase,
}

/// What to do with a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Enqueue it: it may never come again, and its kernels may not be loaded yet.
    Enqueue,
    /// It came before: capture it, then replay it.
    Capture,
    /// Replay it; streaming then stands at the phase.
    Replay(Capture, Phase),
}

/// The captures of an engine.
#[derive(Debug, Default)]
pub(crate) struct Replays {
    /// Passes that were enqueued once, the latest last.
    seen: Vec<Key>,
    /// The latest used last.
    kept: Vec<(Key, Capture, Phase)>,
}

impl Replays {
    pub(crate) fn choose(&mut self, key: Key) -> Choice {
        if let Some(at) = self.kept.iter().position(|(k, ..)| *k == key) {
            let found = self.kept.remove(at);
            self.kept.push(found);
            return Choice::Replay(found.1, found.2);
        }
        if let Some(at) = self.seen.iter().position(|k| *k == key) {
            self.seen.remove(at);
            return Choice::Capture;
        }
        if self.seen.len() == MOST {
            self.seen.remove(0);
        }
        self.seen.push(key);
        Choice::Enqueue
    }

    /// Keeps a capture, after which streaming stands at `end`. Gives the one that it takes the place of, to be
    /// freed once its replays are done.
    #[must_use]
    pub(crate) fn keep(&mut self, key: Key, capture: Capture, end: Phase) -> Option<Capture> {
        let evicted = (self.kept.len() == MOST).then(|| self.kept.remove(0).1);
        self.kept.push((key, capture, end));
        evicted
    }

    /// Frees all captures, whose replays are done.
    pub(crate) fn free<D: Device>(&mut self, device: &D) {
        for (_, capture, _) in self.kept.drain(..) {
            device.free_capture(capture);
        }
    }
}
