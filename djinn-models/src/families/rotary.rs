//! Rotary settings in `config.json`: `rope_parameters` of transformers 5, or `rope_theta` and `rope_scaling` before it.

use super::{Family, KEYS, unsupported};
use crate::Result;
use crate::decoder::{KeyNames, RopeScaling, Rotary};
use crate::open::JsonKeys;
use djinn_srg::RopeStyle;

/// Rotation of whole heads in halves; `theta` is the default.
pub(super) fn rotary(keys: &JsonKeys, head_dim: u64, theta: f64) -> Result<Rotary> {
    let (rotary, factor) = settings(keys, &KEYS, theta)?;
    match factor {
        Some(factor) if factor != 1.0 => {
            Err(unsupported(format!("partial_rotary_factor {factor}"), "supported: 1"))
        }
        _ => Ok(Rotary { dim: head_dim, ..rotary }),
    }
}

/// Rotation of the first elements of each head in halves. `theta`, and the share `factor` of `head_dim`, are defaults.
/// Outside `rope_parameters`, the family names both.
pub(super) fn partial_rotary(
    keys: &JsonKeys,
    family: &Family,
    head_dim: u64,
    theta: f64,
    factor: f64,
) -> Result<Rotary> {
    let (rotary, found) = settings(keys, &family.keys, theta)?;
    Ok(Rotary { dim: Rotary::part(head_dim, found.unwrap_or(factor)), ..rotary })
}

/// A rotation without its number of elements, and the share of a head that it has.
fn settings(keys: &JsonKeys, names: &KeyNames, theta: f64) -> Result<(Rotary, Option<f64>)> {
    let (outer_theta, outer_factor) = (keys.f64(names.theta)?, keys.f64(names.rotary_dim)?);
    let (new, old) = (keys.object("rope_parameters")?, keys.object("rope_scaling")?);
    if let (Some(new), Some(old)) = (&new, &old)
        && scaling(old)? != scaling(new)?
    {
        return Err(keys.error("rope_scaling", "differs from `rope_parameters`, which is beside it".into()));
    }
    let inner = new.or(old);
    let (found_theta, factor, scaling) = match inner {
        None => (outer_theta, outer_factor, RopeScaling::Default),
        Some(inner) => (
            inner.f64("rope_theta")?.or(outer_theta),
            inner.f64("partial_rotary_factor")?.or(outer_factor),
            scaling(&inner)?,
        ),
    };
    let theta = found_theta.unwrap_or(theta) as f32;
    Ok((Rotary { dim: 0, style: RopeStyle::Half, theta, scaling }, factor))
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
