//! The adversary: which stream goes next, and when the device runs at all.

use super::rng::Rng;

/// The most steps that one mood lasts.
const LONGEST_MOOD: u64 = 64;

/// The most steps that run at one call that does not sync.
const LONGEST_BURST: u64 = 8;

/// Seeded choices.
pub(super) struct Order {
    rng: Rng,
    /// A call that only enqueues runs some steps once in this many calls; never if 0.
    eagerness: u64,
    mood: Mood,
    left: u64,
}

/// How streams are chosen for a while.
#[derive(Clone, Copy)]
enum Mood {
    /// All alike: streams alternate at random.
    Fair,
    /// This one as long as it can go on: it runs far ahead.
    Favour(usize),
    /// Any other as long as one can go on: this one falls far behind.
    Starve(usize),
}

impl Order {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let eagerness = [0, 1, 4, 32][rng.below(4) as usize];
        Order { rng, eagerness, mood: Mood::Fair, left: 0 }
    }

    /// Steps to run at a call that only enqueues: mostly none, so that the host is far ahead.
    pub(super) fn steps_at_enqueue(&mut self) -> u64 {
        if self.eagerness == 0 || self.rng.below(self.eagerness) > 0 {
            return 0;
        }
        1 + self.rng.below(LONGEST_BURST)
    }

    /// Steps to run when the host asks whether an event is done: often some, so that polling ends.
    pub(super) fn steps_at_poll(&mut self) -> u64 {
        self.rng.below(2) * (1 + self.rng.below(LONGEST_BURST))
    }

    /// The numbers below `count`, in any order.
    pub(super) fn any_of(&mut self, count: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            all.swap(last, self.rng.below(last as u64 + 1) as usize);
        }
        all
    }

    /// One of `ready`, which is not empty and ascending.
    pub(super) fn pick(&mut self, ready: &[usize]) -> usize {
        if self.left == 0 {
            let stream = ready[self.rng.below(ready.len() as u64) as usize];
            self.left = 1 + self.rng.below(LONGEST_MOOD);
            self.mood = match self.rng.below(3) {
                0 => Mood::Fair,
                1 => Mood::Favour(stream),
                _ => Mood::Starve(stream),
            };
        }
        self.left -= 1;
        let any = ready[self.rng.below(ready.len() as u64) as usize];
        match self.mood {
            Mood::Favour(stream) if ready.contains(&stream) => stream,
            Mood::Starve(stream) if any == stream => {
                ready.iter().copied().find(|&other| other != stream).unwrap_or(any)
            }
            _ => any,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_ahead_falls_behind_and_alternates() {
        let mut order = Order::new(3);
        let picks: Vec<usize> = (0..10_000).map(|_| order.pick(&[0, 1, 2])).collect();
        let alone = picks.windows(20).any(|w| w.iter().all(|&s| s == w[0]));
        let starved = picks.windows(30).any(|w| !w.contains(&1) && w.contains(&0) && w.contains(&2));
        let alternating = picks.windows(4).any(|w| w[0] == w[2] && w[1] == w[3] && w[0] != w[1]);
        assert!(alone && starved && alternating);
    }

    #[test]
    fn numbers_come_in_every_order() {
        let mut order = Order::new(4);
        let seen: std::collections::BTreeSet<_> = (0..500).map(|_| order.any_of(4)).collect();
        assert_eq!(seen.len(), 24);
        assert!(order.any_of(0).is_empty());
    }

    #[test]
    fn some_seeds_run_nothing_before_a_sync_and_some_at_once() {
        let steps = |seed| {
            let mut order = Order::new(seed);
            (0..64).map(|_| order.steps_at_enqueue()).sum::<u64>()
        };
        assert!((0..20).any(|seed| steps(seed) == 0));
        assert!((0..20).any(|seed| steps(seed) > 64));
    }
}
