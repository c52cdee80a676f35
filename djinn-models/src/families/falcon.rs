//! Falcon (Almazrouei et al. 2023): attention and MLP side by side. 7B has one key head and one norm in a block, the
//! decoder of 11B, 40B and 180B groups its keys and may norm both, and RW has ALiBi and biases.

use super::rotary::rotary;
use super::{Family, KEYS, gelu, norm, refuse, sizes, unsupported};
use crate::Result;
use crate::decoder::{
    Biases, Block, Decoder, Fused, KeyNames, Mlp, NormKind, Positions, Qkv, Sizes, Tensors,
};
use crate::open::JsonKeys;

pub(super) const FAMILY: Family = Family {
    architecture: "FalconForCausalLM",
    model_type: "falcon",
    keys: KeyNames {
        intermediate: "ffn_hidden_size",
        kv_heads: "num_kv_heads",
        eps: "layer_norm_epsilon",
        biases: &["bias"],
        ..KEYS
    },
    read,
};

const QKV: &str = "self_attention.query_key_value";

const TENSORS: Tensors = Tensors {
    prefix: "transformer.",
    blocks: "h.",
    embedding: "word_embeddings",
    final_norm: "ln_f",
    norms: ["input_layernorm", "post_attention_layernorm"],
    qkv: Qkv::Fused(QKV, Fused::Grouped),
    out: "self_attention.dense",
    mlp: ["", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"],
    ..Tensors::NONE
};

fn read(keys: &JsonKeys, family: &Family) -> Result<Decoder> {
    let sizes = sizes(keys, family, 2048, None)?;
    let flag = |key, default| Ok::<_, crate::Error>(keys.bool(key)?.unwrap_or(default));
    let (block, kv_heads, tensors) = if flag("new_decoder_architecture", false)? {
        refuse(keys, "parallel_attn", true, true)?;
        let (block, norms) = match keys.u64("num_ln_in_parallel_attn")?.unwrap_or(2) {
            1 => (Block::Parallel, TENSORS.norms),
            2 => (Block::ParallelTwoNorms, ["ln_attn", "ln_mlp"]),
            norms => {
                return Err(unsupported(format!("num_ln_in_parallel_attn {norms}"), "supported: 1, 2"));
            }
        };
        (block, sizes.kv_heads, Tensors { norms, ..TENSORS })
    } else {
        if let Some(norms) = keys.u64("num_ln_in_parallel_attn")?.filter(|&norms| norms != 1) {
            let remedy = "supported without new_decoder_architecture: 1";
            return Err(unsupported(format!("num_ln_in_parallel_attn {norms}"), remedy));
        }
        let block = if flag("parallel_attn", true)? { Block::Parallel } else { Block::Sequential };
        match flag("multi_query", true)? {
            true => (block, 1, Tensors { qkv: Qkv::Fused(QKV, Fused::InTurn), ..TENSORS }),
            false => (block, sizes.heads, TENSORS),
        }
    };
    let bias = keys.flag("bias")?;
    Ok(Decoder {
        architecture: family.architecture,
        sizes: Sizes { kv_heads, ..sizes },
        norm: norm(keys, family, NormKind::Layer, 1e-5)?,
        positions: match keys.flag("alibi")? {
            true => Positions::Alibi,
            false => Positions::Rotary(rotary(keys, sizes.head_dim, 10_000.0)?),
        },
        block,
        mlp: Mlp::Gelu(gelu(keys, "activation", "gelu")?),
        biases: Biases { qkv: bias, out: bias, mlp: bias, head: false },
        head_norms: false,
        window: None,
        tied: keys.bool("tie_word_embeddings")?.unwrap_or(true),
        tensors,
    })
}
