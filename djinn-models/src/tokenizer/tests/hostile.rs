//! Tokenizers that must be refused with one line.

use super::super::*;
use super::{data, gguf};
use serde_json::{Value, json};
use std::fs;

/// A name, a change to a good file, and a part of the message that it must lead to.
type Change<'a> = (&'a str, &'a dyn Fn(&mut Value), &'a str);

/// Keys and values of a GGUF file.
type Metadata = Vec<(&'static str, Value)>;

/// The message of a refusal, checked to be one line.
fn refused(result: Result<Option<Tokenizer>>) -> String {
    let message = result.map(|tokenizer| tokenizer.is_some()).expect_err("it must be refused").to_string();
    assert!(!message.contains('\n'), "{message}");
    message
}

/// Loads `llama3/tokenizer.json` after `change`.
fn changed(change: impl FnOnce(&mut Value)) -> Result<Option<Tokenizer>> {
    let dir = tempfile::tempdir().unwrap();
    let mut json: Value = serde_json::from_slice(&fs::read(data("llama3/tokenizer.json")).unwrap()).unwrap();
    change(&mut json);
    fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    Tokenizer::from_dir(dir.path())
}

#[test]
fn directories_without_a_tokenizer_have_none() {
    let dir = tempfile::tempdir().unwrap();
    assert!(Tokenizer::from_dir(dir.path()).unwrap().is_none());
    fs::write(dir.path().join("tokenizer.json"), "{\"model\":\n {]").unwrap();
    assert!(refused(Tokenizer::from_dir(dir.path())).contains("tokenizer.json"));
}

#[test]
fn broken_tokenizer_json_is_refused() {
    assert!(changed(|_| {}).is_ok());
    let cases: [Change<'_>; 12] = [
        ("no model", &|j| j["model"] = Value::Null, "unknown"),
        ("unigram", &|j| j["model"]["type"] = json!("Unigram"), "Unigram"),
        ("merge too long", &|j| j["model"]["merges"] = json!([["Ġthe", &"x".repeat(900)]]), "merge 0"),
        ("merge of unknowns", &|j| j["model"]["merges"] = json!([["狐", "狐"]]), "out of vocabulary"),
        ("merge of three", &|j| j["model"]["merges"] = json!([["a"]]), "merge 0"),
        ("huge id", &|j| j["model"]["vocab"]["zz"] = json!(4_294_967_295_u32), "out of range"),
        ("negative id", &|j| j["model"]["vocab"]["zz"] = json!(-1), "tokenizer.json"),
        ("decoder", &|j| j["decoder"] = json!({"type": "CTC"}), "CTC"),
        ("post-processor", &|j| j["post_processor"] = json!({"type": "Magic"}), "Magic"),
        (
            "no such special",
            &|j| j["post_processor"]["processors"][1]["special_tokens"] = json!({}),
            "malformed",
        ),
        ("added ids", &|j| j["added_tokens"][0]["id"] = json!(99_999), "99999"),
        (
            "regex",
            &|j| {
                j["pre_tokenizer"] = json!({"type": "Split", "pattern": {"Regex": "("},
            "behavior": "Isolated", "invert": false})
            },
            "tokenizer.json",
        ),
    ];
    for (name, change, wanted) in cases {
        let message = refused(changed(change));
        assert!(message.contains(wanted), "{name}: {message}");
    }
}

#[test]
fn template_ids_outside_the_vocabulary_are_refused() {
    let message = refused(changed(|json| {
        json["post_processor"]["processors"][1]["special_tokens"]["<|endoftext|>"]["ids"] =
            json!([5_000_000]);
    }));
    assert!(message.contains("5000000"), "{message}");
}

#[test]
fn truncation_and_padding_in_the_file_are_not_applied() {
    let tokenizer = changed(|json| {
        json["truncation"] =
            json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
        json["padding"] = json!({"strategy": {"Fixed": 50}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>"});
    });
    let ids = tokenizer.unwrap().unwrap().encode("The capital of France is Paris.", false).unwrap();
    assert!(ids.len() > 2 && ids.len() < 50, "{ids:?}");
}

#[test]
fn bos_and_eos_are_added_where_only_the_configuration_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let mut json: Value = serde_json::from_slice(&fs::read(data("llama2/tokenizer.json")).unwrap()).unwrap();
    json["post_processor"] = Value::Null;
    fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    let config = json!({"add_bos_token": true, "add_eos_token": true, "bos_token": "<s>"});
    fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    fs::write(
        dir.path().join("special_tokens_map.json"),
        json!({"eos_token": {"content": "</s>"}}).to_string(),
    )
    .unwrap();
    let tokenizer = Tokenizer::from_dir(dir.path()).unwrap().unwrap();
    assert_eq!(tokenizer.encode("", true).unwrap(), [1, 2]);
    assert!(tokenizer.encode("", false).unwrap().is_empty());
}

/// A GGUF file of metadata: strings, string lists and u32 numbers.
fn metadata(entries: &[(&str, Value)]) -> Gguf {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    let text = |bytes: &mut Vec<u8>, text: &str| {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
    };
    bytes.extend(0u64.to_le_bytes());
    bytes.extend((entries.len() as u64).to_le_bytes());
    for (key, value) in entries {
        text(&mut bytes, key);
        match value {
            Value::String(s) => {
                bytes.extend(8u32.to_le_bytes());
                text(&mut bytes, s);
            }
            Value::Array(items) => {
                let strings = items.iter().all(Value::is_string);
                bytes.extend(9u32.to_le_bytes());
                bytes.extend(if strings { 8u32 } else { 5 }.to_le_bytes());
                bytes.extend((items.len() as u64).to_le_bytes());
                for item in items {
                    match item.as_str() {
                        Some(s) => text(&mut bytes, s),
                        None => bytes.extend((item.as_i64().unwrap() as i32).to_le_bytes()),
                    }
                }
            }
            number => {
                bytes.extend(4u32.to_le_bytes());
                bytes.extend((number.as_u64().unwrap() as u32).to_le_bytes());
            }
        }
    }
    Gguf::from_bytes(bytes).unwrap()
}

#[test]
fn broken_gguf_vocabularies_are_refused() {
    let base = |model: &str, tokens: Value| -> Metadata {
        vec![("tokenizer.ggml.model", json!(model)), ("tokenizer.ggml.tokens", tokens)]
    };
    let cases: [(&str, Metadata, &str); 9] = [
        ("model", base("t5", json!(["a"])), "t5"),
        ("no merges", base("gpt2", json!(["a"])), "tokenizer.ggml.merges"),
        ("no tokens", vec![("tokenizer.ggml.model", json!("gpt2"))], "tokenizer.ggml.tokens"),
        ("twice", base("gpt2", json!(["a", "b", "a"])), "twice"),
        ("no scores", base("llama", json!(["a"])), "no unknown token"),
        (
            "merge",
            [base("gpt2", json!(["a", "b"])), vec![("tokenizer.ggml.merges", json!(["a b"]))]].concat(),
            "merge 0",
        ),
        (
            "bos",
            [
                base("gpt2", json!(["a", "b", "ab"])),
                vec![("tokenizer.ggml.merges", json!(["a b"])), ("tokenizer.ggml.bos_token_id", json!(3))],
            ]
            .concat(),
            "special token 3",
        ),
        (
            "pre",
            [base("gpt2", json!(["a"])), vec![("tokenizer.ggml.pre", json!("gemma9"))]].concat(),
            "gemma9",
        ),
        (
            "types",
            [base("gpt2", json!(["a", "b"])), vec![("tokenizer.ggml.token_type", json!([1]))]].concat(),
            "1 types",
        ),
    ];
    for (name, entries, wanted) in cases {
        let message = refused(Tokenizer::from_gguf(&metadata(&entries)));
        assert!(message.contains(wanted), "{name}: {message}");
    }
    assert!(Tokenizer::from_gguf(&metadata(&[])).unwrap().is_none());
    let unnamed = base("gpt2", json!(["a", "", "b"]));
    let unnamed = [unnamed, vec![("tokenizer.ggml.merges", json!([]))]].concat();
    let tokenizer = Tokenizer::from_gguf(&metadata(&unnamed)).unwrap().unwrap();
    assert_eq!((tokenizer.encode("ba", true).unwrap(), tokenizer.vocab_size()), (vec![2, 0], 3));
    assert!(Tokenizer::from_gguf(&gguf("byte_level.gguf")).is_ok());
}
