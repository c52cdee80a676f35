//! Files that made the `tokenizers` package panic, abort or never end, and texts that did so with published
//! patterns: each is refused in one line, when the file is read or when a text is encoded.

use super::super::*;
use super::data;
use serde_json::{Value, json};

/// Loads `llama3/tokenizer.json` after `change`.
fn changed(change: impl FnOnce(&mut Value)) -> Result<Tokenizer> {
    let dir = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(data("llama3/tokenizer.json")).unwrap();
    let mut json: Value = serde_json::from_slice(&bytes).unwrap();
    change(&mut json);
    std::fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    Ok(Tokenizer::from_dir(dir.path())?.expect("there is a tokenizer"))
}

fn one_line(error: &Error) -> String {
    let message = error.to_string();
    assert!(!message.contains(char::is_control) && message.chars().count() <= 500, "{message}");
    message
}

fn replace(pattern: &str, content: &str) -> Value {
    json!({"type": "Replace", "pattern": {"String": pattern}, "content": content})
}

fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

fn normalizers(parts: Vec<Value>) -> Value {
    json!({"type": "Sequence", "normalizers": parts})
}

#[test]
fn rules_out_of_bounds_are_refused_when_the_file_is_read() {
    let mut nested = json!({"type": "Precompiled", "precompiled_charsmap": "/////w=="});
    for _ in 0..2 {
        nested = normalizers(vec![nested]);
    }
    let mut deep = json!({"type": "NFC"});
    for _ in 0..50 {
        deep = normalizers(vec![deep]);
    }
    let refused = |key: &'static str, value: Value, wanted: &str| {
        let error =
            changed(|json| json[key] = value).err().unwrap_or_else(|| panic!("{wanted} must be refused"));
        let message = one_line(&error);
        assert!(message.contains(wanted), "{wanted}: {message}");
    };
    refused("normalizer", nested, "normalizer Precompiled");
    refused("normalizer", deep, "normalizer Sequence");
    refused("normalizer", replace("", "x"), "normalizer Replace");
    refused("normalizer", normalizers(vec![replace("a", "aa"); 40]), "16 steps");
    let prepend = json!({"type": "Prepend", "prepend": "x".repeat(10_000)});
    refused("normalizer", normalizers(vec![prepend; 1000]), "16 steps");
    refused("pre_tokenizer", json!({"type": "FixedLength", "length": 0}), "pre-tokenizer FixedLength");
    refused("pre_tokenizer", split("((a*)*)*$"), "tokenizer.json");
    refused("pre_tokenizer", split(&r"\p{L}+".repeat(5000)), "30000 bytes");
    refused("pre_tokenizer", json!({"type": "Sequence", "pretokenizers": vec![split("a"); 33]}), "32 steps");
    let added = |count: usize| {
        let token = |id: usize| {
            json!({"id": 620 + id, "content": format!("<x{id}>"), "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false, "special": true})
        };
        (1..count).map(token).collect::<Value>()
    };
    refused("added_tokens", added(270_000), "added tokens");
    let values = vec![0; (3 << 20) + 1];
    refused("padding", json!(values), "values");
    let ids = json!({"s": {"ids": vec![1; 1000]}});
    let bomb = json!({"type": "TemplateProcessing", "single": vec![json!({"SpecialToken": {"id": "s"}}); 1000],
        "special_tokens": ids});
    refused("post_processor", bomb, "malformed");
}

#[test]
fn rules_that_would_not_end_are_refused_when_a_text_is_encoded() {
    let text = "a".repeat(1000) + "!";
    let refused = |key: &'static str, value: Value| {
        let tokenizer = changed(|json| json[key] = value.clone()).unwrap();
        let error = tokenizer.encode(&text, false).expect_err(&value.to_string()[..40]);
        assert!(one_line(&error).contains("shorten it"), "{error}");
        assert!(tokenizer.encode("b", false).is_ok());
    };
    for pattern in ["(a+)+$", "(a|aa)+$", "(?:a?a?a?a?a?a?a?a?a?a?a){60}$"] {
        refused("pre_tokenizer", split(pattern));
        refused("normalizer", json!({"type": "Replace", "pattern": {"Regex": pattern}, "content": ""}));
    }
    refused("normalizer", normalizers(vec![replace("a", "aa"); 16]));
    refused("normalizer", normalizers(vec![replace("a", &"a".repeat(1000)); 4]));
    // More than a model's words may hold: of 4 MiB, four times as many letters.
    let four = changed(|json| json["normalizer"] = replace("a", "aaaa")).unwrap();
    let found = four.encode(&"a".repeat(2 << 20), false).map(|ids| ids.len());
    assert!(one_line(&found.unwrap_err()).contains("too much"));
    // A search that begins anew at each of its matches' ends.

    let added = |content: String| {
        json!({"id": 0, "content": content, "single_word": false, "lstrip": true, "rstrip": true,
            "normalized": false, "special": false})
    };
    let spaces = changed(|json| {
        let size = json["model"]["vocab"].as_object().unwrap().len();
        json["added_tokens"] = json!([added(" ".into()), added("x".repeat(1000))]);
        json["added_tokens"][0]["id"] = json!(size);
        json["added_tokens"][1]["id"] = json!(size + 1);
        json["post_processor"] = Value::Null;
    });
    let spaces = spaces.unwrap();
    let too_long = |text: String| {
        let found = spaces.encode(&text, false).map(|ids| ids.len());
        assert!(one_line(&found.unwrap_err()).contains("too long"));
    };
    too_long(" ".repeat(100_000));
    too_long(("x".repeat(999) + "y").repeat(20));
}

