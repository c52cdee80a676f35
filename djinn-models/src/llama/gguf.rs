//! GGUF metadata as a Llama configuration.

use super::config::{GGUF_KEYS, RawConfig};
use super::names::{ATTENTION_OUT, EMBEDDING, HEAD, Naming, QUERY, UP};
use super::{Architecture, Config, RopeScaling};
use crate::gguf::Gguf;
use crate::{Error, Result, TensorFile};
use djinn_srg::DType;

const DIVISORS: &str = "rope_freqs.weight";

impl Config {
    /// Reads the keys `llama.*`. What GGUF leaves to the tensors is taken from them: the vocabulary's size,
    /// biases, a tied embedding, and Llama 3's rope scaling.
    ///
    /// # Errors
    /// [`Error::Unsupported`] names another architecture or a feature that Djinn lacks; [`Error::Config`]
    /// names a key that is missing or out of range; [`Error::MissingTensor`].
    pub(crate) fn from_gguf(gguf: &Gguf) -> Result<Config> {
        let architecture = gguf.get_str("general.architecture")?;
        if architecture != "llama" {
            return Err(unsupported(format!("architecture {architecture}"), "supported: llama"));
        }
        check_features(gguf)?;
        let head_dim = gguf.optional(GGUF_KEYS.head_dim, Gguf::get_u64)?;
        let has = |name: &str| gguf.tensor(name).is_some();
        let raw = RawConfig {
            architecture: Architecture::Llama,
            hidden_size: gguf.get_u64(GGUF_KEYS.hidden)?,
            intermediate_size: gguf.get_u64(GGUF_KEYS.intermediate)?,
            num_hidden_layers: gguf.get_u64(GGUF_KEYS.layers)?,
            num_attention_heads: gguf.get_u64(GGUF_KEYS.heads)?,
            num_key_value_heads: gguf.optional(GGUF_KEYS.kv_heads, Gguf::get_u64)?,
            head_dim,
            vocab_size: vocab_size(gguf)?,
            max_position_embeddings: gguf.get_u64(GGUF_KEYS.context)?,
            rms_norm_eps: gguf.get_f32(GGUF_KEYS.eps)?.into(),
            rope_theta: gguf.optional(GGUF_KEYS.theta, Gguf::get_f32)?.unwrap_or(10_000.0).into(),
            rope_scaling: scaling(gguf)?,
            tie_word_embeddings: !has(Naming::Gguf.top(HEAD)),
            qkv_bias: has(&Naming::Gguf.in_block(0, QUERY, "bias")),
            out_bias: has(&Naming::Gguf.in_block(0, ATTENTION_OUT, "bias")),
            mlp_bias: has(&Naming::Gguf.in_block(0, UP, "bias")),
        };
        let config = raw.validate(gguf.path(), &GGUF_KEYS)?;
        check_same_as_head_dim(gguf, &config)?;
        Ok(config)
    }
}

fn unsupported(what: String, remedy: &str) -> Error {
    Error::Unsupported { what, remedy: remedy.to_owned() }
}

/// Refuses what other models store under the architecture `llama`.
fn check_features(gguf: &Gguf) -> Result<()> {
    for key in ["llama.expert_count", "llama.attention.sliding_window"] {
        let value = gguf.optional(key, Gguf::get_u64)?.unwrap_or(0);
        if value != 0 {
            return Err(unsupported(format!("{key} {value}"), "supported: dense Llama with full attention"));
        }
    }
    Ok(())
}

/// Values as long as keys, and all of each head rotated.
fn check_same_as_head_dim(gguf: &Gguf, config: &Config) -> Result<()> {
    for key in ["llama.attention.value_length", "llama.rope.dimension_count"] {
        let size = gguf.optional(key, Gguf::get_u64)?;
        if let Some(size) = size.filter(|&size| size != u64::from(config.head_dim)) {
            let what = format!("{key} {size} with heads of {}", config.head_dim);
            return Err(unsupported(what, "supported: both equal"));
        }
    }
    Ok(())
}

fn vocab_size(gguf: &Gguf) -> Result<u64> {
    let name = Naming::Gguf.top(EMBEDDING);
    let table = gguf.tensor(name);
    let table = table
        .ok_or_else(|| Error::MissingTensor { name: name.to_owned(), architecture: "llama".to_owned() })?;
    Ok(table.shape.first().copied().unwrap_or(0))
}

fn scaling(gguf: &Gguf) -> Result<RopeScaling> {
    let kind = gguf.optional("llama.rope.scaling.type", Gguf::get_str)?;
    let factor = match gguf.optional("llama.rope.scaling.factor", Gguf::get_f32)? {
        Some(factor) => Some(factor),
        // The key of files before 2023-09.
        None => gguf.optional("llama.rope.scale_linear", Gguf::get_f32)?,
    };
    if let Some(divisors) = divisors(gguf)? {
        return match kind {
            None | Some("none") => Ok(RopeScaling::Divisors(divisors)),
            Some(kind) => {
                Err(unsupported(format!("rope scaling {kind} with {DIVISORS}"), "supported: either"))
            }
        };
    }
    match (kind, factor) {
        (None | Some("none"), None) | (Some("none"), Some(_)) => Ok(RopeScaling::Default),
        (Some("linear"), None) => Err(Error::Config {
            path: gguf.path().to_owned(),
            key: "llama.rope.scaling.factor".to_owned(),
            detail: "missing".to_owned(),
        }),
        // A factor of 0 stands for none.
        (None | Some("linear"), Some(factor)) if factor != 0.0 => Ok(RopeScaling::Linear { factor }),
        (None | Some("linear"), Some(_)) => Ok(RopeScaling::Default),
        (Some(other), _) => {
            Err(unsupported(format!("rope scaling {other}"), "supported: none, linear, rope_freqs.weight"))
        }
    }
}

/// The frequencies' divisors, if the file has them: half a head of numbers.
fn divisors(gguf: &Gguf) -> Result<Option<Vec<f32>>> {
    let Some(info) = gguf.tensor(DIVISORS) else { return Ok(None) };
    const MOST: u64 = 1 << 12;
    let &[length] = info.shape.as_slice() else {
        return Err(wrong_shape(&info.shape, MOST));
    };
    if length > MOST {
        return Err(wrong_shape(&info.shape, MOST));
    }
    let mut bytes = vec![0; length as usize * 4];
    gguf.read_rows(DIVISORS, 0..length, DType::F32, &mut bytes)?;
    Ok(Some(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()))
}

fn wrong_shape(found: &[u64], most: u64) -> Error {
    Error::WrongShape { name: DIVISORS.to_owned(), found: found.to_vec(), expected: vec![most] }
}
