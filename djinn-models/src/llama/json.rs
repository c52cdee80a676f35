//! `config.json` of a Hugging Face checkpoint as a configuration of the family.

use super::config::{JSON_KEYS, RawConfig};
use super::{Architecture, Config, RopeScaling};
use crate::open::JsonKeys;
use crate::{Error, Result};
use std::path::Path;

impl Config {
    /// Reads `config.json`, as written by any version of transformers.
    ///
    /// # Errors
    /// [`Error::Unsupported`] names another architecture or a feature that Djinn lacks; [`Error::Config`]
    /// names a key that is missing or out of range.
    pub(crate) fn from_json(path: &Path) -> Result<Config> {
        let keys = JsonKeys::open(path)?;
        let architecture = architecture(&keys)?;
        check_features(&keys)?;
        let (rope_theta, rope_scaling) = rope(&keys)?;
        let need = |key| keys.need(key, keys.u64(key)?);
        let flag = |key| Ok::<_, Error>(keys.bool(key)?.unwrap_or(false));
        let (qkv_bias, out_bias, mlp_bias) = match architecture {
            Architecture::Llama => {
                let attention = flag("attention_bias")?;
                (attention, attention, flag("mlp_bias")?)
            }
            Architecture::Qwen3 => {
                let attention = flag("attention_bias")?;
                (attention, attention, false)
            }
            Architecture::Mistral => (false, false, false),
            Architecture::Qwen2 => (true, false, false),
        };
        let context = keys.u64("max_position_embeddings")?.unwrap_or(architecture.default_context());
        let raw = RawConfig {
            architecture,
            hidden_size: need("hidden_size")?,
            intermediate_size: need("intermediate_size")?,
            num_hidden_layers: need("num_hidden_layers")?,
            num_attention_heads: need("num_attention_heads")?,
            num_key_value_heads: keys.u64("num_key_value_heads")?,
            head_dim: keys.u64("head_dim")?.or((architecture == Architecture::Qwen3).then_some(128)),
            vocab_size: need("vocab_size")?,
            max_position_embeddings: window(&keys, architecture)?
                .map_or(context, |window| window.min(context)),
            rms_norm_eps: keys.f64("rms_norm_eps")?.unwrap_or(1e-6),
            rope_theta,
            rope_scaling,
            tie_word_embeddings: flag("tie_word_embeddings")?,
            qkv_bias,
            out_bias,
            mlp_bias,
        };
        raw.validate(path, &JSON_KEYS)
    }
}

fn unsupported(what: String, remedy: &str) -> Error {
    Error::Unsupported { what, remedy: remedy.to_owned() }
}

fn architecture(keys: &JsonKeys) -> Result<Architecture> {
    let names = keys.list("architectures", "names of architectures", |v| v.as_str())?;
    let model_type = keys.string("model_type")?;
    let named = |architecture: &Architecture| names.contains(&architecture.name());
    let typed = |architecture: &Architecture| model_type == Some(architecture.model_type());
    let fits = |architecture: &Architecture| match (names.is_empty(), model_type) {
        (true, _) => typed(architecture),
        (false, None) => named(architecture),
        (false, Some(_)) => named(architecture) && typed(architecture),
    };
    if let Some(architecture) = Architecture::ALL.into_iter().find(fits) {
        return Ok(architecture);
    }
    let found = match (names.as_slice(), model_type) {
        ([], None) => return keys.need("architectures", None),
        ([], Some(model_type)) => format!("model type {model_type}"),
        (names, Some(model_type)) if Architecture::ALL.iter().any(named) => {
            format!("{} with model type {model_type}", names.join(", "))
        }
        (names, _) => format!("architecture {}", names.join(", ")),
    };
    Err(unsupported(found, &format!("supported: {}", Architecture::names())))
}

/// Positions that a sliding window spans, if the model has one.
fn window(keys: &JsonKeys, architecture: Architecture) -> Result<Option<u64>> {
    let window = keys.u64("sliding_window")?;
    let used = match architecture {
        Architecture::Llama => false,
        Architecture::Mistral => true,
        Architecture::Qwen2 | Architecture::Qwen3 => keys.bool("use_sliding_window")?.unwrap_or(false),
    };
    match window.filter(|_| used) {
        Some(0) => Err(keys.error("sliding_window", "0 positions".to_owned())),
        window => Ok(window),
    }
}

/// Refuses what would change the model's results and is not implemented.
fn check_features(keys: &JsonKeys) -> Result<()> {
    let activation = keys.string("hidden_act")?.unwrap_or("silu");
    // transformers calls the same function by both names.
    if !matches!(activation, "silu" | "swish") {
        return Err(unsupported(format!("hidden_act {activation}"), "supported: silu"));
    }
    if let Some(quantization) = keys.object("quantization_config")? {
        let method = quantization.string("quant_method")?.unwrap_or("of an unnamed method");
        let remedy = "use an unquantised checkpoint or a GGUF file";
        return Err(unsupported(format!("quantization_config {method}"), remedy));
    }
    Ok(())
}

/// Rotary base and scaling, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling`.
fn rope(keys: &JsonKeys) -> Result<(f64, RopeScaling)> {
    let outer_theta = keys.f64("rope_theta")?;
    let partial = keys.f64("partial_rotary_factor")?;
    let inner = match keys.object("rope_parameters")? {
        Some(parameters) => Some(parameters),
        None => keys.object("rope_scaling")?,
    };
    let Some(inner) = inner else {
        check_partial(partial)?;
        return Ok((outer_theta.unwrap_or(10_000.0), RopeScaling::Default));
    };
    check_partial(inner.f64("partial_rotary_factor")?.or(partial))?;
    let theta = inner.f64("rope_theta")?.or(outer_theta).unwrap_or(10_000.0);
    Ok((theta, scaling(&inner)?))
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
    let need = |key| Ok::<_, Error>(keys.need(key, keys.f64(key)?)? as f32);
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
