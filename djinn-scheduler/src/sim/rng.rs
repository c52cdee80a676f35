//! Seeded random numbers: SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
//! 2014). The same seed gives the same numbers everywhere.

/// A stream of random numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        Rng { state: seed ^ 0x6a69_6e6e_0000_0000 }
    }

    /// An independent stream for part `index`.
    pub fn split(&self, index: u64) -> Self {
        let mut child = Rng { state: self.state ^ index.wrapping_mul(0xd134_2543_de82_ef95) };
        child.next_u64();
        child
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Uniform in `[0, 1)`.
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Standard normal, by Box and Muller's method.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Exponential with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.uniform()).ln()
    }
}
