//! Peers that send or read too slowly: each wait is within its limit, and yet they never come to an end.

use std::time::Duration;

/// How long a peer has kept the server waiting, less the time that its bytes may take. Time that the server takes does
/// not count.
#[derive(Debug)]
pub(crate) struct Pace {
    /// The most time that it may be behind.
    limit: Duration,
    /// The least average rate.
    bytes_per_s: u64,
    behind: Duration,
}

impl Pace {
    pub(crate) fn new(limit: Duration, bytes_per_s: u64) -> Self {
        Pace { limit, bytes_per_s, behind: Duration::ZERO }
    }

    /// How long the peer may keep the server waiting now. Zero: it is too slow.
    pub(crate) fn left(&self) -> Duration {
        self.limit.saturating_sub(self.behind)
    }

    /// Counts the time that the peer took for these bytes. Being fast earns no time for later.
    pub(crate) fn took(&mut self, time: Duration, bytes: usize) {
        let may_take = Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64);
        self.behind = self.behind.saturating_add(time).saturating_sub(may_take);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trickle_comes_to_an_end_and_a_steady_rate_does_not() {
        let second = Duration::from_secs(1);
        let pace = || Pace::new(30 * second, 1000);
        let mut trickle = pace();
        trickle.took(29 * second, 1);
        assert!(trickle.left() > Duration::ZERO && trickle.left() < 2 * second);
        trickle.took(29 * second, 1);
        assert_eq!(trickle.left(), Duration::ZERO);
        let mut steady = pace();
        (0..10_000).for_each(|_| steady.took(second, 1000));
        assert_eq!(steady.left(), 30 * second);
        // It may stop for a while, whatever it did before, and catch up.
        steady.took(Duration::ZERO, 1 << 30);
        steady.took(20 * second, 0);
        assert_eq!(steady.left(), 10 * second);
        steady.took(second, 21_000);
        assert_eq!(steady.left(), 30 * second);
    }
}
