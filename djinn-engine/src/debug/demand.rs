//! How much of the memory for hooks a step may need: known before anything is armed, so that no step fails for it.

use super::{KvRange, Look};
use crate::Edit;
use djinn_srg::Hook;
use std::ops::Add;

/// What one piece of hook memory may lose to alignment.
const PIECE: u64 = 16;

/// Bytes that a session's interventions may take in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    /// For each of its rows.
    pub(crate) row: u64,
    /// Once.
    pub(crate) fixed: u64,
}

impl Add for Demand {
    type Output = Demand;

    fn add(self, other: Demand) -> Demand {
        Demand { row: self.row + other.row, fixed: self.fixed + other.fixed }
    }
}

impl Demand {
    /// Reading whole rows of this many bytes.
    pub(crate) fn capture(row_bytes: u64) -> Self {
        Demand { row: row_bytes, fixed: PIECE }
    }

    /// Reading this many rows of `row_bytes` bytes.
    pub(crate) fn capture_rows(rows: u64, row_bytes: u64) -> Self {
        Demand { row: 0, fixed: rows * row_bytes + PIECE }
    }

    /// A change: which rows, its direction and its addends.
    pub(crate) fn of_edit(hook: &Hook, edit: &Edit) -> Self {
        let width = hook.columns.1;
        Demand { row: 4, fixed: 4 * width * (1 + edit.addends(width)) + 3 * PIECE }
    }

    /// What a step of up to `rows` rows needs at most, whatever the scheduler makes of it.
    pub(crate) fn of_step(sessions: impl Iterator<Item = Demand>, rows: u64) -> u64 {
        let (most, fixed) =
            sessions.fold((0, 0), |(most, fixed): (u64, u64), of| (most.max(of.row), fixed + of.fixed));
        rows.saturating_mul(most).saturating_add(fixed)
    }
}

/// Bytes of what is read of a model.
pub(crate) struct Sizes<'a> {
    /// Of a row of a hook's value.
    pub(crate) row: &'a dyn Fn(&Hook) -> u64,
    /// Of the pages' parts with some keys and values.
    pub(crate) cache: &'a dyn Fn(&KvRange) -> u64,
}

impl Look {
    /// What it may take in a step, for a session that is stopped at `rows` tokens.
    pub(crate) fn demand(&self, rows: u64, sizes: &Sizes<'_>) -> Demand {
        let edits = self.edits.iter().map(|(hook, _, edit)| Demand::of_edit(hook, edit));
        let reads = self.hooks.iter().map(|hook| Demand::capture_rows(rows, (sizes.row)(hook)));
        let caches = self.caches.iter().map(|range| Demand::capture_rows(1, (sizes.cache)(range)));
        edits.chain(reads).chain(caches).fold(Demand::default(), |sum, more| sum + more)
    }
}
