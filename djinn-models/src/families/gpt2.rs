//! GPT-2 (Radford et al. 2019): layer norms before each sublayer, learned positions, GELU, matrices stored
//! `[inputs, outputs]`.

use super::{Family, GPT_KEYS, gelu, norm, refuse, sizes};
use crate::Result;
use crate::decoder::{Biases, Block, Decoder, Fused, Mlp, NormKind, Positions, Qkv, Tensors};
use crate::open::JsonKeys;

pub(super) const FAMILY: Family =
    Family { architecture: "GPT2LMHeadModel", model_type: "gpt2", keys: GPT_KEYS, read };

const TENSORS: Tensors = Tensors {
    prefix: "transformer.",
    blocks: "h.",
    embedding: "wte",
    positions: "wpe",
    final_norm: "ln_f",
    norms: ["ln_1", "ln_2"],
    qkv: Qkv::Fused("attn.c_attn", Fused::InTurn),
    out: "attn.c_proj",
    mlp: ["", "mlp.c_fc", "mlp.c_proj"],
    transposed: true,
    // The causal mask, which early versions of transformers saved.
    ignored: &["attn.bias", "attn.masked_bias"],
    ..Tensors::NONE
};

fn read(keys: &JsonKeys, family: &Family) -> Result<Decoder> {
    refuse(keys, "scale_attn_weights", true, true)?;
    refuse(keys, "scale_attn_by_inverse_layer_idx", false, false)?;
    refuse(keys, "add_cross_attention", false, false)?;
    Ok(Decoder {
        architecture: family.architecture,
        sizes: sizes(keys, family, 1024, None)?,
        norm: norm(keys, family, NormKind::Layer, 1e-5)?,
        positions: Positions::Learned,
        block: Block::Sequential,
        mlp: Mlp::Gelu(gelu(keys, "activation_function", "gelu_new")?),
        biases: Biases { qkv: true, out: true, mlp: true, head: false },
        head_norms: false,
        window: None,
        tied: keys.bool("tie_word_embeddings")?.unwrap_or(true),
        tensors: TENSORS,
    })
}
