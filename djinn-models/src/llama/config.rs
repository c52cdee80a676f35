//! The family's configuration in Hugging Face's field names, and the limits that every source of it must keep.

use super::Architecture;
use crate::{Error, Result};
use std::path::Path;

/// A model's hyperparameters; fields are named as in Hugging Face's `config.json`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Config {
    pub(crate) architecture: Architecture,
    pub(crate) hidden_size: u64,
    pub(crate) intermediate_size: u64,
    pub(crate) num_hidden_layers: u32,
    pub(crate) num_attention_heads: u32,
    pub(crate) num_key_value_heads: u32,
    pub(crate) head_dim: u32,
    pub(crate) vocab_size: u64,
    pub(crate) max_position_embeddings: u64,
    pub(crate) rms_norm_eps: f32,
    pub(crate) rope_theta: f32,
    pub(crate) rope_scaling: RopeScaling,
    pub(crate) tie_word_embeddings: bool,
    /// Biases on the projections of queries, keys and values.
    pub(crate) qkv_bias: bool,
    /// A bias on the projection of the attention's output.
    pub(crate) out_bias: bool,
    /// Biases on the three projections of the MLP.
    pub(crate) mlp_bias: bool,
}

/// How rotary frequencies are stretched to longer contexts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RopeScaling {
    /// Not at all.
    Default,
    /// All divided by `factor` (position interpolation, Chen et al. 2023).
    Linear { factor: f32 },
    /// Llama 3.1: wavelengths above `original / low` divided by `factor`, below `original / high` kept,
    /// interpolated between.
    Llama3 { factor: f32, low_freq_factor: f32, high_freq_factor: f32, original_max_position_embeddings: u64 },
    /// Each divided by its own number: GGUF's tensor `rope_freqs.weight`.
    Divisors(Vec<f32>),
}

/// Largest accepted sizes: far above any model, low enough that no product of them overflows 64 bits.
const MAX_LAYERS: u64 = 10_000;
const MAX_WIDTH: u64 = 1 << 20;
const MAX_INTERMEDIATE: u64 = 1 << 24;
const MAX_HEADS: u64 = 1 << 16;
const MAX_HEAD_DIM: u64 = 1 << 13;
const MAX_ATTENTION_WIDTH: u64 = 1 << 22;
const MAX_VOCAB: u64 = 1 << 28;
const MAX_CONTEXT: u64 = 1 << 31;

/// The keys' names in the configuration that is being checked, for messages.
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
}

/// Hugging Face's keys.
pub(crate) const JSON_KEYS: KeyNames = KeyNames {
    hidden: "hidden_size",
    intermediate: "intermediate_size",
    layers: "num_hidden_layers",
    heads: "num_attention_heads",
    kv_heads: "num_key_value_heads",
    head_dim: "head_dim",
    vocab: "vocab_size",
    context: "max_position_embeddings",
    eps: "rms_norm_eps",
    theta: "rope_theta",
    scaling: "rope_scaling",
};

/// GGUF's keys.
pub(crate) const GGUF_KEYS: KeyNames = KeyNames {
    hidden: "llama.embedding_length",
    intermediate: "llama.feed_forward_length",
    layers: "llama.block_count",
    heads: "llama.attention.head_count",
    kv_heads: "llama.attention.head_count_kv",
    head_dim: "llama.attention.key_length",
    vocab: "llama.vocab_size",
    context: "llama.context_length",
    eps: "llama.attention.layer_norm_rms_epsilon",
    theta: "llama.rope.freq_base",
    scaling: "llama.rope.scaling",
};

/// Sizes as a file gives them, before any is trusted.
#[derive(Clone, Debug)]
pub(crate) struct RawConfig {
    pub(crate) architecture: Architecture,
    pub(crate) hidden_size: u64,
    pub(crate) intermediate_size: u64,
    pub(crate) num_hidden_layers: u64,
    pub(crate) num_attention_heads: u64,
    pub(crate) num_key_value_heads: Option<u64>,
    pub(crate) head_dim: Option<u64>,
    pub(crate) vocab_size: u64,
    pub(crate) max_position_embeddings: u64,
    pub(crate) rms_norm_eps: f64,
    pub(crate) rope_theta: f64,
    pub(crate) rope_scaling: RopeScaling,
    pub(crate) tie_word_embeddings: bool,
    pub(crate) qkv_bias: bool,
    pub(crate) out_bias: bool,
    pub(crate) mlp_bias: bool,
}

