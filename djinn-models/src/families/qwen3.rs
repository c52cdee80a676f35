//! Qwen3 (Yang et al. 2025): Llama with a norm of each query and key head (Henry et al. 2020).

use super::llama::{DEFAULTS, Defaults, base};
use super::{Family, KEYS, mixed_window};
use crate::Result;
use crate::decoder::{Biases, Decoder, KeyNames};
use crate::open::JsonKeys;

pub(super) const FAMILY: Family = Family {
    architecture: "Qwen3ForCausalLM",
    model_type: "qwen3",
    keys: KeyNames { biases: &["attention_bias"], ..KEYS },
    read,
};

fn read(keys: &JsonKeys, family: &Family) -> Result<Decoder> {
    let attention = keys.flag("attention_bias")?;
    let base = base(keys, family, Defaults { head_dim: Some(128), ..DEFAULTS })?;
    let window = mixed_window(keys, base.sizes.layers)?;
    let biases = Biases { qkv: attention, out: attention, ..Biases::default() };
    Ok(Decoder { biases, window, head_norms: true, ..base })
}
