//! The tokenizer of a Hugging Face directory: `tokenizer.json`, or older files converted to its form.

use super::added::AddedTokens;
use super::encoder::{Encoder, WordModel};
use super::normal::Normalizer;
use super::pieces::{FirstSpace, Scheme};
use super::post::Affixes;
use super::slow::{self, Slow};
use super::words::Splitter;
use super::{Marks, Tokenizer, model};
use crate::{Error, Result, file};
use serde_json::Value;
use std::path::Path;

/// The most bytes and JSON values of a file, checked before it is parsed. The largest in use have about half of that.
pub(super) const MAX_BYTES: u64 = 64 << 20;
const MAX_VALUES: usize = 3 << 20;

pub(super) fn load(dir: &Path) -> Result<Option<Tokenizer>> {
    let config = read_json(&dir.join("tokenizer_config.json"))?.unwrap_or(Value::Null);
    let map = read_json(&dir.join("special_tokens_map.json"))?.unwrap_or(Value::Null);
    let path = dir.join("tokenizer.json");
    let found = match read_json(&path)? {
        Some(json) => Some(Slow { path, json, bos: None, eos: None, adds_bos: false }),
        None => slow::read(dir, &config, &map)?,
    };
    let Some(Slow { path, mut json, bos, eos, adds_bos }) = found else { return Ok(None) };
    let located = |error| match error {
        Error::Tokenizer(detail) => Error::Malformed { path: path.clone(), detail },
        other => other,
    };
    let scheme = scheme(&json["decoder"]).map_err(located)?;
    let mut affixes = Affixes::from_json(&json["post_processor"]).map_err(located)?;
    let encoder = encoder(&mut json).map_err(located)?;

    let named = |key: &str| {
        let name = special_token(&config, key).or_else(|| special_token(&map, key))?;
        encoder.token_id(&name)
    };
    let marks =
        Marks { bos: named("bos_token").or(bos), eos: named("eos_token").or(eos), eot: named("eot_token") };
    if affixes.is_empty() {
        // Slow tokenizers of the Llama family have this in their configuration only.
        let wanted = |key: &str, default: bool| config[key].as_bool().unwrap_or(default);
        affixes.prefix.extend(marks.bos.filter(|_| wanted("add_bos_token", adds_bos)));
        affixes.suffix.extend(marks.eos.filter(|_| wanted("add_eos_token", false)));
    }
    Tokenizer::assemble(encoder, scheme, affixes, marks).map(Some).map_err(located)
}

/// The encoder of a `tokenizer.json`, whose model is taken out.
fn encoder(json: &mut Value) -> Result<Encoder> {
    let normalizer = Normalizer::from_json(&json["normalizer"])?;
    let splitter = Splitter::from_json(&json["pre_tokenizer"])?;
    let added = AddedTokens::read(&json["added_tokens"])?;
    let model = model::from_json(json.get_mut("model").map(Value::take).unwrap_or_default())?;
    Encoder::new(WordModel::library(model), normalizer, splitter, added)
}

/// A special token's name in `tokenizer_config.json` or `special_tokens_map.json`: a string, or an object
/// with `content`.
pub(crate) fn special_token(config: &Value, key: &str) -> Option<String> {
    let value = config.get(key)?;
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}

/// A JSON file; `None` if there is none.
pub(crate) fn read_json(path: &Path) -> Result<Option<Value>> {
    let Some(bytes) = file::read_if_present(path, MAX_BYTES)? else { return Ok(None) };
    let malformed = |detail| Error::Malformed { path: path.to_owned(), detail };
    if values(&bytes) > MAX_VALUES {
        return Err(malformed(format!("has more than the {MAX_VALUES} values that such a file may have")));
    }
    serde_json::from_slice(&bytes).map(Some).map_err(|e| malformed(e.to_string()))
}

/// An upper bound of the values in a JSON text. Each takes far more memory than its text.
fn values(json: &[u8]) -> usize {
    let (mut count, mut in_text, mut escaped) = (1, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_text,
            b'"' => in_text = !in_text,
            b',' | b'[' | b'{' if !in_text => count += 1,
            _ => {}
        }
    }
    count
}

fn unsupported(what: String) -> Error {
    Error::Unsupported { what, remedy: "the supported families use byte-level or SentencePiece BPE".into() }
}

/// A part of a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    ByteLevel,
    /// `▁` to a space.
    Replace,
    Metaspace(FirstSpace),
    ByteFallback,
    Fuse,
    /// One space at the beginning.
    Strip,
}

impl Step {
    fn from_json(part: &Value) -> Result<Self> {
        Ok(match part["type"].as_str().unwrap_or("without a type") {
            "ByteLevel" => Self::ByteLevel,
            "Fuse" => Self::Fuse,
            "ByteFallback" => Self::ByteFallback,
            "Replace" if part["pattern"]["String"] == "▁" && part["content"] == " " => Self::Replace,
            "Strip" if part["content"] == " " && part["start"] == 1 && part["stop"] == 0 => Self::Strip,
            "Metaspace" if part["replacement"].as_str().unwrap_or("▁") == "▁" => {
                let old = part["add_prefix_space"].as_bool().unwrap_or(true);
                let drops = part["prepend_scheme"].as_str().map_or(old, |scheme| scheme != "never");
                Self::Metaspace(if drops { FirstSpace::OfFirstToken } else { FirstSpace::Kept })
            }
            other => return Err(unsupported(format!("the tokenizer's decoder {other} as it is configured"))),
        })
    }
}

/// The spelling of bytes in a `decoder` of `tokenizer.json`.
fn scheme(decoder: &Value) -> Result<Scheme> {
    if decoder.is_null() {
        return Ok(Scheme::Words);
    }
    let parts = match decoder["type"].as_str() {
        Some("Sequence") => decoder["decoders"].as_array().map_or(&[][..], Vec::as_slice),
        _ => std::slice::from_ref(decoder),
    };
    let steps: Vec<Step> = parts.iter().map(Step::from_json).collect::<Result<_>>()?;
    let (first, rest) = match steps.as_slice() {
        [Step::ByteLevel] | [Step::ByteLevel, Step::Fuse] => return Ok(Scheme::ByteLevel { added: true }),
        [Step::Replace, rest @ .., Step::Fuse, Step::Strip] => (FirstSpace::Dropped, rest),
        [Step::Replace, rest @ ..] => (FirstSpace::Kept, rest),
        [Step::Metaspace(first), rest @ ..] => (*first, rest),
        _ => (FirstSpace::Kept, steps.as_slice()),
    };
    match rest {
        _ if rest.len() == steps.len() => Err(unsupported("the tokenizer's sequence of decoders".into())),
        [] | [Step::Fuse] => Ok(Scheme::Spaces { bytes: false, first }),
        [Step::ByteFallback] | [Step::ByteFallback, Step::Fuse] => Ok(Scheme::Spaces { bytes: true, first }),
        _ => Err(unsupported("the tokenizer's sequence of decoders".into())),
    }
}
