//! What a checkpoint says about sampling and about where a text ends.

use super::JsonKeys;
use crate::Result;
use crate::gguf::Gguf;
use std::path::Path;

/// Defaults for generation; a field is empty where the checkpoint says nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Tokens that end a text.
    pub eos: Vec<u32>,
    /// The token that starts a text.
    pub bos: Option<u32>,
    /// Divides the logits; at least 0.
    pub temperature: Option<f32>,
    /// Nucleus sampling: the probability to keep, in 0..=1.
    pub top_p: Option<f32>,
    /// How many of the likeliest tokens to keep.
    pub top_k: Option<u32>,
    /// Whether to sample; greedy otherwise.
    pub do_sample: Option<bool>,
}

impl GenerationDefaults {
    /// Reads `generation_config.json`; its absent keys are looked up in `config.json`. Either may be absent.
    ///
    /// # Errors
    /// A file is no JSON object, or a key's value is of a wrong type or out of range.
    pub fn from_dir(directory: &Path) -> Result<GenerationDefaults> {
        let open = |name: &str| JsonKeys::open_if_present(&directory.join(name));
        let mut defaults = GenerationDefaults::default();
        for keys in [open("generation_config.json")?, open("config.json")?].into_iter().flatten() {
            let found = read(&keys)?;
            if defaults.eos.is_empty() {
                defaults.eos = found.eos;
            }
            defaults.bos = defaults.bos.or(found.bos);
            defaults.temperature = defaults.temperature.or(found.temperature);
            defaults.top_p = defaults.top_p.or(found.top_p);
            defaults.top_k = defaults.top_k.or(found.top_k);
            defaults.do_sample = defaults.do_sample.or(found.do_sample);
        }
        Ok(defaults)
    }

    /// Reads the ids of GGUF's special tokens: end of text, of turn and of message all end a text.
    ///
    /// # Errors
    /// A key's value is no token id.
    pub fn from_gguf(gguf: &Gguf) -> Result<GenerationDefaults> {
        let id = |key: &str| gguf.optional(&format!("tokenizer.ggml.{key}_token_id"), Gguf::get_u32);
        let mut eos = Vec::new();
        for key in ["eos", "eot", "eom"] {
            if let Some(id) = id(key)?.filter(|id| !eos.contains(id)) {
                eos.push(id);
            }
        }
        Ok(GenerationDefaults { eos, bos: id("bos")?, ..GenerationDefaults::default() })
    }
}

fn read(keys: &JsonKeys) -> Result<GenerationDefaults> {
    let token = |value: &serde_json::Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let number = |key: &str, max: f64| match keys.f64(key)? {
        Some(value) if !(0.0..=max).contains(&value) => {
            Err(keys.error(key, format!("{value} is not in 0..={max}")))
        }
        value => Ok(value.map(|v| v as f32)),
    };
    let top_k = match keys.u64("top_k")? {
        Some(k) => Some(u32::try_from(k).map_err(|_| keys.error("top_k", format!("{k} is too large")))?),
        None => None,
    };
    Ok(GenerationDefaults {
        eos: keys.list("eos_token_id", "token ids", token)?,
        bos: keys.list("bos_token_id", "a token id", token)?.first().copied(),
        temperature: number("temperature", 1000.0)?,
        top_p: number("top_p", 1.0)?,
        top_k,
        do_sample: keys.bool("do_sample")?,
    })
}
