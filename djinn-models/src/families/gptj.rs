//! GPT-J (Wang & Komatsuzaki 2021): attention and MLP side by side behind one layer norm; the first elements of each
//! head are rotated in neighbouring pairs.

use super::{Family, GPT_KEYS, gelu, norm, sizes};
use crate::Result;
use crate::decoder::{Biases, Block, Decoder, Mlp, NormKind, Positions, Qkv, RopeScaling, Rotary, Tensors};
use crate::open::JsonKeys;
use djinn_srg::RopeStyle;

pub(super) const FAMILY: Family =
    Family { architecture: "GPTJForCausalLM", model_type: "gptj", keys: GPT_KEYS, read };

const TENSORS: Tensors = Tensors {
    prefix: "transformer.",
    blocks: "h.",
    embedding: "wte",
    final_norm: "ln_f",
    norms: ["ln_1", ""],
    qkv: Qkv::Split(["attn.q_proj", "attn.k_proj", "attn.v_proj"]),
    out: "attn.out_proj",
    mlp: ["", "mlp.fc_in", "mlp.fc_out"],
    // The causal mask, which early versions of transformers saved.
    ignored: &["attn.bias", "attn.masked_bias"],
    ..Tensors::NONE
};

fn read(keys: &JsonKeys, family: &Family) -> Result<Decoder> {
    // The default is 64; null would rotate by another rule.
    let dim = match keys.contains(family.keys.rotary_dim) {
        true => keys.need(family.keys.rotary_dim, keys.u64(family.keys.rotary_dim)?)?,
        false => 64,
    };
    let rotary =
        Rotary { dim, style: RopeStyle::Interleaved, theta: 10_000.0, scaling: RopeScaling::Default };
    Ok(Decoder {
        architecture: family.architecture,
        sizes: sizes(keys, family, 2048, None)?,
        norm: norm(keys, family, NormKind::Layer, 1e-5)?,
        positions: Positions::Rotary(rotary),
        block: Block::Parallel,
        mlp: Mlp::Gelu(gelu(keys, "activation_function", "gelu_new")?),
        biases: Biases { qkv: false, out: false, mlp: true, head: true },
        head_norms: false,
        window: None,
        tied: keys.flag("tie_word_embeddings")?,
        tensors: TENSORS,
    })
}
