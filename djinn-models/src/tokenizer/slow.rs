//! Directories without a `tokenizer.json`: converts GPT-2's `vocab.json` with `merges.txt`, or SentencePiece's
//! `tokenizer.model`, to the form of a `tokenizer.json`, as transformers' converters do.

use super::byte_level::QWEN2;
use super::directory::{MAX_BYTES, read_json, special_token};
use super::model_proto::Model;
use super::sentencepiece;
use crate::file::read_if_present;
use crate::{Error, Result};
use serde_json::{Map, Value, json};
use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

/// Keys of special tokens in `tokenizer_config.json` and `special_tokens_map.json`.
const SPECIAL: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"];

/// A tokenizer in the older files.
pub(super) struct Slow {
    /// The file's name in errors.
    pub(super) path: PathBuf,
    /// The equivalent `tokenizer.json`, without the post-processor.
    pub(super) json: Value,
    /// BOS and EOS if the configuration does not name them.
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    /// The default for beginning a text with BOS.
    pub(super) adds_bos: bool,
}

/// The tokenizer in a directory's older files; `None` if it has none of them. `config` is
/// `tokenizer_config.json`, `map` is `special_tokens_map.json`.
pub(super) fn read(dir: &Path, config: &Value, map: &Value) -> Result<Option<Slow>> {
    let path = dir.join("vocab.json");
    if let Some(vocab) = read_json(&path)? {
        let merges = dir.join("merges.txt");
        let Some(merges) = read_if_present(&merges, MAX_BYTES)? else {
            let detail = "there is neither merges.txt beside it nor a tokenizer.json".into();
            return Err(Error::Malformed { path, detail });
        };
        return byte_level(dir, config, map, vocab, &merges).map(Some).map_err(|e| located(e, &path));
    }
    let path = dir.join("tokenizer.model");
    let Some(bytes) = read_if_present(&path, MAX_BYTES)? else { return Ok(None) };
    sentence_piece(dir, config, map, &bytes).map(Some).map_err(|e| located(e, &path))
}

/// Adds the file to an error.
fn located(error: Error, path: &Path) -> Error {
    match error {
        Error::Tokenizer(detail) => Error::Malformed { path: path.to_owned(), detail },
        other => other,
    }
}

/// The word splitting of a vocabulary with merges.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Gpt2,
    Qwen2,
}

/// From the tokenizer's class, or else the model's type, since the two files do not contain it.
fn family(dir: &Path, config: &Value) -> Result<Family> {
    if let Some(class) = config["tokenizer_class"].as_str() {
        return match class.strip_suffix("Fast").unwrap_or(class) {
            "GPT2Tokenizer" | "CodeGenTokenizer" => Ok(Family::Gpt2),
            "Qwen2Tokenizer" => Ok(Family::Qwen2),
            _ => Err(no_family(&format!("the tokenizer class {class}"))),
        };
    }
    let model = read_json(&dir.join("config.json"))?.unwrap_or_default();
    match model["model_type"].as_str() {
        None | Some("gpt2" | "gptj" | "gpt_neo" | "codegen") => Ok(Family::Gpt2),
        Some("qwen2" | "qwen2_moe" | "qwen3" | "qwen3_moe") => Ok(Family::Qwen2),
        Some(other) => Err(no_family(&format!("the model type {other}"))),
    }
}

fn no_family(what: &str) -> Error {
    Error::Unsupported {
        what: format!("a vocab.json with merges.txt for {what}"),
        remedy: "save the tokenizer as tokenizer.json".into(),
    }
}

fn byte_level(dir: &Path, config: &Value, map: &Value, vocab: Value, merges: &[u8]) -> Result<Slow> {
    let family = family(dir, config)?;
    let Value::Object(mut vocab) = vocab else {
        return Err(Error::Tokenizer("expected an object of tokens and their ids".into()));
    };
    let end = vocab.get("<|endoftext|>").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
    let bos = end.filter(|_| family == Family::Gpt2);
    let mut added = added_tokens(dir, config, map, &mut vocab)?;
    if let Some(end) = end.filter(|_| !added.iter().any(|token| token["content"] == "<|endoftext|>")) {
        added.push(added_token("<|endoftext|>", u64::from(end), true, &Value::Null));
    }
    let prefix = config["add_prefix_space"].as_bool().unwrap_or(false);
    let bytes = |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": regex});
    let split =
        json!({"type": "Split", "pattern": {"Regex": QWEN2}, "behavior": "Isolated", "invert": false});
    let (normalizer, pre_tokenizer) = match family {
        Family::Gpt2 => (Value::Null, bytes(true)),
        Family::Qwen2 => {
            (json!({"type": "NFC"}), json!({"type": "Sequence", "pretokenizers": [split, bytes(false)]}))
        }
    };
    let json = json!({
        "version": "1.0",
        "added_tokens": sorted(added),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": merge_lines(merges)?},
    });
    Ok(Slow { path: dir.join("vocab.json"), json, bos, eos: end, adds_bos: false })
}

/// The lines of `merges.txt`: two tokens with a space between them, after a line with the version.
fn merge_lines(bytes: &[u8]) -> Result<Vec<[&str; 2]>> {
    let wrong = |at: usize| Error::Tokenizer(format!("line {} of merges.txt is not two tokens", at + 1));
    let lines = bytes.split(|byte| *byte == b'\n').enumerate();
    let mut merges = Vec::new();
    for (at, line) in lines {
        let line = std::str::from_utf8(line).map_err(|_| wrong(at))?.trim_end_matches('\r');
        if line.is_empty() || (at == 0 && line.starts_with("#version")) {
            continue;
        }
        match line.split_once(' ') {
            Some((left, right)) if !left.is_empty() && !right.is_empty() && !right.contains(' ') => {
                merges.push([left, right]);
            }
            _ => return Err(wrong(at)),
        }
    }
    Ok(merges)
}

