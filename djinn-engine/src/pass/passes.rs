//! The state of a model's passes. One is under way, or two if the second takes its tokens from the first.

use super::batch::{BatchEntry, Outputs, Wanted};
use super::replay::Replays;
use crate::hooks::Bound;
use djinn_device::Ops;
use djinn_srg::Rows;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

/// A pass between its begin and its end.
#[derive(Debug)]
pub(super) struct UnderWay {
    /// Which of the two exchanges it uses.
    pub(super) exchange: usize,
    pub(super) rows: Rows,
    /// If it chooses tokens: by entry, the row of logits.
    pub(super) chooses: bool,
    /// Whether its sampling settings are still to come.
    pub(super) waits: bool,
    pub(super) chosen: Vec<Option<u32>>,
    pub(super) outputs: Outputs,
    /// When the host had enqueued it.
    pub(super) enqueued: Instant,
    /// Its work at hooks.
    pub(super) hooks: Bound,
}

/// The passes of a model.
#[derive(Debug)]
pub(crate) struct Passes {
    /// `None` if passes are not replayed.
    pub(super) replays: Option<Replays>,
    pub(crate) replayed: u64,
    /// In order.
    pub(super) under_way: VecDeque<UnderWay>,
    /// When the latest finished pass ran, by the device's clock.
    pub(super) latest: Option<Range<Duration>>,
}

impl Passes {
    pub(crate) fn new(replay: bool) -> Self {
        let replays = replay.then(Replays::default);
        Passes { replays, replayed: 0, under_way: VecDeque::new(), latest: None }
    }

    /// # Panics
    /// If a pass is under way.
    pub(crate) fn expect_idle(&self) {
        assert!(self.under_way.is_empty(), "a pass is under way");
    }

    /// # Panics
    /// If a pass over `batch` cannot begin: two are under way, or one is and the batch does not take all its tokens
    /// from it, or wants more than tokens.
    pub(crate) fn expect_room(&self, batch: &[BatchEntry<'_>]) {
        let follows = |entry: &BatchEntry<'_>| {
            entry.after.is_some() && entry.wanted == Wanted::Nothing && entry.interventions.is_empty()
        };
        match self.under_way.len() {
            0 => assert!(batch.iter().all(|entry| entry.after.is_none()), "no pass is under way"),
            1 => assert!(batch.iter().all(follows), "a pass is under way"),
            _ => panic!("two passes are under way"),
        }
    }

    /// The exchange of the next pass.
    pub(super) fn free_exchange(&self) -> usize {
        self.under_way.front().map_or(0, |pass| 1 - pass.exchange)
    }

    /// Frees all captures. Their replays are done.
    pub(crate) fn forget<D: Ops>(&mut self, device: &D) {
        if let Some(replays) = &mut self.replays {
            replays.free(device);
        }
    }
}
