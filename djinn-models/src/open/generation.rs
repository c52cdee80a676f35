//! A checkpoint's defaults for sampling, and its end tokens.

use super::JsonKeys;
use crate::Result;
use crate::gguf::Gguf;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// Defaults for generation. `None`: the checkpoint has none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
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
    /// Drops tokens with less than this share of the best token's probability; in 0..=1.
    pub min_p: Option<f32>,
    /// Divides the positive logits of tokens in the context and multiplies the negative ones; over 0.
    pub repetition_penalty: Option<f32>,
    /// Keys of the file that are not supported though they would change the text.
    pub ignored: Vec<String>,
}

/// The value of a key that changes nothing.
enum Neutral {
    Number(f64),
    Off,
    /// No token, no list, no text.
    Nothing,
}

/// Keys that transformers applies and Djinn does not.
const NOT_APPLIED: [(&str, Neutral); 32] = [
    ("num_beams", Neutral::Number(1.0)),
    ("num_beam_groups", Neutral::Number(1.0)),
    ("diversity_penalty", Neutral::Number(0.0)),
    ("length_penalty", Neutral::Number(1.0)),
    ("penalty_alpha", Neutral::Number(0.0)),
    ("typical_p", Neutral::Number(1.0)),
    ("top_h", Neutral::Number(1.0)),
    ("epsilon_cutoff", Neutral::Number(0.0)),
    ("eta_cutoff", Neutral::Number(0.0)),
    ("guidance_scale", Neutral::Number(1.0)),
    ("encoder_repetition_penalty", Neutral::Number(1.0)),
    ("no_repeat_ngram_size", Neutral::Number(0.0)),
    ("encoder_no_repeat_ngram_size", Neutral::Number(0.0)),
    ("min_length", Neutral::Number(0.0)),
    ("min_new_tokens", Neutral::Number(0.0)),
    ("remove_invalid_values", Neutral::Off),
    ("token_healing", Neutral::Off),
    ("low_memory", Neutral::Off),
    ("bad_words_ids", Neutral::Nothing),
    ("force_words_ids", Neutral::Nothing),
    ("forced_bos_token_id", Neutral::Nothing),
    ("forced_eos_token_id", Neutral::Nothing),
    ("forced_decoder_ids", Neutral::Nothing),
    ("suppress_tokens", Neutral::Nothing),
    ("begin_suppress_tokens", Neutral::Nothing),
    ("sequence_bias", Neutral::Nothing),
    ("constraints", Neutral::Nothing),
    ("exponential_decay_length_penalty", Neutral::Nothing),
    ("stop_strings", Neutral::Nothing),
    ("watermarking_config", Neutral::Nothing),
    ("dola_layers", Neutral::Nothing),
    ("negative_prompt_ids", Neutral::Nothing),
];

impl GenerationDefaults {
    /// Reads `generation_config.json`, with missing keys from `config.json`. Either may be absent.
    ///
    /// # Errors
    /// A file that is not a JSON object, or a value of the wrong type or out of range.
    pub fn from_dir(directory: &Path) -> Result<GenerationDefaults> {
        let open = |name: &str| JsonKeys::open_if_present(&directory.join(name));
        let mut defaults = GenerationDefaults::default();
        let mut own = BTreeSet::new();
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
            defaults.min_p = defaults.min_p.or(found.min_p);
            defaults.repetition_penalty = defaults.repetition_penalty.or(found.repetition_penalty);
            let fresh = found.ignored.into_iter().filter(|key| !own.contains(key.as_str()));
            defaults.ignored.extend(fresh);
            own.extend(NOT_APPLIED.iter().map(|(key, _)| *key).filter(|key| keys.contains(key)));
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
        min_p: number("min_p", 1.0)?,
        repetition_penalty: match number("repetition_penalty", 1000.0)? {
            Some(0.0) => return Err(keys.error("repetition_penalty", "0 is not above 0".into())),
            penalty => penalty,
        },
        ignored: ignored(keys)?,
    })
}

/// The keys of [`NOT_APPLIED`] with an effect. Keys that only set limits are checked as well.
fn ignored(keys: &JsonKeys) -> Result<Vec<String>> {
    let mut ignored = Vec::new();
    for (key, neutral) in &NOT_APPLIED {
        let asks = match neutral {
            Neutral::Number(neutral) => keys.f64(key)?.is_some_and(|value| value != *neutral),
            Neutral::Off => keys.flag(key)?,
            Neutral::Nothing => match keys.value(key) {
                None => false,
                Some(Value::Array(list)) => !list.is_empty(),
                Some(Value::Object(map)) => !map.is_empty(),
                Some(Value::Bool(_)) => {
                    return Err(keys.error(key, "true and false mean nothing here".into()));
                }
                Some(Value::String(text)) => !text.is_empty(),
                Some(_) => true,
            },
        };
        ignored.extend(asks.then(|| (*key).to_owned()));
    }
    for key in ["max_length", "max_new_tokens"] {
        keys.u64(key)?;
    }
    Ok(ignored)
}
