//! Limits of configurations, which come from files and are not trusted.

use super::{Decoder, Mlp, Positions, RopeScaling, Rotary};
use crate::{Error, Result};
use djinn_srg::{Graph, Routing};
use std::path::Path;

/// Largest accepted sizes: far above any model, and low enough that no product of them overflows 64 bits.
const MAX_LAYERS: u64 = 10_000;
const MAX_WIDTH: u64 = 1 << 20;
const MAX_INTERMEDIATE: u64 = 1 << 24;
const MAX_HEADS: u64 = 1 << 16;
const MAX_HEAD_DIM: u64 = 1 << 13;
const MAX_ATTENTION_WIDTH: u64 = 1 << 22;
const MAX_CONTEXT: u64 = 1 << 31;
/// Experts of all blocks together: each is a few nodes of the graph.
const MAX_ALL_EXPERTS: u64 = 1 << 17;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) hidden: u64,
    /// Of the MLP, or of each expert.
    pub(crate) intermediate: u64,
    pub(crate) layers: u64,
    pub(crate) heads: u64,
    pub(crate) kv_heads: u64,
    pub(crate) head_dim: u64,
    pub(crate) vocab: u64,
    pub(crate) context: u64,
}

/// A format's names of the sizes, for error messages and for changes to synthetic shapes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyNames {
    pub(crate) hidden: &'static str,
    pub(crate) intermediate: &'static str,
    pub(crate) layers: &'static str,
    pub(crate) heads: &'static str,
    pub(crate) kv_heads: &'static str,
    pub(crate) head_dim: &'static str,
    pub(crate) vocab: &'static str,
    pub(crate) context: &'static str,
    pub(crate) eps: &'static str,
    pub(crate) theta: &'static str,
    pub(crate) scaling: &'static str,
    pub(crate) rotary_dim: &'static str,
    pub(crate) window: &'static str,
    pub(crate) experts: &'static str,
    pub(crate) chosen: &'static str,
    /// Flags that give products a bias.
    pub(crate) biases: &'static [&'static str],
}

pub(crate) struct Origin<'a> {
    pub(crate) path: &'a Path,
    /// Precedes each key: `llama.` in GGUF.
    pub(crate) prefix: &'a str,
    pub(crate) keys: &'a KeyNames,
}

impl Decoder {
    /// Names the first key with an invalid value: zero, too large, or in conflict with another.
    pub(crate) fn check(&self, origin: &Origin<'_>) -> Result<()> {
        let (sizes, keys) = (&self.sizes, origin.keys);
        origin.within(keys.hidden, sizes.hidden, MAX_WIDTH)?;
        origin.within(keys.intermediate, sizes.intermediate, MAX_INTERMEDIATE)?;
        origin.within(keys.layers, sizes.layers, MAX_LAYERS)?;
        origin.within(keys.vocab, sizes.vocab, Graph::MOST_VOCAB.into())?;
        origin.within(keys.context, sizes.context, MAX_CONTEXT)?;
        self.check_heads(origin)?;
        if !(0.0..1.0).contains(&self.norm.eps) {
            return origin.refuse(keys.eps, format!("{} is not in 0..1", self.norm.eps));
        }
        if let Positions::Rotary(rotary) = &self.positions {
            origin.rotary(rotary, sizes.head_dim)?;
        }
        if let Some(window) = &self.window {
            origin.within(keys.window, window.positions, MAX_CONTEXT)?;
        }
        if let Mlp::Experts { count, chosen, .. } = self.mlp {
            let most = u64::from(Routing::MOST_EXPERTS);
            origin.within(keys.experts, count, most.min(MAX_ALL_EXPERTS / sizes.layers))?;
            origin.within(keys.chosen, chosen, u64::from(Routing::MOST_CHOSEN).min(count))?;
        }
        Ok(())
    }

