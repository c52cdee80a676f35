//! Copy against compute over the latest looks, from counters that grow.

use super::view::Counters;
use std::collections::VecDeque;
use std::time::Instant;

/// Looks that are kept.
const MOST: usize = 240;

/// Shares of the time between two looks, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Shares {
    /// Weights crossed the link.
    pub(super) copy: f64,
    /// KV pages did.
    pub(super) swap: f64,
    /// A step ran and did not wait.
    pub(super) compute: f64,
    /// A step waited for a copy.
    pub(super) stall: f64,
}

/// What counters grew by in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) generated: f64,
    pub(super) computed: f64,
    pub(super) steps: f64,
    pub(super) link_bytes: f64,
}

#[derive(Debug, Default)]
pub(super) struct History {
    /// Latest last.
    pub(super) columns: VecDeque<Shares>,
    pub(super) rates: Rates,
    latest: Option<(Instant, Counters)>,
    /// When the looks began that still wait, and how many they are: what a step did is told when it ends.
    pending: Option<(Instant, Counters, usize)>,
}

impl History {
    pub(super) fn add(&mut self, now: Counters) {
        self.add_at(Instant::now(), now);
    }

    /// The latest looks during which one step was under way, whose work is not told yet.
    pub(super) fn pending_looks(&self) -> usize {
        self.pending.map_or(0, |(_, _, looks)| looks)
    }

    fn add_at(&mut self, at: Instant, now: Counters) {
        let Some((before_at, before)) = self.latest.replace((at, now)) else { return };
        if now.steps.count < before.steps.count {
            // The engine was started again.
            *self = History { latest: self.latest, ..History::default() };
            return;
        }
        let (from, first, looks) = self.pending.take().unwrap_or((before_at, before, 0));
        self.columns.push_back(Shares::default());
        while self.columns.len() > MOST {
            self.columns.pop_front();
        }
        let looks = looks + 1;
        if now.steps.count == first.steps.count && now.steps.under_way_ms.is_some() {
            self.pending = Some((from, first, looks));
            return;
        }
        let seconds = (at - from).as_secs_f64().max(1e-6);
        let grown = |of: fn(&Counters) -> f64| (of(&now) - of(&first)).max(0.0) / seconds;
        let share = |of: fn(&Counters) -> f64| (grown(of) / 1e3).min(1.0);
        let stall = share(|c| c.steps.stall_ms);
        let shares = Shares {
            copy: share(|c| c.steps.copy_ms),
            swap: share(|c| c.swaps.out.busy_ms + c.swaps.back.busy_ms),
            compute: (share(|c| c.steps.busy_ms) - stall).max(0.0),
            stall,
        };
        self.columns.iter_mut().rev().take(looks).for_each(|column| *column = shares);
        self.rates = Rates {
            generated: grown(|c| c.generated as f64),
            computed: grown(|c| c.steps.tokens as f64),
            steps: grown(|c| c.steps.count as f64),
            link_bytes: grown(|c| (c.steps.streamed_bytes + c.swaps.out.bytes + c.swaps.back.bytes) as f64),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::view::{MovedPages, Steps, Swaps};
    use super::*;
    use std::time::Duration;

    fn told(count: u64, busy_ms: f64, stall_ms: f64, under_way: bool) -> Counters {
        let none = MovedPages { bytes: 0, busy_ms: 0.0 };
        let under_way_ms = under_way.then_some(1.0);
        let (tokens, streamed_bytes) = (count * 10, count * 1000);
        let steps =
            Steps { count, tokens, busy_ms, copy_ms: busy_ms, stall_ms, streamed_bytes, under_way_ms };
        Counters { steps, swaps: Swaps { out: none, back: none }, generated: count }
    }

    #[test]
    fn a_long_step_counts_for_all_looks_that_it_took() {
        let (mut history, began) = (History::default(), Instant::now());
        let mut look = |second: u64, counters| {
            history.add_at(began + Duration::from_secs(second), counters);
            (history.columns.clone(), history.rates)
        };
        look(0, told(0, 0.0, 0.0, false));
        let (columns, _) = look(1, told(0, 0.0, 0.0, true));
        assert_eq!(columns, [Shares::default()]);
        look(2, told(0, 0.0, 0.0, true));
        let (columns, rates) = look(4, told(2, 2000.0, 1000.0, false));
        let half = Shares { copy: 0.5, swap: 0.0, compute: 0.25, stall: 0.25 };
        assert_eq!(columns, [half; 3]);
        assert_eq!(rates, Rates { generated: 0.5, computed: 5.0, steps: 0.5, link_bytes: 500.0 });
        let (columns, _) = look(5, told(2, 2000.0, 1000.0, false));
        assert_eq!(columns.back(), Some(&Shares::default()));
        // The counters of an engine that was started again begin at 0.
        assert!(look(6, told(0, 0.0, 0.0, false)).0.is_empty());
        assert_eq!(look(7, told(1, 500.0, 0.0, false)).0.len(), 1);
    }
}
