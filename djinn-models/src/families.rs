//! The model families: each file reads its configuration and names its tensors.
//!
//! `docs/adding-a-model.md` explains one.

mod falcon;
mod gguf;
mod gpt2;
mod gpt_neox;
mod gptj;
mod llama;
mod mistral;
mod mixtral;
mod qwen2;
mod qwen3;
mod qwen3_moe;
mod rotary;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use gguf::from_gguf;

use crate::decoder::{Decoder, KeyNames, Norm, NormKind, Origin, Sizes, Window};
use crate::open::JsonKeys;
use crate::{Error, Result};
use djinn_srg::GeluForm;

/// A family, as `config.json` names it.
pub(crate) struct Family {
    /// In `architectures`.
    pub(crate) architecture: &'static str,
    pub(crate) model_type: &'static str,
    pub(crate) keys: KeyNames,
    /// Reads the rest.
    read: fn(&JsonKeys, &Family) -> Result<Decoder>,
}

const FAMILIES: [&Family; 10] = [
    &gpt2::FAMILY,
    &gptj::FAMILY,
    &gpt_neox::FAMILY,
    &llama::FAMILY,
    &mistral::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
    &qwen3_moe::FAMILY,
    &mixtral::FAMILY,
    &falcon::FAMILY,
];

/// The usual names of sizes in `config.json`.
pub(crate) const KEYS: KeyNames = KeyNames {
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
    rotary_dim: "partial_rotary_factor",
    window: "sliding_window",
    experts: "num_local_experts",
    chosen: "num_experts_per_tok",
    biases: &[],
};

/// Those of GPT-2 and its time.
const GPT_KEYS: KeyNames = KeyNames {
    hidden: "n_embd",
    intermediate: "n_inner",
    layers: "n_layer",
    heads: "n_head",
    context: "n_positions",
    eps: "layer_norm_epsilon",
    rotary_dim: "rotary_dim",
    ..KEYS
};

/// The decoder of a configuration, as written by any version of transformers.
///
/// # Errors
/// [`Error::Unsupported`] names another architecture or an unsupported feature. [`Error::Config`] names a key that is
/// missing or out of range.
pub(crate) fn from_json(keys: &JsonKeys) -> Result<Decoder> {
    let family = family(keys)?;
    let decoder = (family.read)(keys, family)?;
    decoder.check(&origin(keys, family))?;
    Ok(decoder)
}

/// The family that `architectures` and `model_type` name.
pub(crate) fn family(keys: &JsonKeys) -> Result<&'static Family> {
    let names = keys.list("architectures", "names of architectures", |v| v.as_str())?;
    let model_type = keys.string("model_type")?;
    let named = |family: &Family| names.contains(&family.architecture);
    let typed = |family: &Family| model_type == Some(family.model_type);
    let fits = |family: &&Family| match (names.is_empty(), model_type) {
        (true, _) => typed(family),
        (false, None) => named(family),
        (false, Some(_)) => named(family) && typed(family),
    };
    if let Some(family) = FAMILIES.into_iter().find(fits) {
        return Ok(family);
    }
    let found = match (names.as_slice(), model_type) {
        ([], None) => return keys.need("architectures", None),
        ([], Some(model_type)) => format!("model type {model_type}"),
        (names, Some(model_type)) if FAMILIES.into_iter().any(named) => {
            format!("{} with model type {model_type}", names.join(", "))
        }
        (names, _) => format!("architecture {}", names.join(", ")),
    };
    let known = FAMILIES.map(|family| family.architecture).join(", ");
    Err(unsupported(found, &format!("supported: {known}")))
}

fn origin<'a>(keys: &'a JsonKeys, family: &'a Family) -> Origin<'a> {
    Origin { path: keys.path(), prefix: "", keys: &family.keys }
}

fn unsupported(what: String, remedy: &str) -> Error {
    Error::Unsupported { what, remedy: remedy.to_owned() }
}

/// Refuses a flag that would change the results and is not supported.
fn refuse(keys: &JsonKeys, key: &str, default: bool, supported: bool) -> Result<()> {
    match keys.bool(key)?.unwrap_or(default) {
        value if value == supported => Ok(()),
        value => Err(unsupported(format!("{key} {value}"), &format!("supported: {supported}"))),
    }
}

/// The sizes. `context` and `head_dim` are transformers' defaults. Other defaults: heads share the width, there are as
/// many key as query heads, and an MLP is four times as wide as its input.
fn sizes(keys: &JsonKeys, family: &Family, context: u64, head_dim: Option<u64>) -> Result<Sizes> {
    let need = |key| keys.need(key, keys.u64(key)?);
    let (hidden, heads) = (need(family.keys.hidden)?, need(family.keys.heads)?);
    let kv_heads = keys.u64(family.keys.kv_heads)?.unwrap_or(heads);
    let intermediate = keys.u64(family.keys.intermediate)?.unwrap_or(hidden.saturating_mul(4));
    let head_dim = match keys.u64(family.keys.head_dim)?.or(head_dim) {
        Some(size) => size,
        None => Sizes::split_head(hidden, heads, &origin(keys, family))?,
    };
    let context = keys.u64(family.keys.context)?.unwrap_or(context);
    let (layers, vocab) = (need(family.keys.layers)?, need(family.keys.vocab)?);
    Ok(Sizes { hidden, intermediate, layers, heads, kv_heads, head_dim, vocab, context })
}

fn norm(keys: &JsonKeys, family: &Family, kind: NormKind, default: f64) -> Result<Norm> {
    Ok(Norm { kind, eps: keys.f64(family.keys.eps)?.unwrap_or(default) as f32 })
}

/// The activation of an MLP without a gate.
fn gelu(keys: &JsonKeys, key: &str, default: &str) -> Result<GeluForm> {
    match keys.string(key)?.unwrap_or(default) {
        "gelu" => Ok(GeluForm::Erf),
        // transformers has several names for the same function.
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Ok(GeluForm::Tanh),
        other => Err(unsupported(format!("{key} {other}"), "supported: gelu, gelu_new, gelu_pytorch_tanh")),
    }
}

/// The default of a window's positions.
const DEFAULT_WINDOW: u64 = 4096;

/// The windows of a family in which only some blocks have one.
fn mixed_window(keys: &JsonKeys, layers: u64) -> Result<Option<Window>> {
    let types = keys.list("layer_types", "a list of layer types", |v| v.as_str())?;
    let full = keys.u64("max_window_layers")?.unwrap_or(28);
    if !keys.bool("use_sliding_window")?.unwrap_or(false) {
        return Ok(None);
    }
    // null means no window; a missing key means transformers' default.
    let default = (!keys.contains("sliding_window")).then_some(DEFAULT_WINDOW);
    let Some(positions) = keys.u64("sliding_window")?.or(default) else { return Ok(None) };
    let blocks = if types.is_empty() {
        (0..layers.min(1 << 16)).map(|block| block >= full).collect()
    } else {
        let windowed = |kind: &&str| match *kind {
            "sliding_attention" => Ok(true),
            "full_attention" => Ok(false),
            other => Err(unsupported(
                format!("layer type {other}"),
                "supported: full_attention, sliding_attention",
            )),
        };
        types.iter().map(windowed).collect::<Result<_>>()?
    };
    Ok(Some(Window { positions, blocks }))
}
