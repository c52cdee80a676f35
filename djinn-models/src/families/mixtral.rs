//! Mixtral (Jiang et al. 2024): Mistral with several MLPs in each block; a router chooses some for each row.

use super::llama::{DEFAULTS, Defaults, TENSORS, base};
use super::mistral::window;
use super::{Family, KEYS};
use crate::Result;
use crate::decoder::{Decoder, Experts, Mlp, Tensors};
use crate::open::JsonKeys;

pub(super) const FAMILY: Family =
    Family { architecture: "MixtralForCausalLM", model_type: "mixtral", keys: KEYS, read };

fn read(keys: &JsonKeys, family: &Family) -> Result<Decoder> {
    let count = keys.u64(family.keys.experts)?.unwrap_or(8);
    let chosen = keys.u64(family.keys.chosen)?.unwrap_or(2);
    let experts = Experts::Apart { module: "block_sparse_moe.experts", names: ["w1", "w3", "w2"] };
    let tensors = Tensors { router: "block_sparse_moe.gate", experts, ..TENSORS };
    let defaults = Defaults { context: 131_072, eps: 1e-5, theta: 1e6, ..DEFAULTS };
    let window = window(keys, None)?;
    let mlp = Mlp::Experts { count, chosen, renormalise: true };
    Ok(Decoder { mlp, window, tensors, ..base(keys, family, defaults)? })
}