    fn check_heads(&self, origin: &Origin<'_>) -> Result<()> {
        let Sizes { heads, kv_heads, head_dim, .. } = self.sizes;
        let keys = origin.keys;
        origin.within(keys.heads, heads, MAX_HEADS)?;
        origin.within(keys.kv_heads, kv_heads, MAX_HEADS)?;
        if !heads.is_multiple_of(kv_heads) {
            return origin.refuse(keys.kv_heads, format!("{kv_heads} does not divide the {heads} heads"));
        }
        origin.within(keys.head_dim, head_dim, MAX_HEAD_DIM)?;
        if heads * head_dim > MAX_ATTENTION_WIDTH {
            return origin.refuse(keys.heads, format!("{heads} heads of {head_dim} elements are too wide"));
        }
        Ok(())
    }
}

impl Sizes {
    /// Elements of a head if the configuration does not have their number.
    pub(crate) fn split_head(hidden: u64, heads: u64, origin: &Origin<'_>) -> Result<u64> {
        origin.within(origin.keys.hidden, hidden, MAX_WIDTH)?;
        match hidden.checked_div(heads) {
            Some(size) if hidden.is_multiple_of(heads) => Ok(size),
            Some(_) => {
                let detail = format!("{heads} does not divide {} = {hidden}", origin.keys.hidden);
                origin.refuse(origin.keys.heads, detail)
            }
            None => origin.within(origin.keys.heads, heads, MAX_HEADS).map(|()| 0),
        }
    }
}

impl Origin<'_> {
    pub(crate) fn refuse<T>(&self, key: &str, detail: String) -> Result<T> {
        Err(Error::Config { path: self.path.to_owned(), key: format!("{}{key}", self.prefix), detail })
    }

    fn within(&self, key: &str, value: u64, max: u64) -> Result<()> {
        if (1..=max).contains(&value) {
            return Ok(());
        }
        self.refuse(key, format!("{value} is not in 1..={max}"))
    }

    fn positive(&self, key: &str, value: f32) -> Result<()> {
        if value.is_finite() && value > 0.0 {
            return Ok(());
        }
        self.refuse(key, format!("{value} is not a positive number"))
    }

    fn rotary(&self, rotary: &Rotary, head_dim: u64) -> Result<()> {
        self.positive(self.keys.theta, rotary.theta)?;
        if !rotary.dim.is_multiple_of(2) {
            let key = if rotary.dim == head_dim { self.keys.head_dim } else { self.keys.rotary_dim };
            return self.refuse(key, format!("{} is odd; rotary embedding needs pairs", rotary.dim));
        }
        self.within(self.keys.rotary_dim, rotary.dim, head_dim)?;
        self.scaling(self.keys.scaling, &rotary.scaling, rotary.dim)
    }

    fn scaling(&self, key: &str, scaling: &RopeScaling, dim: u64) -> Result<()> {
        match scaling {
            RopeScaling::Default => Ok(()),
            RopeScaling::Linear { factor } => self.positive(&format!("{key}.factor"), *factor),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: original,
            } => {
                self.positive(&format!("{key}.factor"), *factor)?;
                self.positive(&format!("{key}.low_freq_factor"), *low)?;
                self.positive(&format!("{key}.high_freq_factor"), *high)?;
                if high <= low {
                    let detail = format!("{high} is not above low_freq_factor, {low}");
                    return self.refuse(&format!("{key}.high_freq_factor"), detail);
                }
                self.within(&format!("{key}.original_max_position_embeddings"), *original, MAX_CONTEXT)
            }
            RopeScaling::Divisors(divisors) => {
                if divisors.len() as u64 != dim / 2 {
                    return Err(Error::WrongShape {
                        name: "rope_freqs.weight".to_owned(),
                        found: vec![divisors.len() as u64],
                        expected: vec![dim / 2],
                    });
                }
                divisors.iter().try_for_each(|&d| self.positive("rope_freqs.weight", d))
            }
        }
    }
}
