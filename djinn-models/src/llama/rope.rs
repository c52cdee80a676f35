//! Rotary frequencies, computed in f32 in the order of operations that Hugging Face uses, so that angles at
//! large positions agree.

use super::{Config, RopeScaling};

/// `theta^(-2i / head_dim)` for `i` in `0..head_dim / 2`, scaled: `[head_dim / 2]` radians per position.
pub(crate) fn inverse_frequencies(config: &Config) -> Vec<f32> {
    let head_dim = config.head_dim as f32;
    let base = (0..config.head_dim / 2).map(|i| 1.0 / config.rope_theta.powf((2 * i) as f32 / head_dim));
    match &config.rope_scaling {
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