#[test]
fn tokens_that_stand_for_too_much_text_are_refused() {
    let long = changed(|json| {
        let size = json["model"]["vocab"].as_object().unwrap().len();
        json["added_tokens"] = json!([{"id": size, "content": "x".repeat(1024), "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false, "special": false}]);
        json["post_processor"] = Value::Null;
    });
    let long = long.unwrap();
    let id = long.vocab_size() as u32 - 1;
    assert_eq!(long.decode(&vec![id; 1 << 14], false).unwrap().len(), 16 << 20);
    let message = one_line(&long.decode(&vec![id; 1 << 20], false).unwrap_err());
    assert!(message.contains("more text"), "{message}");
}

#[test]
fn a_token_longer_than_any_in_use_is_refused() {
    let with = |bytes: usize| {
        changed(|json| {
            let size = json["model"]["vocab"].as_object().unwrap().len();
            json["model"]["vocab"]["x".repeat(bytes)] = json!(size);
            json["added_tokens"] = json!([]);
            json["post_processor"] = Value::Null;
        })
    };
    assert_eq!(with(4096).unwrap().inner.pieces.longest(), 4096);
    let message = one_line(&with(4097).unwrap_err());
    assert!(message.contains("has 4097 bytes; 4096 are the most"), "{message}");
    // An added token that its normalizer makes longer.
    let grown = changed(|json| {
        let size = json["model"]["vocab"].as_object().unwrap().len();
        json["normalizer"] = replace("a", &"a".repeat(10));
        json["added_tokens"] = json!([{"id": size, "content": "a".repeat(1000), "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": true, "special": false}]);
        json["post_processor"] = Value::Null;
    });
    let message = one_line(&grown.unwrap_err());
    assert!(message.contains("has 10000 bytes"), "{message}");
}

#[test]
fn long_runs_are_encoded_by_published_patterns() {
    // Oniguruma's own limit, 10 million retries, is met by 10.5 million spaces before a letter.
    let llama3 = changed(|_| ()).unwrap();
    let count = 100_000;
    for (part, end) in [(" ", "x"), ("\u{3000}", "x"), ("\n", ""), ("a", ""), ("7", ""), ("'s", "")] {
        let text = part.repeat(count) + end;
        let ids = llama3.encode(&text, false).unwrap();
        assert_eq!(llama3.decode(&ids, false).unwrap(), text);
    }
    let message = one_line(&llama3.encode(&(" ".repeat(10_500_000) + "x"), false).unwrap_err());
    assert!(message.contains("10500001 bytes"), "{message}");
}
