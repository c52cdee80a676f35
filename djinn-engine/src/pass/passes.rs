//! What a model keeps of its passes. One at a time is under way.

use super::batch::Outputs;
use super::replay::Replays;
use crate::hooks::Bound;
use djinn_device::{Event, Ops};
use djinn_srg::Rows;
use std::time::Instant;

/// A pass between its beginning and its end.
#[derive(Debug)]
pub(super) struct UnderWay {
    pub(super) rows: Rows,
    pub(super) outputs: Outputs,
    /// When the host was done with enqueueing it.
    pub(super) enqueued: Instant,
    /// What it does at hooks.
    pub(super) hooks: Bound,
}

/// The passes of a model, one at a time.
#[derive(Debug)]
pub(crate) struct Passes {
    /// A pass's results are on the host.
    pub(super) done: Event,
    /// None where passes are not to be replayed.
    pub(super) replays: Option<Replays>,
    pub(crate) replayed: u64,
    pub(super) under_way: Option<UnderWay>,
}

impl Passes {
    pub(crate) fn new(done: Event, replay: bool) -> Self {
        Passes { done, replays: replay.then(Replays::default), replayed: 0, under_way: None }
    }

    /// # Panics
    /// If a pass is under way.
    pub(crate) fn expect_idle(&self) {
        assert!(self.under_way.is_none(), "a pass is under way");
    }

    /// Frees all captures, whose replays are done.
    pub(crate) fn free<D: Ops>(mut self, device: &D) {
        if let Some(replays) = &mut self.replays {
            replays.free(device);
        }
    }
}
