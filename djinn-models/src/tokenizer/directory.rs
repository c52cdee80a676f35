//! The tokenizer of a Hugging Face directory: `tokenizer.json`, or what older files say in its form.

use super::pieces::{FirstSpace, Scheme};
use super::post::Affixes;
use super::slow::{self, Slow};
use super::{Marks, Tokenizer};
use crate::{Error, Result, file};
use serde_json::Value;
use std::path::Path;

/// Larger files are refused before they are parsed; the largest in use are a tenth of it.
pub(super) const MAX_BYTES: u64 = 256 << 20;

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
    check_model(&json["model"]).map_err(located)?;
    check_normalizer(&json["normalizer"])?;
    if let Some(fields) = json.as_object_mut() {
        // Its work is done by `affixes`, its decoder's by `scheme`.
        fields.insert("post_processor".into(), Value::Null);
        fields.insert("decoder".into(), Value::Null);
    }
    let added = json["added_tokens"].clone();
    let parsing: tokenizers::Tokenizer =
        serde_json::from_value(json).map_err(|e| located(Error::Tokenizer(e.to_string())))?;
    check_added(&parsing, &added).map_err(located)?;

    let named = |key: &str| {
        let name = special_token(&config, key).or_else(|| special_token(&map, key))?;
        parsing.token_to_id(&name)
    };
    let marks =
        Marks { bos: named("bos_token").or(bos), eos: named("eos_token").or(eos), eot: named("eot_token") };
    if affixes.is_empty() {
        // Slow tokenizers of the Llama family say it in their configuration only.
        let wanted = |key: &str, default: bool| config[key].as_bool().unwrap_or(default);
        affixes.prefix.extend(marks.bos.filter(|_| wanted("add_bos_token", adds_bos)));
        affixes.suffix.extend(marks.eos.filter(|_| wanted("add_eos_token", false)));
    }
    Tokenizer::assemble(parsing, scheme, affixes, marks).map(Some).map_err(located)
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
    let value = serde_json::from_slice(&bytes)
        .map_err(|e| Error::Malformed { path: path.to_owned(), detail: e.to_string() })?;
    Ok(Some(value))
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

/// How a `decoder` of `tokenizer.json` spells bytes.
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

/// Refuses models other than BPE and plain word lists, and merges that are longer than any token, over
/// which the `tokenizers` crate would fall.
fn check_model(model: &Value) -> Result<()> {
    let kind = model["type"].as_str().unwrap_or(if model["merges"].is_array() { "BPE" } else { "unknown" });
    let vocab = model["vocab"].as_object();
    let longest = vocab.map_or(0, |vocab| vocab.keys().map(String::len).max().unwrap_or(0));
    match kind {
        "WordLevel" => return Ok(()),
        "BPE" => {}
        other => return Err(unsupported(format!("the tokenizer model {other}"))),
    }
    let prefix = model["continuing_subword_prefix"].as_str().map_or(0, str::len);
    for (at, merge) in model["merges"].as_array().map_or(&[][..], Vec::as_slice).iter().enumerate() {
        let sides = match merge {
            Value::String(text) => text.split_once(' '),
            pair => pair[0].as_str().zip(pair[1].as_str()),
        };
        let joined = sides.and_then(|(left, right)| Some(left.len() + right.get(prefix..)?.len()));
        if joined.is_none_or(|len| len > longest) {
            return Err(Error::Tokenizer(format!("merge {at} gives no token of the vocabulary")));
        }
    }
    Ok(())
}

fn check_normalizer(normalizer: &Value) -> Result<()> {
    let parts = normalizer["normalizers"].as_array().map_or(std::slice::from_ref(normalizer), Vec::as_slice);
    match parts.iter().any(|part| part["type"] == "Precompiled") {
        true => Err(unsupported("the tokenizer's normalizer Precompiled".into())),
        false => Ok(()),
    }
}

/// Refuses added tokens whose ids in the file are not the ones that they got.
fn check_added(tokenizer: &tokenizers::Tokenizer, added: &Value) -> Result<()> {
    for token in added.as_array().map_or(&[][..], Vec::as_slice) {
        let (content, id) = (token["content"].as_str().unwrap_or_default(), token["id"].as_u64());
        let got = tokenizer.token_to_id(content).map(u64::from);
        if !content.is_empty() && got != id {
            let detail = format!("added token {content:?} has the id {id:?}, where {got:?} is next");
            return Err(Error::Tokenizer(detail));
        }
    }
    Ok(())
}