fn sentence_piece(dir: &Path, config: &Value, map: &Value, bytes: &[u8]) -> Result<Slow> {
    let Model { vocabulary, byte_fallback, prefix_space, bos, eos } = Model::parse(bytes)?;
    let unknown = sentencepiece::unknown(&vocabulary)?;
    let merges = sentencepiece::merges(&vocabulary)?;
    let ids = vocabulary.tokens.iter().zip(0u32..);
    let mut vocab: Map<String, Value> = ids.map(|(token, id)| (token.clone(), id.into())).collect();
    let mut added = added_tokens(dir, config, map, &mut vocab)?;
    let known = contents(&added);
    let fresh = vocabulary.added().into_iter().filter(|token| !known.contains(&token.content));
    let fresh = fresh.map(|token| added_token(&token.content, token.id.into(), token.special, &Value::Null));
    added.extend(fresh);
    let prefix = config["add_prefix_space"].as_bool().unwrap_or(prefix_space);
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let (normalizer, pre_tokenizer) = spaces(prefix, config["legacy"].as_bool().unwrap_or(true));
    let json = json!({
        "version": "1.0",
        "added_tokens": sorted(added),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, "unk_token": unknown, "fuse_unk": true,
            "byte_fallback": byte_fallback},
    });
    Ok(Slow { path: dir.join("tokenizer.model"), json, bos, eos, adds_bos: true })
}

/// How spaces become `▁`. The older form puts one before every part of a text between special tokens; without special
/// tokens this is SentencePiece's own behaviour. The newer form puts one only before the first part, unless it begins
/// with a space.
fn spaces(prefix: bool, legacy: bool) -> (Value, Value) {
    if !legacy {
        let scheme = if prefix { "first" } else { "never" };
        let metaspace =
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false});
        return (Value::Null, metaspace);
    }
    let mut steps = Vec::new();
    if prefix {
        steps.push(json!({"type": "Prepend", "prepend": "▁"}));
    }
    steps.push(json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}));
    (json!({"type": "Sequence", "normalizers": steps}), Value::Null)
}

/// The tokens of `added_tokens_decoder` in the configuration, or else of `added_tokens.json`, and the special tokens
/// that the configuration names, each with its id. Those that `vocab` lacks are added to it. A name without an id is
/// left out, since the model has no row for it.
fn added_tokens(
    dir: &Path,
    config: &Value,
    map: &Value,
    vocab: &mut Map<String, Value>,
) -> Result<Vec<Value>> {
    let mut special: BTreeSet<String> = SPECIAL
        .iter()
        .filter_map(|key| special_token(map, key).or_else(|| special_token(config, key)))
        .collect();
    for list in [&map["additional_special_tokens"], &config["additional_special_tokens"]] {
        let names = list.as_array().map_or(&[][..], Vec::as_slice).iter();
        special
            .extend(names.filter_map(|name| name.as_str().or(name["content"].as_str()).map(str::to_owned)));
    }
    let mut added = Vec::new();
    if let Some(decoder) = config["added_tokens_decoder"].as_object() {
        for (id, token) in decoder {
            let content = token["content"].as_str();
            let (Some(content), Ok(id)) = (content, id.parse()) else {
                return Err(Error::Tokenizer(format!("token {id:?} of added_tokens_decoder is malformed")));
            };
            added.push(added_token(content, id, token["special"].as_bool().unwrap_or(false), token));
        }
    } else if let Some(file) = read_json(&dir.join("added_tokens.json"))? {
        for (content, id) in file.as_object().into_iter().flatten() {
            let wrong = || Error::Tokenizer(format!("the id of {content:?} in added_tokens.json is {id}"));
            let id = id.as_u64().ok_or_else(wrong)?;
            added.push(added_token(content, id, special.contains(content), &Value::Null));
        }
    }
    for token in &added {
        let content = token["content"].as_str().unwrap_or_default();
        let known = vocab.entry(content).or_insert_with(|| token["id"].clone());
        if *known != token["id"] {
            let detail =
                format!("added token {content:?} has the id {}, and {known} in the vocabulary", token["id"]);
            return Err(Error::Tokenizer(detail));
        }
    }
    let mut known = contents(&added);
    for name in special {
        let id = vocab.get(&name).and_then(Value::as_u64);
        if let Some(id) = id.filter(|_| known.insert(name.clone())) {
            added.push(added_token(&name, id, true, &Value::Null));
        }
    }
    Ok(added)
}

fn contents(added: &[Value]) -> HashSet<String> {
    added.iter().filter_map(|token| token["content"].as_str().map(str::to_owned)).collect()
}

/// An entry of `added_tokens`; `flags` may have more about it.
fn added_token(content: &str, id: u64, special: bool, flags: &Value) -> Value {
    let flag = |key: &str, default: bool| flags[key].as_bool().unwrap_or(default);
    json!({
        "id": id,
        "content": content,
        "single_word": flag("single_word", false),
        "lstrip": flag("lstrip", false),
        "rstrip": flag("rstrip", false),
        "normalized": flag("normalized", !special),
        "special": special,
    })
}

fn sorted(mut added: Vec<Value>) -> Vec<Value> {
    added.sort_by_key(|token| token["id"].as_u64());
    added
}
