//! Mistral (Jiang et al. 2023): Llama with grouped queries and, in its first version, a sliding window.

use super::llama::{DEFAULTS, Defaults, base};
use super::{DEFAULT_WINDOW, Family, KEYS};
use crate::Result;
use crate::decoder::{Decoder, Window};
use crate::open::JsonKeys;

pub(super) const FAMILY: Family =
    Family { architecture: "MistralForCausalLM", model_type: "mistral", keys: KEYS, read };

fn read(keys: &JsonKeys, family: &Family) -> Result<Decoder> {
    // null means no window; a missing key means transformers' default.
    let default = (!keys.contains("sliding_window")).then_some(DEFAULT_WINDOW);
    let window = window(keys, default)?;
    Ok(Decoder { window, ..base(keys, family, Defaults { context: 131_072, ..DEFAULTS })? })
}

/// The window of all blocks.
pub(super) fn window(keys: &JsonKeys, default: Option<u64>) -> Result<Option<Window>> {
    let positions = keys.u64("sliding_window")?.or(default);
    Ok(positions.map(|positions| Window { positions, blocks: Vec::new() }))
}
