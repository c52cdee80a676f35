//! The shapes that synthetic models have, and the changes that a name can ask for.

use super::PREFIX;
use crate::llama::{Architecture, Config, JSON_KEYS, RawConfig, RopeScaling};
use crate::{Error, Result};
use djinn_srg::DType;
use std::path::{Path, PathBuf};

/// A synthetic model's name, taken apart.
pub(super) struct Request {
    pub(super) config: Config,
    pub(super) seed: u64,
    pub(super) dtype: DType,
    /// Whether the name says which dtype.
    pub(super) chosen: bool,
}

/// A known model's sizes.
struct Shape {
    name: &'static str,
    architecture: Architecture,
    layers: u64,
    hidden: u64,
    intermediate: u64,
    heads: u64,
    kv_heads: u64,
    vocab: u64,
    context: u64,
    theta: f64,
    dtype: DType,
    tied: bool,
    bias: bool,
    /// Factor of Llama 3.1's rope scaling over 8192 positions.
    stretch: Option<f32>,
}

const LLAMA_2: Shape = Shape {
    name: "llama-2-7b",
    architecture: Architecture::Llama,
    layers: 32,
    hidden: 4096,
    intermediate: 11008,
    heads: 32,
    kv_heads: 32,
    vocab: 32_000,
    context: 4096,
    theta: 10_000.0,
    dtype: DType::F16,
    tied: false,
    bias: false,
    stretch: None,
};

const LLAMA_3: Shape = Shape {
    name: "llama-3-8b",
    intermediate: 14336,
    kv_heads: 8,
    vocab: 128_256,
    context: 8192,
    theta: 500_000.0,
    dtype: DType::BF16,
    ..LLAMA_2
};

const TINY: Shape = Shape {
    name: "tiny",
    layers: 2,
    hidden: 64,
    intermediate: 160,
    heads: 4,
    kv_heads: 4,
    vocab: 256,
    context: 2048,
    dtype: DType::BF16,
    ..LLAMA_2
};

const SHAPES: &[Shape] = &[
    LLAMA_2,
    Shape {
        name: "llama-2-13b",
        layers: 40,
        hidden: 5120,
        intermediate: 13824,
        heads: 40,
        kv_heads: 40,
        ..LLAMA_2
    },
    Shape {
        name: "llama-2-70b",
        layers: 80,
        hidden: 8192,
        intermediate: 28672,
        heads: 64,
        kv_heads: 8,
        ..LLAMA_2
    },
    LLAMA_3,
    Shape { name: "llama-3-70b", layers: 80, hidden: 8192, intermediate: 28672, heads: 64, ..LLAMA_3 },
    Shape { name: "llama-3.1-8b", context: 131_072, stretch: Some(8.0), ..LLAMA_3 },
    Shape {
        name: "llama-3.2-1b",
        layers: 16,
        hidden: 2048,
        intermediate: 8192,
        context: 131_072,
        tied: true,
        stretch: Some(32.0),
        ..LLAMA_3
    },
    Shape {
        name: "smollm2-135m",
        layers: 30,
        hidden: 576,
        intermediate: 1536,
        heads: 9,
        kv_heads: 3,
        vocab: 49_152,
        context: 8192,
        theta: 100_000.0,
        tied: true,
        ..LLAMA_3
    },
    Shape {
        name: "mistral-7b",
        architecture: Architecture::Mistral,
        vocab: 32_768,
        context: 32_768,
        theta: 1e6,
        ..LLAMA_3
    },
    Shape {
        name: "qwen2.5-7b",
        architecture: Architecture::Qwen2,
        layers: 28,
        hidden: 3584,
        intermediate: 18_944,
        heads: 28,
        kv_heads: 4,
        vocab: 152_064,
        context: 32_768,
        theta: 1e6,
        ..LLAMA_3
    },
    Shape {
        name: "qwen3-8b",
        architecture: Architecture::Qwen3,
        layers: 36,
        intermediate: 12_288,
        vocab: 151_936,
        context: 40_960,
        theta: 1e6,
        ..LLAMA_3
    },
    TINY,
    Shape { name: "tiny-gqa", kv_heads: 2, ..TINY },
    Shape { name: "tiny-mqa", kv_heads: 1, ..TINY },
    Shape { name: "tiny-tied", tied: true, ..TINY },
    Shape { name: "tiny-bias", bias: true, ..TINY },
    Shape { name: "tiny-1layer", layers: 1, ..TINY },
    Shape { name: "tiny-qwen3", architecture: Architecture::Qwen3, kv_heads: 2, ..TINY },
];

