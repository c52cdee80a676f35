//! The model of a `tokenizer.json`: byte-pair encoding, or a plain list of words.

use super::error;
use super::pieces::{check_merges, check_vocabulary};
use crate::{Error, Result};
use serde_json::Value;
use tokenizers::models::ModelWrapper;
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::models::wordlevel::WordLevel;

/// Longest affix of a word's parts in bytes; published ones have four.
const MAX_AFFIX: usize = 64;

/// Reads a `model`.
pub(super) fn from_json(mut model: Value) -> Result<ModelWrapper> {
    let kind = model["type"].as_str().unwrap_or(if model["merges"].is_array() { "BPE" } else { "unknown" });
    match kind {
        "BPE" => bpe(&mut model),
        "WordLevel" => {
            let unknown = model["unk_token"].as_str().unwrap_or_default().to_owned();
            let words = WordLevel::builder().vocab(vocabulary(model["vocab"].take())?).unk_token(unknown);
            Ok(words.build().map_err(|e| error(&e))?.into())
        }
        other => Err(Error::Unsupported {
            what: format!("the tokenizer model {other}"),
            remedy: "the supported families use byte-level or SentencePiece BPE".into(),
        }),
    }
}

fn bpe(model: &mut Value) -> Result<ModelWrapper> {
    let vocab = vocabulary(model["vocab"].take())?;
    let longest = vocab.keys().map(String::len).max().unwrap_or(0);
    let affix = |key: &str| match &model[key] {
        Value::Null => Ok(None),
        Value::String(text) if text.len() <= MAX_AFFIX => Ok(Some(text.clone())),
        other => Err(wrong(key, other)),
    };
    let flag = |key: &str| match &model[key] {
        Value::Null => Ok(false),
        Value::Bool(flag) => Ok(*flag),
        other => Err(wrong(key, other)),
    };
    let prefix = affix("continuing_subword_prefix")?;
    let merges = merges(&model["merges"], longest, prefix.as_deref().unwrap_or(""))?;
    let mut builder = BPE::builder()
        .vocab_and_merges(vocab, merges)
        .fuse_unk(flag("fuse_unk")?)
        .byte_fallback(flag("byte_fallback")?)
        .ignore_merges(flag("ignore_merges")?);
    // Dropping merges at random is for training only.
    if model["dropout"].as_f64().is_some_and(|dropout| dropout != 0.0) {
        return Err(Error::Unsupported {
            what: "a tokenizer with dropout".into(),
            remedy: "set `dropout` to null in tokenizer.json".into(),
        });
    }
    match &model["unk_token"] {
        Value::Null => {}
        Value::String(unknown) => builder = builder.unk_token(unknown.clone()),
        other => return Err(wrong("unk_token", other)),
    }
    if let Some(prefix) = prefix {
        builder = builder.continuing_subword_prefix(prefix);
    }
    if let Some(suffix) = affix("end_of_word_suffix")? {
        builder = builder.end_of_word_suffix(suffix);
    }
    Ok(builder.build().map_err(|e| error(&e))?.into())
}

fn wrong(key: &str, value: &Value) -> Error {
    let shown: String = value.to_string().chars().take(60).collect();
    Error::Tokenizer(format!("`{key}` of the model is {shown}"))
}

fn vocabulary(vocab: Value) -> Result<Vocab> {
    let Value::Object(vocab) = vocab else {
        return Err(Error::Tokenizer("the vocabulary is no object of tokens and their ids".into()));
    };
    check_vocabulary(vocab.keys())?;
    let id = |(token, id): (String, Value)| {
        let number = id.as_u64().and_then(|id| u32::try_from(id).ok());
        let wrong = || Error::Tokenizer(format!("the id of token {token:?} is {id}"));
        let number = number.ok_or_else(wrong)?;
        Ok((token, number))
    };
    vocab.into_iter().map(id).collect()
}

/// The merges: pairs, or texts with one space. Refuses those that are longer than any token, on which the `tokenizers`
/// crate would panic.
fn merges(list: &Value, longest: usize, prefix: &str) -> Result<Merges> {
    let Some(list) = list.as_array() else {
        return Err(Error::Tokenizer("the merges are no list".into()));
    };
    check_merges(list.len())?;
    // Older files begin with the first line of `merges.txt`.
    let list = list.iter().filter(|merge| !merge.as_str().is_some_and(|text| text.starts_with("#version")));
    let merge = |(at, merge): (usize, &Value)| {
        let sides = match merge {
            Value::String(text) => text.split_once(' ').filter(|(_, right)| !right.contains(' ')),
            pair => pair[0].as_str().zip(pair[1].as_str()).filter(|_| pair[2].is_null()),
        };
        let joins = |(left, right): &(&str, &str)| {
            right.get(prefix.len()..).is_some_and(|right| left.len() + right.len() <= longest)
        };
        match sides.filter(joins) {
            Some((left, right)) => Ok((left.to_owned(), right.to_owned())),
            None => Err(Error::Tokenizer(format!("merge {at} gives no token of the vocabulary"))),
        }
    };
    list.enumerate().map(merge).collect()
}
