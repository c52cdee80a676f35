//! Tokenizers in the shapes of the families against the Python package `tokenizers`, over a corpus of every
//! kind of text. `scripts/make_tokenizers.py` makes `tests/tokenizers` and says what its files hold.

use djinn_models::Tokenizer;
use serde_json::Value;
use std::path::PathBuf;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/tokenizers")
}

fn json(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(root().join(name)).unwrap()).unwrap()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    list(value).iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// The corpus, repetitions written out.
fn texts() -> Vec<String> {
    let spelled = |text: &Value| match text.as_str() {
        Some(text) => text.to_owned(),
        None => list(&text["repeat"])
            .iter()
            .map(|part| part[0].as_str().unwrap().repeat(part[1].as_u64().unwrap() as usize))
            .collect(),
    };
    let texts: Vec<String> = list(&json("texts.json")).iter().map(spelled).collect();
    assert!(texts.len() >= 150 && texts.iter().any(|text| text.len() >= 10_000));
    texts
}

/// FNV-1a.
fn hash(bytes: impl IntoIterator<Item = u8>) -> String {
    let mix = |value: u64, byte| (value ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    format!("{:016x}", bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, mix))
}

/// Whether ids are the written ones, which are `[count, hash]` if they are many.
fn same_ids(found: &[u32], wanted: &Value) -> bool {
    match wanted[1].as_str() {
        Some(of_all) => {
            wanted[0] == found.len() && hash(found.iter().flat_map(|id| id.to_le_bytes())) == of_all
        }
        None => found == ids(wanted),
    }
}

/// Whether a text is the written one, which is `[bytes, hash]` if it is long.
fn same_text(found: &str, wanted: &Value) -> bool {
    match wanted.as_str() {
        Some(wanted) => found == wanted,
        None => wanted[0] == found.len() && hash(found.bytes()) == wanted[1].as_str().unwrap(),
    }
}

/// The tokens one at a time; every piece is text by its type, and shows U+FFFD only where `whole` does.
fn streamed(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool, whole: &str) -> String {
    let mut stream = tokenizer.stream(skip_special);
    let mut text = String::new();
    for id in ids {
        if let Some(piece) = stream.push(*id) {
            text.push_str(&piece);
            assert!(whole.starts_with(&text), "{text:?} does not begin {whole:?}");
        }
    }
    text + &stream.finish()
}

/// Decodes in one piece and token by token, to one text.
fn decoded(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> String {
    let whole = tokenizer.decode(ids, skip_special).unwrap();
    assert_eq!(streamed(tokenizer, ids, skip_special, &whole), whole);
    whole
}

/// Compares one directory with its `expected.json`.
fn agree(name: &str) -> Tokenizer {
    let tokenizer = Tokenizer::from_dir(root().join(name)).unwrap().expect("the directory has a tokenizer");
    let expected = json(&format!("{name}/expected.json"));
    let (before, after) = (ids(&expected["affixes"][0]), ids(&expected["affixes"][1]));
    for (at, text) in texts().iter().enumerate() {
        let shown: String = text.chars().take(60).collect();
        let found = tokenizer.encode(text, false).unwrap();
        let wanted = &expected["ids"][at];
        assert!(same_ids(&found, wanted), "{name}, text {at} {shown:?}: {found:?}, not {wanted}");
        let with_special = tokenizer.encode(text, true).unwrap();
        assert_eq!(with_special, [&before[..], &found, &after].concat(), "{name}, text {at} {shown:?}");

        let text_again = decoded(&tokenizer, &found, false);
        let same = match &expected["decoded"][at] {
            Value::Null => text_again == *text,
            wanted => same_text(&text_again, wanted),
        };
        assert!(same, "{name}, text {at} {shown:?} decodes to {text_again:?}");
        let skipped = decoded(&tokenizer, &found, true);
        let same = match &expected["skipped"][at] {
            Value::Null => skipped == text_again,
            wanted => same_text(&skipped, wanted),
        };
        assert!(same, "{name}, text {at} {shown:?} decodes without special tokens to {skipped:?}");
    }
    let runs = list(&expected["runs"]);
    assert!(runs.len() >= 50);
    for run in runs {
        let ids = ids(&run[0]);
        assert_eq!(decoded(&tokenizer, &ids, false), run[1].as_str().unwrap(), "{name}: {ids:?}");
        assert_eq!(
            decoded(&tokenizer, &ids, true),
            run[2].as_str().unwrap(),
            "{name}: {ids:?}, special skipped"
        );
    }
    tokenizer
}

#[test]
fn gpt2_is_the_python_package() {
    let tokenizer = agree("gpt2");
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(0), Some(0)));
    agree("gpt2-prefix");
}

#[test]
fn gpt2_and_qwen2_from_vocabulary_and_merges_are_the_python_package() {
    let tokenizer = agree("gpt2-files");
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.end_tokens()), (Some(0), Some(0), vec![0]));
    let tokenizer = agree("qwen2-files");
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.end_tokens()), (None, Some(2), vec![0, 2]));
}

#[test]
fn llama2_and_mistral_in_all_their_forms_are_the_python_package() {
    for name in ["llama2-prepend", "llama2-first", "mistral-always", "llama-never"] {
        let tokenizer = agree(name);
        assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(1), Some(2)));
    }
}

#[test]
fn sentencepiece_models_are_the_python_package() {
    for name in ["llama2-model", "llama2-model-newer"] {
        let tokenizer = agree(name);
        assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(1), Some(2)));
    }
}

#[test]
fn llama3_is_the_python_package() {
    let tokenizer = agree("llama3");
    assert_eq!(tokenizer.end_tokens(), [1, 2]);
}

#[test]
fn qwen2_is_the_python_package() {
    agree("qwen2");
}

#[test]
fn falcon_is_the_python_package() {
    agree("falcon");
}

#[test]
fn smollm_is_the_python_package() {
    agree("smollm");
}

#[test]
fn every_directory_is_compared() {
    let names: std::collections::BTreeSet<String> = std::fs::read_dir(root())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
        .collect();
    let source = include_str!("tokenizers.rs");
    for name in &names {
        assert!(source.contains(&format!("\"{name}\"")), "{name} is in no test");
    }
    assert_eq!(names.len(), 14);
}
