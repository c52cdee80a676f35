//! Rotary frequencies, computed in f32 in Hugging Face's order of operations, so that angles at large positions agree.

use djinn_srg::RopeStyle;

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rotary {
    /// Leading elements of a head that are rotated.
    pub(crate) dim: u64,
    pub(crate) style: RopeStyle,
    pub(crate) theta: f32,
    pub(crate) scaling: RopeScaling,
}

/// Scaling of rotary frequencies for longer contexts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RopeScaling {
    /// None.
    Default,
    /// All divided by `factor` (position interpolation, Chen et al. 2023).
    Linear { factor: f32 },
    /// Llama 3.1: wavelengths above `original / low` divided by `factor`, below `original / high` kept,
    /// interpolated between.
    Llama3 { factor: f32, low_freq_factor: f32, high_freq_factor: f32, original_max_position_embeddings: u64 },
    /// Each divided by its own number: GGUF's tensor `rope_freqs.weight`.
    Divisors(Vec<f32>),
}

impl Rotary {
    /// The share `factor` of a head, in whole elements as in transformers.
    pub(crate) fn part(head_dim: u64, factor: f64) -> u64 {
        (head_dim as f64 * factor) as u64
    }

    /// `theta^(-2i / dim)` for `i` in `0..dim / 2`, scaled: `[dim / 2]` radians per position.
    pub(crate) fn inverse_frequencies(&self) -> Vec<f32> {
        let dim = self.dim as f32;
        let base = (0..self.dim / 2).map(|i| 1.0 / self.theta.powf((2 * i) as f32 / dim));
        match &self.scaling {
            RopeScaling::Default => base.collect(),
            RopeScaling::Linear { factor } => base.map(|f| f / factor).collect(),
            RopeScaling::Divisors(divisors) => base.zip(divisors).map(|(f, d)| f / d).collect(),
            &RopeScaling::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: original,
            } => base.map(|f| llama3(f, factor, low, high, original as f32)).collect(),
        }
    }
}

/// Llama 3.1's rule for one frequency: turns over the original context decide between `f` and `f / factor`.
fn llama3(f: f32, factor: f32, low: f32, high: f32, original: f32) -> f32 {
    let wavelength = std::f32::consts::TAU / f;
    if wavelength > original / low {
        return f / factor;
    }
    if wavelength < original / high {
        return f;
    }
    let keep = (original / wavelength - low) / (high - low);
    (1.0 - keep) * f / factor + keep * f
}
