//! The most hook memory that a step may need. It is checked before anything is armed, so that no session fails in a step for
//! want of it.

use super::{KvRange, Look};
use crate::Edit;
use djinn_srg::Hook;
use std::ops::Add;

/// The most bytes that alignment may cost one piece of hook memory.
const PIECE: u64 = 16;

/// Bytes that a session's interventions may take in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Bytes for each row.
    pub(crate) row: u64,
    /// Bytes independent of the rows.
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

    /// New contents of this many bytes for keys or values.
    pub(crate) fn of_written(bytes: u64) -> Self {
        Demand { row: 0, fixed: bytes + PIECE }
    }

    /// A change: its row numbers, direction and addends.
    pub(crate) fn of_edit(hook: &Hook, edit: &Edit) -> Self {
        let width = hook.columns.1;
        Demand { row: 4, fixed: 4 * width * (1 + edit.addends(width)) + 3 * PIECE }
    }

    /// The most that a step of up to `rows` rows needs, whatever the scheduler plans.
    pub(crate) fn of_step(sessions: impl Iterator<Item = Demand>, rows: u64) -> u64 {
        let (most, fixed) =
            sessions.fold((0, 0), |(most, fixed): (u64, u64), of| (most.max(of.row), fixed + of.fixed));
        rows.saturating_mul(most).saturating_add(fixed)
    }
}

/// Sizes of what can be read from a model, in bytes.
pub(crate) struct Sizes<'a> {
    /// One row of a hook's value.
    pub(crate) row: &'a dyn Fn(&Hook) -> u64,
    /// The parts of pages that hold some keys and values.
    pub(crate) cache: &'a dyn Fn(&KvRange) -> u64,
    /// New contents for some keys, or for as many values.
    pub(crate) written: &'a dyn Fn(&KvRange) -> u64,
}

impl Look {
    /// The most that it takes in a step, for a session that is stopped at `rows` tokens.
    pub(crate) fn demand(&self, rows: u64, sizes: &Sizes<'_>) -> Demand {
        let edits = self.edits.iter().map(|(hook, _, edit)| Demand::of_edit(hook, edit));
        let reads = self.hooks.iter().map(|hook| Demand::capture_rows(rows, (sizes.row)(hook)));
        let caches = self.caches.iter().map(|range| Demand::capture_rows(1, (sizes.cache)(range)));
        edits.chain(reads).chain(caches).fold(Demand::default(), |sum, more| sum + more)
    }
}
