//! Mistral (Jiang et al. 2023): Llama with grouped queries and, in its first version, a sliding window.

use super::llama::{DEFAULTS, Defaults, base};
use super::{DEFAULT_WINDOW, Family, KEYS};
use crate::Result;
use crate::decoder::{Decoder, Window};
use crate::open::JsonKeys;

pub(super) const FAMILY: Family =
    Family { architecture: "MistralForCausalLM", model_type: "mistral", keys: KEYS, read };

fn read(keys: &JsonKeys, family: &Family) -> Result<Decoder> {
    let window = window(keys, Some(DEFAULT_WINDOW))?;
    Ok(Decoder { window, ..base(keys, family, Defaults { context: 131_072, ..DEFAULTS })? })
}

/// The window of all blocks. null means no window; a missing key means `default`, transformers'.
pub(super) fn window(keys: &JsonKeys, default: Option<u64>) -> Result<Option<Window>> {
    let missing = !keys.contains("sliding_window");
    let positions = keys.u64("sliding_window")?.or(default.filter(|_| missing));
    Ok(positions.map(|positions| Window { positions, blocks: Vec::new() }))
}
