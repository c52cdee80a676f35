//! Qwen2 and 2.5 (Yang et al. 2024): Llama with biases on queries, keys and values.

use super::llama::{DEFAULTS, base};
use super::{Family, KEYS, mixed_window};
use crate::Result;
use crate::decoder::{Biases, Decoder};
use crate::open::JsonKeys;

pub(super) const FAMILY: Family =
    Family { architecture: "Qwen2ForCausalLM", model_type: "qwen2", keys: KEYS, read };

fn read(keys: &JsonKeys, family: &Family) -> Result<Decoder> {
    let base = base(keys, family, DEFAULTS)?;
    let window = mixed_window(keys, base.sizes.layers)?;
    Ok(Decoder { biases: Biases { qkv: true, ..Biases::default() }, window, ..base })
}
