//! Rotary positions from GGUF's keys, and from its tensor of divisors.

use super::keys::shown;
use super::{File, KEYS};
use crate::decoder::{RopeScaling, Rotary};
use crate::families::unsupported;
use crate::gguf::Gguf;
use crate::{Error, Result, TensorFile};
use djinn_srg::{DType, RopeStyle};

/// The divisors of the frequencies in Llama 3's scaling.
pub(super) const DIVISORS: &str = "rope_freqs.weight";

impl File<'_> {
    pub(super) fn rotary(&self, head_dim: u64) -> Result<Rotary> {
        let dim = self.optional_u64(KEYS.rotary_dim)?.unwrap_or(head_dim);
        if dim != head_dim {
            let what = format!("{} {dim} with heads of {head_dim}", self.key(KEYS.rotary_dim));
            return Err(unsupported(what, "supported: both equal"));
        }
        let theta = self.optional_f32(KEYS.theta)?.unwrap_or(10_000.0);
        Ok(Rotary { dim, style: RopeStyle::Half, theta, scaling: self.scaling()? })
    }

    fn scaling(&self) -> Result<RopeScaling> {
        let kind = self.gguf.optional(&self.key("rope.scaling.type"), Gguf::get_str)?;
        let factor = match self.optional_f32("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            // The key in files before 2023-09.
            None => self.optional_f32("rope.scale_linear")?,
        };
        let linear = match (kind, factor) {
            // A factor of 0 means none.
            (Some("none"), _) | (None, None) | (None | Some("linear"), Some(0.0 | 1.0)) => {
                RopeScaling::Default
            }
            (None | Some("linear"), Some(factor)) => RopeScaling::Linear { factor },
            (Some("linear"), None) => {
                let (path, key) = (self.gguf.path().to_owned(), self.key("rope.scaling.factor"));
                return Err(Error::Config { path, key, detail: "missing".to_owned() });
            }
            (Some(other), _) => {
                let remedy = "supported: none, linear, rope_freqs.weight";
                return Err(unsupported(format!("rope scaling {}", shown(other)), remedy));
            }
        };
        match (linear, self.divisors()?) {
            (linear, None) => Ok(linear),
            (RopeScaling::Default, Some(divisors)) => Ok(RopeScaling::Divisors(divisors)),
            _ => Err(unsupported(format!("rope scaling linear with {DIVISORS}"), "supported: either")),
        }
    }

    /// The frequencies' divisors, if the file has them, one for each pair of a head.
    fn divisors(&self) -> Result<Option<Vec<f32>>> {
        let Some(info) = self.gguf.tensor(DIVISORS) else { return Ok(None) };
        const MOST: u64 = 1 << 12;
        let length = match *info.shape.as_slice() {
            [length] if length <= MOST => length,
            _ => {
                let (name, found) = (DIVISORS.to_owned(), info.shape.clone());
                return Err(Error::WrongShape { name, found, expected: vec![MOST] });
            }
        };
        let mut bytes = vec![0; length as usize * 4];
        self.gguf.read(DIVISORS, 0..length, DType::F32, &mut bytes)?;
        Ok(Some(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()))
    }
}
