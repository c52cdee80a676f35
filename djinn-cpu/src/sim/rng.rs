//! SplitMix64 (Steele, Lea & Flood 2014): small, seeded, the same everywhere.

/// A seeded generator.
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) const fn new(seed: u64) -> Self {
        Rng(seed)
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `n > 0`, near enough to uniform for schedules.
    pub(super) const fn below(&mut self, n: u64) -> u64 {
        ((self.next() as u128 * n as u128) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_the_published_sequence() {
        let mut rng = Rng::new(1_234_567);
        let drawn = [rng.next(), rng.next(), rng.next()];
        assert_eq!(drawn, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn draws_every_value_below_the_bound() {
        let mut rng = Rng::new(7);
        let mut seen = [0; 5];
        (0..500).for_each(|_| seen[rng.below(5) as usize] += 1);
        assert!(seen.iter().all(|&n| n > 50), "{seen:?}");
    }
}
