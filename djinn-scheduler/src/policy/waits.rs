//! The length of waits: a histogram over log-spaced buckets, and its forecast for a wait under way.

use std::sync::LazyLock;
use std::time::Duration;

const BUCKETS: usize = 96;
/// Buckets per factor of 10.
const PER_DECADE: f64 = 12.0;
/// Lower end of the first bucket, seconds; the last one ends at 10^(96/12) times this: 28 hours.
const FIRST_S: f64 = 0.001;

/// A histogram of waits from 1 ms to 28 hours in steps of 21 %. Older observations count less.
#[derive(Clone, Debug, PartialEq)]
pub struct Waits {
    weights: [f64; BUCKETS],
    seen: u64,
}

impl Waits {
    /// A prior worth `weight` observations, spread around `median` by a factor of `spread` either way (a log-normal
    /// distribution with the standard deviation ln `spread`).
    pub fn prior(median: Duration, spread: f64, weight: f64) -> Self {
        let (centre, sigma) = (median.as_secs_f64().max(FIRST_S).ln(), spread.max(1.01).ln());
        let mut weights = [0.0; BUCKETS];
        for (at, bucket) in weights.iter_mut().enumerate() {
            let off = (lower(at + 1).ln() - centre - 0.5 * 10f64.ln() / PER_DECADE) / sigma;
            *bucket = (-0.5 * off * off).exp();
        }
        let sum: f64 = weights.iter().sum();
        weights.iter_mut().for_each(|bucket| *bucket *= weight / sum);
        Waits { weights, seen: 0 }
    }

    /// Waits that were seen.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Learns one wait. Earlier ones then count 0.5 % less, so that a changed tool is learned again.
    pub fn observe(&mut self, lasted: Duration) {
        const MEMORY: f64 = 0.995;
        self.weights.iter_mut().for_each(|bucket| *bucket *= MEMORY);
        self.weights[bucket(lasted.as_secs_f64())] += 1.0;
        self.seen += 1;
    }

    /// The total length that a wait of `elapsed` so far reaches with probability `1 - share`. Beyond all observations:
    /// twice its present length.
    pub fn quantile(&self, share: f64, elapsed: Duration) -> Duration {
        let from = elapsed.as_secs_f64();
        let first = bucket(from);
        let left = |at: usize| -> f64 {
            let whole = self.weights[at];
            if at > first {
                return whole;
            }
            let (low, high) = (lower(at), lower(at + 1));
            whole * ((high - from.max(low)) / (high - low)).clamp(0.0, 1.0)
        };
        let total: f64 = (first..BUCKETS).map(left).sum();
        if total < 0.02 {
            return elapsed * 2;
        }
        let mut target = share.clamp(0.0, 1.0) * total;
        for at in first..BUCKETS {
            let weight = left(at);
            if target <= weight && weight > 0.0 {
                let low = lower(at).max(from);
                return crate::cost::seconds(low + (lower(at + 1) - low) * (target / weight));
            }
            target -= weight;
        }
        crate::cost::seconds(lower(BUCKETS))
    }
}

/// Lower end of a bucket, seconds.
fn lower(at: usize) -> f64 {
    static ENDS: LazyLock<[f64; BUCKETS + 1]> = LazyLock::new(|| {
        let end = |at: usize| FIRST_S * 10f64.powf(at as f64 / PER_DECADE);
        std::array::from_fn(|at| if at == 0 { 0.0 } else { end(at) })
    });
    ENDS[at]
}

fn bucket(seconds: f64) -> usize {
    let at = (seconds / FIRST_S).max(1.0).log10() * PER_DECADE;
    (at as usize).min(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(value: u64) -> Duration {
        Duration::from_millis(value)
    }

    #[test]
    fn a_prior_has_its_median() {
        for median in [20, 300, 9_000, 600_000] {
            let got = Waits::prior(ms(median), 8.0, 1.0).quantile(0.5, Duration::ZERO);
            let ratio = got.as_secs_f64() / ms(median).as_secs_f64();
            assert!((0.7..1.4).contains(&ratio), "{median} ms became {got:?}");
        }
    }

    #[test]
    fn observations_outweigh_the_prior() {
        let mut waits = Waits::prior(ms(300), 8.0, 2.0);
        for at in 0..40 {
            waits.observe(ms(10_000 + 250 * at));
        }
        let (early, median) = (waits.quantile(0.1, Duration::ZERO), waits.quantile(0.5, Duration::ZERO));
        assert!((ms(9_000)..ms(12_500)).contains(&early), "{early:?}");
        assert!((ms(13_000)..ms(17_000)).contains(&median), "{median:?}");
        assert_eq!(waits.seen(), 40);
    }

    #[test]
    fn the_longer_it_waited_the_longer_it_will() {
        let mut waits = Waits::prior(ms(300), 8.0, 1.0);
        for at in 0..500 {
            waits.observe(ms(match at * 37 % 100 {
                0..61 => 300,
                61..88 => 3_000,
                88..96 => 30_000,
                _ => 400_000,
            }));
        }
        let mut last = Duration::ZERO;
        for elapsed in [0, 1_000, 10_000, 100_000] {
            let remaining = waits.quantile(0.5, ms(elapsed)) - ms(elapsed);
            assert!(remaining > last, "after {elapsed} ms: {remaining:?}, before {last:?}");
            last = remaining;
        }
    }

    #[test]
    fn beyond_all_experience_it_doubles() {
        let mut waits = Waits::prior(ms(300), 2.0, 1.0);
        (0..50).for_each(|_| waits.observe(ms(300)));
        assert_eq!(waits.quantile(0.5, Duration::from_secs(7_200)), Duration::from_secs(14_400));
        assert!(waits.quantile(1.0, Duration::from_secs(1 << 40)) >= Duration::from_secs(1 << 40));
    }
}
