//! Llama 2 and 3 (Touvron et al. 2023): RMSNorm before each sublayer, rotary positions, SwiGLU; grouped queries
//! (Ainslie et al. 2023) and Llama 3's rope scaling. The families after it begin with [`base`].

use super::rotary::rotary;
use super::{Family, KEYS, norm, sizes, unsupported};
use crate::Result;
use crate::decoder::{Biases, Block, Decoder, KeyNames, Mlp, NormKind, Positions, Qkv, Tensors};
use crate::open::JsonKeys;

pub(super) const FAMILY: Family = Family {
    architecture: "LlamaForCausalLM",
    model_type: "llama",
    keys: KeyNames { biases: &["attention_bias", "mlp_bias"], ..KEYS },
    read,
};

pub(super) const TENSORS: Tensors = Tensors {
    prefix: "model.",
    blocks: "layers.",
    embedding: "embed_tokens",
    final_norm: "norm",
    norms: ["input_layernorm", "post_attention_layernorm"],
    qkv: Qkv::Split(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    head_norms: ["self_attn.q_norm", "self_attn.k_norm"],
    out: "self_attn.o_proj",
    mlp: ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"],
    // A buffer that early versions of transformers saved.
    ignored: &["self_attn.rotary_emb.inv_freq"],
    ..Tensors::NONE
};

fn read(keys: &JsonKeys, family: &Family) -> Result<Decoder> {
    let attention = keys.flag("attention_bias")?;
    let biases = Biases { qkv: attention, out: attention, mlp: keys.flag("mlp_bias")?, head: false };
    Ok(Decoder { biases, ..base(keys, family, Defaults { context: 2048, ..DEFAULTS })? })
}

/// transformers' defaults.
pub(super) struct Defaults {
    pub(super) context: u64,
    pub(super) eps: f64,
    pub(super) theta: f64,
    /// `None` if heads share the width.
    pub(super) head_dim: Option<u64>,
}

pub(super) const DEFAULTS: Defaults =
    Defaults { context: 32_768, eps: 1e-6, theta: 10_000.0, head_dim: None };

/// A Llama without biases.
pub(super) fn base(keys: &JsonKeys, family: &Family, defaults: Defaults) -> Result<Decoder> {
    let activation = keys.string("hidden_act")?.unwrap_or("silu");
    // transformers has two names for the same function.
    if !matches!(activation, "silu" | "swish") {
        return Err(unsupported(format!("hidden_act {activation}"), "supported: silu"));
    }
    keys.need(family.keys.intermediate, keys.u64(family.keys.intermediate)?)?;
    let sizes = sizes(keys, family, defaults.context, defaults.head_dim)?;
    Ok(Decoder {
        architecture: family.architecture,
        sizes,
        norm: norm(keys, family, NormKind::Rms, defaults.eps)?,
        positions: Positions::Rotary(rotary(keys, sizes.head_dim, defaults.theta)?),
        block: Block::Sequential,
        mlp: Mlp::SwiGlu,
        biases: Biases::default(),
        head_norms: false,
        window: None,
        tied: keys.flag("tie_word_embeddings")?,
        tensors: TENSORS,
    })
}
