//! Unread keys of an architecture: harmless ones are ignored, others are refused.
//!
//! A model with an additional feature has an additional key under the same architecture, so an unknown key may change
//! the results.

use super::{EXPERT_INTERMEDIATE, File, KEYS};
use crate::Result;
use crate::decoder::{Decoder, Mlp, NormKind, Positions};
use crate::families::unsupported;
use crate::gguf::{Gguf, Value};

/// Keys that are read, or determined by the tensors as well.
const EVERYWHERE: [&str; 11] = [
    KEYS.hidden,
    KEYS.intermediate,
    KEYS.layers,
    KEYS.heads,
    KEYS.kv_heads,
    KEYS.head_dim,
    KEYS.vocab,
    KEYS.context,
    "attention.value_length",
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
];

/// Keys that are read for rotary positions.
const ROTARY: [&str; 5] =
    [KEYS.theta, KEYS.rotary_dim, "rope.scaling.type", "rope.scaling.factor", "rope.scale_linear"];

/// Values of a key that change nothing.
enum Harmless {
    /// One of these numbers.
    Numbers(&'static [f64]),
    Flag(bool),
    Texts(&'static [&'static str]),
    Anything,
}

use Harmless::{Anything, Flag, Numbers, Texts};

const NOT_READ: [(&str, Harmless); 28] = [
    // The orders of rows that the converters of Llama and Falcon write.
    ("tensor_data_layout", Texts(&["reference", "Meta AI original pth", "jploski"])),
    // YaRN's original context, and a note about training.
    ("rope.scaling.original_context_length", Anything),
    ("rope.scaling.finetuned", Anything),
    ("rope.scaling.attn_factor", Numbers(&[1.0])),
    ("rope.scaling.yarn_log_multiplier", Numbers(&[0.0])),
    ("pooling_type", Numbers(&[0.0])),
    ("attention.causal", Flag(true)),
    (KEYS.window, Numbers(&[0.0])),
    ("attention.scale", Numbers(&[0.0])),
    ("attention.max_alibi_bias", Numbers(&[0.0])),
    ("attention.clamp_kqv", Numbers(&[0.0])),
    ("attn_logit_softcapping", Numbers(&[0.0])),
    ("final_logit_softcapping", Numbers(&[0.0])),
    ("router_logit_softcapping", Numbers(&[0.0])),
    // In llama.cpp, 0 means unset.
    ("logit_scale", Numbers(&[0.0, 1.0])),
    ("residual_scale", Numbers(&[0.0, 1.0])),
    ("embedding_scale", Numbers(&[0.0, 1.0])),
    (KEYS.experts, Numbers(&[0.0])),
    (KEYS.chosen, Numbers(&[0.0])),
    ("expert_shared_count", Numbers(&[0.0])),
    ("expert_shared_feed_forward_length", Numbers(&[0.0])),
    ("expert_group_count", Numbers(&[0.0, 1.0])),
    ("expert_group_used_count", Numbers(&[0.0, 1.0])),
    ("expert_weights_scale", Numbers(&[0.0, 1.0])),
    ("expert_weights_norm", Flag(true)),
    // Unset, or softmax.
    ("expert_gating_func", Numbers(&[0.0, 1.0])),
    ("leading_dense_block_count", Numbers(&[0.0])),
    ("nextn_predict_layers", Numbers(&[0.0])),
];

impl Harmless {
    fn allows(&self, value: &Value) -> bool {
        match (self, value) {
            (Anything, _) => true,
            (Flag(flag), Value::Bool(found)) => found == flag,
            (Texts(texts), Value::String(found)) => texts.contains(&found.as_str()),
            (Numbers(numbers), Value::F32(found)) => numbers.contains(&f64::from(*found)),
            (Numbers(numbers), Value::F64(found)) => numbers.contains(found),
            (Numbers(numbers), value) => value.to_u64().is_some_and(|n| numbers.contains(&(n as f64))),
            _ => false,
        }
    }

    fn list(&self) -> String {
        match self {
            Anything => "anything".to_owned(),
            Flag(flag) => flag.to_string(),
            Texts(texts) => texts.join(", "),
            Numbers(numbers) => numbers.iter().map(f64::to_string).collect::<Vec<_>>().join(", "),
        }
    }
}

impl File<'_> {
    /// Refuses an unread key of the architecture that may change the results of `decoder`.
    pub(super) fn refuse_unread_keys(&self, decoder: &Decoder) -> Result<()> {
        for (key, value) in self.gguf.metadata() {
            let Some(name) = key.strip_prefix(self.prefix) else { continue };
            if is_read(name, decoder) {
                continue;
            }
            match NOT_READ.iter().find(|(known, _)| *known == name) {
                Some((_, harmless)) if harmless.allows(value) => {}
                Some((_, harmless)) => {
                    let what = format!("{key} = {}", value.summary());
                    return Err(unsupported(what, &format!("supported: {}", harmless.list())));
                }
                None => {
                    let remedy = "it may change the results; use the model's Hugging Face checkpoint";
                    return Err(unsupported(format!("the key {}", shown(key)), remedy));
                }
            }
        }
        Ok(())
    }
}

fn is_read(name: &str, decoder: &Decoder) -> bool {
    let rotary = matches!(decoder.positions, Positions::Rotary(_)) && ROTARY.contains(&name);
    let window = decoder.norm.kind == NormKind::Rms && name == KEYS.window;
    let experts = matches!(decoder.mlp, Mlp::Experts { .. })
        && [KEYS.experts, KEYS.chosen, EXPERT_INTERMEDIATE].contains(&name);
    EVERYWHERE.contains(&name) || rotary || window || experts
}

/// Refuses a GGUF file that is not a model: an adapter, an image encoder, an importance matrix.
pub(super) fn refuse_other_files(gguf: &Gguf) -> Result<()> {
    match gguf.optional("general.type", Gguf::get_str)? {
        None | Some("model") => Ok(()),
        Some(kind) => {
            Err(unsupported(format!("a GGUF file of the type {}", shown(kind)), "use the model's own file"))
        }
    }
}

/// A file's text for a message: short, on one line.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(80).flat_map(char::escape_debug).collect()
}