/// The shapes' names.
pub fn names() -> impl Iterator<Item = &'static str> {
    SHAPES.iter().map(|shape| shape.name)
}

const KEYS: &str =
    "layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, context, tied, bias, seed, dtype";

/// Takes a name without its prefix apart.
pub(super) fn parse(name: &str) -> Result<Request> {
    let path = PathBuf::from(format!("{PREFIX}{name}"));
    let (base, changes) = name.split_once('?').unwrap_or((name, ""));
    let Some(shape) = SHAPES.iter().find(|shape| shape.name == base) else {
        return Err(Error::NotAModel {
            place: path.display().to_string(),
            detail: format!("known shapes: {}", names().collect::<Vec<_>>().join(", ")),
        });
    };
    let mut raw = raw_config(shape);
    let (mut seed, mut dtype) = (0, None);
    for change in changes.split('&').filter(|change| !change.is_empty()) {
        let (key, value) = change.split_once('=').unwrap_or((change, ""));
        let set = Change { path: &path, key, value };
        match key {
            "layers" => raw.num_hidden_layers = set.number()?,
            "hidden" => raw.hidden_size = set.number()?,
            "intermediate" => raw.intermediate_size = set.number()?,
            "heads" => raw.num_attention_heads = set.number()?,
            "kv_heads" => raw.num_key_value_heads = Some(set.number()?),
            "head_dim" => raw.head_dim = Some(set.number()?),
            "vocab" => raw.vocab_size = set.number()?,
            "context" => raw.max_position_embeddings = set.number()?,
            "tied" => raw.tie_word_embeddings = set.flag()?,
            "bias" => (raw.qkv_bias, raw.out_bias, raw.mlp_bias) = (set.flag()?, set.flag()?, set.flag()?),
            "seed" => seed = set.number()?,
            "dtype" => dtype = Some(set.dtype()?),
            _ => {
                return Err(Error::Unsupported {
                    what: format!("key `{key}` of {}", path.display()),
                    remedy: format!("known keys: {KEYS}"),
                });
            }
        }
    }
    let config = raw.validate(&path, &JSON_KEYS)?;
    Ok(Request { config, seed, dtype: dtype.unwrap_or(shape.dtype), chosen: dtype.is_some() })
}

fn raw_config(shape: &Shape) -> RawConfig {
    RawConfig {
        architecture: shape.architecture,
        hidden_size: shape.hidden,
        intermediate_size: shape.intermediate,
        num_hidden_layers: shape.layers,
        num_attention_heads: shape.heads,
        num_key_value_heads: Some(shape.kv_heads),
        head_dim: None,
        vocab_size: shape.vocab,
        max_position_embeddings: shape.context,
        rms_norm_eps: 1e-5,
        rope_theta: shape.theta,
        rope_scaling: match shape.stretch {
            None => RopeScaling::Default,
            Some(factor) => RopeScaling::Llama3 {
                factor,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_max_position_embeddings: 8192,
            },
        },
        tie_word_embeddings: shape.tied,
        qkv_bias: shape.bias || shape.architecture == Architecture::Qwen2,
        out_bias: shape.bias,
        mlp_bias: shape.bias,
    }
}

struct Change<'a> {
    path: &'a Path,
    key: &'a str,
    value: &'a str,
}

impl Change<'_> {
    fn number(&self) -> Result<u64> {
        self.value.parse().map_err(|_| self.error("a whole number"))
    }

    fn flag(&self) -> Result<bool> {
        self.value.parse().map_err(|_| self.error("true or false"))
    }

    fn dtype(&self) -> Result<DType> {
        match self.value {
            "f32" => Ok(DType::F32),
            "f16" => Ok(DType::F16),
            "bf16" => Ok(DType::BF16),
            _ => Err(self.error("f32, f16 or bf16")),
        }
    }

    fn error(&self, expected: &str) -> Error {
        Error::Config {
            path: self.path.to_owned(),
            key: self.key.to_owned(),
            detail: format!("expected {expected}, found `{}`", self.value),
        }
    }
}