impl RawConfig {
    /// The configuration, or the first key whose value cannot be: zero, absurdly large, or at odds with
    /// another. `path` and `keys` are for the message.
    pub(crate) fn validate(self, path: &Path, keys: &KeyNames) -> Result<Config> {
        let check = Check { path };
        let hidden_size = check.within(keys.hidden, self.hidden_size, MAX_WIDTH)?;
        let heads = check.within(keys.heads, self.num_attention_heads, MAX_HEADS)?;
        let kv_heads = check.within(keys.kv_heads, self.num_key_value_heads.unwrap_or(heads), MAX_HEADS)?;
        if !heads.is_multiple_of(kv_heads) {
            return check.refuse(keys.kv_heads, format!("{kv_heads} does not divide the {heads} heads"));
        }
        let head_dim = match self.head_dim {
            Some(size) => size,
            None if hidden_size.is_multiple_of(heads) => hidden_size / heads,
            None => {
                let detail = format!("{heads} does not divide {} = {hidden_size}", keys.hidden);
                return check.refuse(keys.heads, detail);
            }
        };
        let head_dim = check.within(keys.head_dim, head_dim, MAX_HEAD_DIM)?;
        if !head_dim.is_multiple_of(2) {
            return check.refuse(keys.head_dim, format!("{head_dim} is odd; rotary embedding needs pairs"));
        }
        if heads * head_dim > MAX_ATTENTION_WIDTH {
            return check.refuse(keys.heads, format!("{heads} heads of {head_dim} elements are too wide"));
        }
        let eps = self.rms_norm_eps as f32;
        if !(0.0..1.0).contains(&eps) {
            return check.refuse(keys.eps, format!("{} is not in 0..1", self.rms_norm_eps));
        }
        let theta = self.rope_theta as f32;
        check.positive(keys.theta, theta)?;
        check.scaling(keys.scaling, &self.rope_scaling, head_dim)?;
        Ok(Config {
            architecture: self.architecture,
            hidden_size,
            intermediate_size: check.within(keys.intermediate, self.intermediate_size, MAX_INTERMEDIATE)?,
            num_hidden_layers: check.within(keys.layers, self.num_hidden_layers, MAX_LAYERS)? as u32,
            num_attention_heads: heads as u32,
            num_key_value_heads: kv_heads as u32,
            head_dim: head_dim as u32,
            vocab_size: check.within(keys.vocab, self.vocab_size, MAX_VOCAB)?,
            max_position_embeddings: check.within(keys.context, self.max_position_embeddings, MAX_CONTEXT)?,
            rms_norm_eps: eps,
            rope_theta: theta,
            rope_scaling: self.rope_scaling,
            tie_word_embeddings: self.tie_word_embeddings,
            qkv_bias: self.qkv_bias,
            out_bias: self.out_bias,
            mlp_bias: self.mlp_bias,
        })
    }
}

impl Config {
    /// Rows of the query projection: heads times head size.
    pub(crate) fn q_rows(&self) -> u64 {
        u64::from(self.num_attention_heads) * u64::from(self.head_dim)
    }

    /// Rows of the key projection, and of the value projection.
    pub(crate) fn kv_rows(&self) -> u64 {
        u64::from(self.num_key_value_heads) * u64::from(self.head_dim)
    }
}

struct Check<'a> {
    path: &'a Path,
}

impl Check<'_> {
    fn refuse<T>(&self, key: &str, detail: String) -> Result<T> {
        Err(Error::Config { path: self.path.to_owned(), key: key.to_owned(), detail })
    }

    fn within(&self, key: &str, value: u64, max: u64) -> Result<u64> {
        if (1..=max).contains(&value) {
            return Ok(value);
        }
        self.refuse(key, format!("{value} is not in 1..={max}"))
    }

    fn positive(&self, key: &str, value: f32) -> Result<()> {
        if value.is_finite() && value > 0.0 {
            return Ok(());
        }
        self.refuse(key, format!("{value} is not a positive number"))
    }

    fn scaling(&self, key: &str, scaling: &RopeScaling, head_dim: u64) -> Result<()> {
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
                let key = format!("{key}.original_max_position_embeddings");
                self.within(&key, *original, MAX_CONTEXT).map(drop)
            }
            RopeScaling::Divisors(divisors) => {
                if divisors.len() as u64 != head_dim / 2 {
                    return Err(Error::WrongShape {
                        name: "rope_freqs.weight".to_owned(),
                        found: vec![divisors.len() as u64],
                        expected: vec![head_dim / 2],
                    });
                }
                divisors.iter().try_for_each(|&d| self.positive("rope_freqs.weight", d))
            }
        }
    }
}
