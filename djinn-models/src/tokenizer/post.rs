//! The ids before and after a text.

use crate::{Error, Result};
use serde_json::Value;

/// The most ids around a text; models have two.
const MAX_IDS: usize = 1024;

/// Ids added around a text on request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Affixes {
    pub(super) prefix: Vec<u32>,
    pub(super) suffix: Vec<u32>,
}

impl Affixes {
    pub(super) fn is_empty(&self) -> bool {
        self.prefix.is_empty() && self.suffix.is_empty()
    }

    pub(super) fn from_json(processor: &Value) -> Result<Self> {
        let kind = processor.get("type").and_then(Value::as_str);
        match kind {
            None if processor.is_null() => Ok(Self::default()),
            Some("ByteLevel") => Ok(Self::default()),
            Some("TemplateProcessing") => template(processor),
            Some("BertProcessing" | "RobertaProcessing") => Ok(Self {
                prefix: vec![pair_id(processor, "cls")?],
                suffix: vec![pair_id(processor, "sep")?],
            }),
            Some("Sequence") => {
                let mut all = Self::default();
                for inner in processor["processors"].as_array().ok_or_else(malformed)? {
                    if all.prefix.len() + all.suffix.len() > MAX_IDS {
                        return Err(malformed());
                    }
                    let Self { mut prefix, suffix } = Self::from_json(inner)?;
                    prefix.append(&mut all.prefix);
                    all.prefix = prefix;
                    all.suffix.extend(suffix);
                }
                Ok(all)
            }
            _ => Err(Error::Unsupported {
                what: format!("the tokenizer's post-processor {}", kind.unwrap_or("without a type")),
                remedy: "save the model with a TemplateProcessing post-processor".into(),
            }),
        }
    }
}

fn malformed() -> Error {
    Error::Tokenizer("the post-processor of tokenizer.json is malformed".into())
}

fn id(value: &Value) -> Result<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(malformed)
}

fn pair_id(processor: &Value, key: &str) -> Result<u32> {
    id(processor.get(key).and_then(|pair| pair.get(1)).ok_or_else(malformed)?)
}

fn template(processor: &Value) -> Result<Affixes> {
    let mut affixes = Affixes::default();
    let mut seen_text = false;
    for item in processor["single"].as_array().ok_or_else(malformed)? {
        if item.get("Sequence").is_some() {
            seen_text = true;
            continue;
        }
        let name = item["SpecialToken"]["id"].as_str().ok_or_else(malformed)?;
        let ids = processor["special_tokens"][name]["ids"].as_array().ok_or_else(malformed)?;
        let side = if seen_text { &mut affixes.suffix } else { &mut affixes.prefix };
        if side.len() + ids.len() > MAX_IDS {
            return Err(malformed());
        }
        for value in ids {
            side.push(id(value)?);
        }
    }
    Ok(affixes)
}
