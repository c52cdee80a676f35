//! Qwen3 with experts (Yang et al. 2025), such as Qwen3-30B-A3B: a Qwen3 whose blocks all have several MLPs and a router.

use super::llama::{DEFAULTS, TENSORS, base};
use super::mistral::window;
use super::{DEFAULT_WINDOW, Family, KEYS, unsupported};
use crate::Result;
use crate::decoder::{Biases, Decoder, Experts, KeyNames, Mlp, Tensors};
use crate::open::JsonKeys;

pub(super) const FAMILY: Family = Family {
    architecture: "Qwen3MoeForCausalLM",
    model_type: "qwen3_moe",
    keys: KeyNames {
        intermediate: "moe_intermediate_size",
        experts: "num_experts",
        biases: &["attention_bias"],
        ..KEYS
    },
    read,
};

fn read(keys: &JsonKeys, family: &Family) -> Result<Decoder> {
    refuse_dense_blocks(keys)?;
    // transformers 5 writes Mixtral's name.
    let count = keys.u64(family.keys.experts)?.or(keys.u64(KEYS.experts)?);
    let mlp = Mlp::Experts {
        count: keys.need(family.keys.experts, count)?,
        chosen: keys.need(family.keys.chosen, keys.u64(family.keys.chosen)?)?,
        renormalise: keys.flag("norm_topk_prob")?,
    };
    let experts = Experts::Apart { module: "mlp.experts", names: ["gate_proj", "up_proj", "down_proj"] };
    let tensors = Tensors { router: "mlp.gate", experts, ..TENSORS };
    let attention = keys.flag("attention_bias")?;
    let biases = Biases { qkv: attention, out: attention, ..Biases::default() };
    let window = match keys.flag("use_sliding_window")? {
        true => window(keys, Some(DEFAULT_WINDOW))?,
        false => None,
    };
    Ok(Decoder { mlp, biases, window, head_norms: true, tensors, ..base(keys, family, DEFAULTS)? })
}

/// Refuses a configuration in which some blocks have one MLP.
fn refuse_dense_blocks(keys: &JsonKeys) -> Result<()> {
    let step = keys.u64("decoder_sparse_step")?.unwrap_or(1);
    if step != 1 {
        return Err(unsupported(format!("decoder_sparse_step {step}"), "supported: 1"));
    }
    let dense = keys.list("mlp_only_layers", "a list of layers", |v| v.as_u64())?;
    if !dense.is_empty() {
        return Err(unsupported("mlp_only_layers".to_owned(), "supported: none"));
    }
    Ok(())
}
