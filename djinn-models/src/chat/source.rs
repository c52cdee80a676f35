//! Reads templates from the files of a directory, and from GGUF metadata.

use super::{DEFAULT, MAX_SOURCE, TOOL_USE};
use crate::gguf::Gguf;
use crate::small_files::TEMPLATES;
use crate::tokenizer::{read_json, special_token};
use crate::{Error, Result, file};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Special tokens that templates can use, as in transformers.
const SPECIAL: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"];

/// A model's templates, unparsed.
pub(super) struct Sources {
    pub(super) default: String,
    pub(super) tool_use: Option<String>,
    pub(super) special: Vec<(&'static str, String)>,
}

impl Sources {
    pub(super) fn from_dir(dir: &Path) -> Result<Option<Self>> {
        let config = read_json(&dir.join("tokenizer_config.json"))?.unwrap_or_default();
        let own = read_json(&dir.join("chat_template.json"))?.unwrap_or_default();
        // Newer files replace older ones.
        let (default, listed) = match read_text(dir.join("chat_template.jinja"))? {
            Some(text) => (text, None),
            None => {
                let value = own.get("chat_template").or_else(|| config.get("chat_template"));
                let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(None) };
                listed_in(value)?
            }
        };
        let tool_use = read_text(dir.join(TEMPLATES).join(format!("{TOOL_USE}.jinja")))?.or(listed);
        let map = read_json(&dir.join("special_tokens_map.json"))?.unwrap_or_default();
        let named = |key| Some((key, special_token(&config, key).or_else(|| special_token(&map, key))?));
        Ok(Some(Self { default, tool_use, special: SPECIAL.into_iter().filter_map(named).collect() }))
    }

    pub(super) fn from_gguf(file: &Gguf) -> Result<Option<Self>> {
        let Some(default) = file.optional("tokenizer.chat_template", Gguf::get_str)? else { return Ok(None) };
        let tool_use = file.optional("tokenizer.chat_template.tool_use", Gguf::get_str)?;
        let tokens = file.optional("tokenizer.ggml.tokens", Gguf::get_array_str)?.unwrap_or_default();
        let mut special = Vec::new();
        let keys = ["bos", "eos", "unknown", "padding", "seperator", "cls", "mask"];
        for (name, key) in SPECIAL.into_iter().zip(keys) {
            let id = file.optional(&format!("tokenizer.ggml.{key}_token_id"), Gguf::get_u32)?;
            special.extend(id.and_then(|id| tokens.get(id as usize)).map(|token| (name, token.clone())));
        }
        Ok(Some(Self { default: default.to_owned(), tool_use: tool_use.map(str::to_owned), special }))
    }
}

/// The templates in a value `chat_template`: text, or a list of templates with names.
fn listed_in(value: &Value) -> Result<(String, Option<String>)> {
    if let Some(text) = value.as_str() {
        return Ok((text.to_owned(), None));
    }
    let Some(list) = value.as_array() else {
        return Err(Error::Template("`chat_template` is neither text nor a list of templates".into()));
    };
    let named = |name: &str| {
        let entry = list.iter().find(|entry| entry["name"] == name)?;
        entry["template"].as_str().map(str::to_owned)
    };
    match named(DEFAULT) {
        Some(default) => Ok((default, named(TOOL_USE))),
        None => Err(Error::Template("the list `chat_template` has no template named \"default\"".into())),
    }
}

/// A template's file; `None` if there is none.
fn read_text(path: PathBuf) -> Result<Option<String>> {
    let Some(bytes) = file::read_if_present(&path, MAX_SOURCE as u64)? else { return Ok(None) };
    let text = String::from_utf8(bytes);
    text.map(Some).map_err(|_| Error::Malformed { path, detail: "is not UTF-8".into() })
}
