//! Encodings against other implementations' (`tests/data/tokenizer`, made by
//! `scripts/make_tokenizer_fixtures.py`), streams against whole decodings, and files that must be refused.

mod bounds;
mod hostile;
mod older;
mod stand_in;
mod streams;

use super::byte_level::{self, Pre};
use super::pieces::{Scheme, alphabet_char};
use super::post::Affixes;
use super::*;
use serde_json::Value;
use std::path::PathBuf;

pub(super) fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/tokenizer").join(name)
}

fn expected() -> Value {
    serde_json::from_slice(&std::fs::read(data("expected.json")).unwrap()).unwrap()
}

fn texts(expected: &Value) -> Vec<&str> {
    let texts: Vec<&str> =
        expected["texts"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    assert!(texts.len() > 100);
    texts
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

pub(super) fn gguf(name: &str) -> Gguf {
    Gguf::open(data(name)).unwrap()
}

pub(super) fn from_gguf(name: &str) -> Tokenizer {
    Tokenizer::from_gguf(&gguf(name)).unwrap().expect("the file has a tokenizer")
}

/// The ids of a text that is content from end to end.
fn literal(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode_rendered(text, std::slice::from_ref(&(0..text.len()))).unwrap()
}

/// Compares every text's ids, and the decoding of its ids where `decoded` is given.
fn agree(tokenizer: &Tokenizer, key: &str, decoded: bool) {
    let expected = expected();
    for (at, text) in texts(&expected).into_iter().enumerate() {
        let wanted = ids(&expected["ids"][key][at]);
        assert_eq!(tokenizer.encode(text, false).unwrap(), wanted, "{key}: {text:?}");
        if decoded {
            let wanted_text = expected["decoded"][key][at].as_str().unwrap();
            assert_eq!(tokenizer.decode(&wanted, true).unwrap(), wanted_text, "{key}: {text:?}");
        }
    }
}

#[test]
fn gguf_byte_level_encodes_and_decodes_as_the_python_package() {
    agree(&from_gguf("byte_level.gguf"), "smollm", true);
}

#[test]
fn gguf_sentencepiece_encodes_and_decodes_as_the_python_package() {
    agree(&from_gguf("sentencepiece.gguf"), "sentencepiece", true);
}

#[test]
fn directories_encode_and_decode_as_the_python_package() {
    let llama2 = Tokenizer::from_dir(data("llama2")).unwrap().unwrap();
    agree(&llama2, "sentencepiece", true);
    assert_eq!(llama2.encode("the", true).unwrap()[0], 1);
    assert_eq!((llama2.bos(), llama2.eos()), (Some(1), Some(2)));
    let llama3 = Tokenizer::from_dir(data("llama3")).unwrap().unwrap();
    agree(&llama3, "llama-bpe", false);
    assert_eq!(llama3.encode("the", true).unwrap()[0], 0);
    assert_eq!((llama3.bos(), llama3.eos()), (Some(0), Some(2)));
    assert_eq!(llama3.end_tokens(), [0, 2]);
}

#[test]
fn every_pre_tokenizer_encodes_as_the_python_package() {
    let file = gguf("byte_level.gguf");
    let tokens = file.get_array_str("tokenizer.ggml.tokens").unwrap().to_vec();
    let kinds = file.get_array_int("tokenizer.ggml.token_type").unwrap();
    let vocabulary = ggml::Vocabulary::new(tokens, Some(&kinds), None).unwrap();
    let merges = file.get_array_str("tokenizer.ggml.merges").unwrap();
    for name in ["gpt-2", "smollm", "llama-bpe", "dbrx", "qwen2", "stablelm2", "tekken", "falcon", "default"]
    {
        let pre = Pre::from_name(Some(name)).unwrap();
        let encoder = byte_level::build(&vocabulary, merges, pre).unwrap();
        let tokenizer = Tokenizer::assemble(
            encoder,
            Scheme::ByteLevel { added: false },
            Affixes::default(),
            Marks::default(),
        )
        .unwrap();
        agree(&tokenizer, name, false);
    }
    let other = Pre::from_name(Some("gemma9")).unwrap_err().to_string();
    assert!(other.contains("gemma9") && !other.contains('\n'), "{other}");
}

#[test]
fn what_was_encoded_decodes_to_itself() {
    let expected = expected();
    for name in ["byte_level.gguf", "sentencepiece.gguf"] {
        let tokenizer = from_gguf(name);
        for text in texts(&expected) {
            let ids = literal(&tokenizer, text);
            // SentencePiece cannot tell `▁` from a space.
            assert_eq!(tokenizer.decode(&ids, false).unwrap().replace('▁', " "), text.replace('▁', " "));
        }
    }
}

#[test]
fn special_tokens_are_parsed_or_spelled_out_as_wanted() {
    let tokenizer = from_gguf("byte_level.gguf");
    let text = "<|im_start|>a<|im_end|>";
    let parsed = tokenizer.encode(text, false).unwrap();
    assert_eq!((parsed[0], parsed.len()), (1, 3));
    let literal = self::literal(&tokenizer, text);
    assert!(literal.iter().all(|id| !tokenizer.is_special(*id)), "{literal:?}");
    assert_eq!(tokenizer.decode(&literal, true).unwrap(), text);
    assert_eq!(tokenizer.decode(&parsed, true).unwrap(), "a");
    assert_eq!(tokenizer.decode(&parsed, false).unwrap(), text);
    // Added, but not special: a control token all the same by its looks, and kept in the output.
    let added = tokenizer.token_id("<added>").unwrap();
    assert_eq!(tokenizer.encode("<added>", false).unwrap(), [added]);
    assert!(!self::literal(&tokenizer, "<added>").contains(&added));
    assert_eq!(tokenizer.decode(&[added], true).unwrap(), "<added>");
}

#[test]
fn sizes_names_and_marks() {
    let tokenizer = from_gguf("byte_level.gguf");
    let last = tokenizer.vocab_size() as u32 - 1;
    assert_eq!(tokenizer.id_to_token(last).as_deref(), Some("<added>"));
    assert_eq!((tokenizer.id_to_token(last + 1), tokenizer.token_id("no such token")), (None, None));
    assert_eq!(tokenizer.decode(&[last + 1, u32::MAX], false).unwrap(), "");
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.eot()), (Some(1), Some(2), None));
    assert_eq!(tokenizer.end_tokens(), [0, 2], "<|endoftext|> ends a text too");
    // This file says that BOS is not added; SentencePiece's default is that it is.
    assert!(tokenizer.encode("", true).unwrap().is_empty());
    assert_eq!(from_gguf("sentencepiece.gguf").encode("", true).unwrap(), [1]);
}

#[test]
fn the_alphabet_of_bytes_is_a_bijection() {
    let all: std::collections::BTreeSet<char> = (0..=255).map(alphabet_char).collect();
    assert_eq!(all.len(), 256);
    assert_eq!((alphabet_char(b' '), alphabet_char(b'\n'), alphabet_char(b'A')), ('Ġ', 'Ċ', 'A'));
}
