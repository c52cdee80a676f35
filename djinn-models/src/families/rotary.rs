//! Rotary settings in `config.json`: `rope_parameters` of transformers 5, or `rope_theta` and `rope_scaling` before it.

use super::unsupported;
use crate::Result;
use crate::decoder::{RopeScaling, Rotary};
use crate::open::JsonKeys;
use djinn_srg::RopeStyle;

/// Rotation of whole heads in halves, by `theta` where the configuration does not tell.
pub(super) fn rotary(keys: &JsonKeys, head_dim: u64, theta: f64) -> Result<Rotary> {
    let outer_theta = keys.f64("rope_theta")?;
    let partial = keys.f64("partial_rotary_factor")?;
    let inner = match keys.object("rope_parameters")? {
        Some(parameters) => Some(parameters),
        None => keys.object("rope_scaling")?,
    };
    let (theta, scaling) = match inner {
        None => {
            check_partial(partial)?;
            (outer_theta.unwrap_or(theta), RopeScaling::Default)
        }
        Some(inner) => {
            check_partial(inner.f64("partial_rotary_factor")?.or(partial))?;
            (inner.f64("rope_theta")?.or(outer_theta).unwrap_or(theta), scaling(&inner)?)
        }
    };
    Ok(Rotary { dim: head_dim, style: RopeStyle::Half, theta: theta as f32, scaling })
}

fn check_partial(factor: Option<f64>) -> Result<()> {
    match factor {
        Some(factor) if factor != 1.0 => {
            Err(unsupported(format!("partial_rotary_factor {factor}"), "supported: 1"))
        }
        _ => Ok(()),
    }
}

fn scaling(keys: &JsonKeys) -> Result<RopeScaling> {
    let kind = match keys.string("rope_type")? {
        Some(kind) => Some(kind),
        None => keys.string("type")?,
    };
    let need = |key| Ok::<_, crate::Error>(keys.need(key, keys.f64(key)?)? as f32);
    match kind {
        None | Some("default") => Ok(RopeScaling::Default),
        Some("linear") => Ok(RopeScaling::Linear { factor: need("factor")? }),
        Some("llama3") => {
            let original = "original_max_position_embeddings";
            Ok(RopeScaling::Llama3 {
                factor: need("factor")?,
                low_freq_factor: need("low_freq_factor")?,
                high_freq_factor: need("high_freq_factor")?,
                original_max_position_embeddings: keys.need(original, keys.u64(original)?)?,
            })
        }
        Some(other) => {
            Err(unsupported(format!("rope scaling {other}"), "supported: default, linear, llama3"))
        }
    }
}
