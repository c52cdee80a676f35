//! GPT-NeoX and Pythia (Black et al. 2022; Biderman et al. 2023): attention and MLP side by side with a layer norm
//! each, or one after the other; the first quarter of each head is rotated in halves.

use super::rotary::partial_rotary;
use super::{Family, KEYS, gelu, norm, sizes, unsupported};
use crate::Result;
use crate::decoder::{
    Biases, Block, Decoder, Fused, KeyNames, Mlp, NormKind, Positions, Qkv, Rotary, Sizes, Tensors,
};
use crate::open::JsonKeys;

pub(super) const FAMILY: Family = Family {
    architecture: "GPTNeoXForCausalLM",
    model_type: "gpt_neox",
    keys: KeyNames {
        eps: "layer_norm_eps",
        theta: "rotary_emb_base",
        rotary_dim: "rotary_pct",
        biases: &["attention_bias"],
        ..KEYS
    },
    read,
};

const TENSORS: Tensors = Tensors {
    prefix: "gpt_neox.",
    blocks: "layers.",
    embedding: "embed_in",
    final_norm: "final_layer_norm",
    head: "embed_out",
    norms: ["input_layernorm", "post_attention_layernorm"],
    qkv: Qkv::Fused("attention.query_key_value", Fused::Grouped),
    out: "attention.dense",
    mlp: ["", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"],
    // The causal mask and the frequencies, which early versions of transformers saved.
    ignored: &["attention.bias", "attention.masked_bias", "attention.rotary_emb.inv_freq"],
    ..Tensors::NONE
};

fn read(keys: &JsonKeys, family: &Family) -> Result<Decoder> {
    keys.need(family.keys.intermediate, keys.u64(family.keys.intermediate)?)?;
    let sizes = sizes(keys, family, 2048, None)?;
    let rotary = partial_rotary(keys, family, sizes.head_dim, 10_000.0, 0.25)?;
    refuse_unread(keys, &rotary, sizes.head_dim)?;
    let attention = keys.bool("attention_bias")?.unwrap_or(true);
    Ok(Decoder {
        architecture: family.architecture,
        // Each query head has its own key.
        sizes: Sizes { kv_heads: sizes.heads, ..sizes },
        norm: norm(keys, family, NormKind::Layer, 1e-5)?,
        positions: Positions::Rotary(rotary),
        block: match keys.bool("use_parallel_residual")?.unwrap_or(true) {
            true => Block::ParallelTwoNorms,
            false => Block::Sequential,
        },
        mlp: Mlp::Gelu(gelu(keys, "hidden_act", "gelu")?),
        biases: Biases { qkv: attention, out: attention, mlp: true, head: false },
        head_norms: false,
        window: None,
        tied: keys.flag("tie_word_embeddings")?,
        tensors: TENSORS,
    })
}

/// Outside `rope_parameters`, transformers reads the rotation from this family's names only. Refuses other families'
/// names with different values.
fn refuse_unread(keys: &JsonKeys, rotary: &Rotary, head_dim: u64) -> Result<()> {
    let theta = keys.f64("rope_theta")?.filter(|&theta| theta as f32 != rotary.theta);
    if let Some(theta) = theta {
        return Err(unsupported(format!("rope_theta {theta}"), "write rotary_emb_base"));
    }
    let factor = keys.f64("partial_rotary_factor")?;
    if let Some(factor) = factor.filter(|&factor| Rotary::part(head_dim, factor) != rotary.dim) {
        return Err(unsupported(format!("partial_rotary_factor {factor}"), "write rotary_pct"));
    }
    Ok(())
}
