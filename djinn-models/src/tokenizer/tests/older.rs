//! The older files: `vocab.json` with `merges.txt`, and `tokenizer.model`. What they encode is compared in
//! `tests/tokenizers.rs`; here is what must be refused, and what the configuration changes.

use super::super::model_proto::Model;
use super::super::*;
use proptest::prelude::*;
use serde_json::json;
use std::fs;
use std::path::PathBuf;

fn fixture(name: &str) -> Vec<u8> {
    fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/tokenizers").join(name)).unwrap()
}

/// A directory of these files.
fn directory(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    dir
}

/// Why a directory is refused, checked to be one line.
fn refused(files: &[(&str, &[u8])]) -> String {
    let found = Tokenizer::from_dir(directory(files).path());
    let message = found.map(|found| found.is_some()).expect_err("it must be refused").to_string();
    assert!(!message.contains('\n'), "{message}");
    message
}

fn loaded(files: &[(&str, &[u8])]) -> Tokenizer {
    Tokenizer::from_dir(directory(files).path()).unwrap().expect("there is a tokenizer")
}

#[test]
fn vocabularies_with_merges_are_refused_when_they_are_no_pair_or_unknown() {
    let (vocab, merges) = (fixture("gpt2-files/vocab.json"), fixture("gpt2-files/merges.txt"));
    let config = |text: &'static str| ("tokenizer_config.json", text.as_bytes());
    let pair = [("vocab.json", &vocab[..]), ("merges.txt", &merges[..])];
    let with = |more: (&'static str, &'static [u8])| [pair[0], pair[1], more];
    assert!(refused(&pair[..1]).contains("merges.txt"));
    assert!(refused(&[("vocab.json", b"[1]"), pair[1]]).contains("object"));
    assert!(refused(&[("vocab.json", b"{\"a\": -1}"), pair[1]]).contains("vocab.json"));
    for (merges, line) in [("#version: 0.2\na b\nabc\n", "line 3"), ("a b c\n", "line 1"), (" a\n", "line 1")]
    {
        assert!(refused(&[pair[0], ("merges.txt", merges.as_bytes())]).contains(line), "{merges}");
    }
    assert!(refused(&[pair[0], ("merges.txt", b"a \xff\n")]).contains("line 1"));
    assert!(refused(&[pair[0], ("merges.txt", "狐 狐\n".as_bytes())]).contains("vocab.json"));
    assert!(
        refused(&with(config(r#"{"tokenizer_class": "RobertaTokenizer"}"#))).contains("RobertaTokenizer")
    );
    assert!(refused(&with(("config.json", br#"{"model_type": "opt"}"#))).contains("opt"));
    assert!(refused(&with(("added_tokens.json", br#"{"<x>": "one"}"#))).contains("<x>"));
    assert!(refused(&with(("added_tokens.json", br#"{"a": 99999}"#))).contains("99999"));
    let decoder = config(r#"{"added_tokens_decoder": {"one": {"content": "<x>"}}}"#);
    assert!(refused(&with(decoder)).contains("added_tokens_decoder"));
    let far = config(r#"{"added_tokens_decoder": {"4294967295": {"content": "<x>"}}}"#);
    assert!(refused(&with(far)).contains("out of range"));
}

#[test]
fn the_configuration_decides_over_vocabularies_with_merges() {
    let (vocab, merges) = (fixture("gpt2-files/vocab.json"), fixture("gpt2-files/merges.txt"));
    let pair = [("vocab.json", &vocab[..]), ("merges.txt", &merges[..])];
    let plain = loaded(&pair);
    let marked = loaded(&[
        pair[0],
        pair[1],
        ("config.json", br#"{"model_type": "gptj"}"#),
        ("tokenizer_config.json", br#"{"add_bos_token": true, "add_prefix_space": true}"#),
    ]);
    let spaced = plain.encode(" the", false).unwrap();
    assert_ne!(plain.encode("the", true).unwrap(), spaced);
    assert_eq!(marked.encode("the", true).unwrap(), [vec![0], spaced].concat());
    // Ids may leave gaps: a token's row in the model is where the file says.
    let sparse = loaded(&[pair[0], pair[1], ("added_tokens.json", br#"{"<x>": 2000, "<y>": 3000}"#)]);
    assert_eq!(sparse.encode("<y><x>", false).unwrap(), [3000, 2000]);
    assert_eq!((sparse.vocab_size(), sparse.id_to_token(2500)), (3001, None));
}

/// A field of a protocol buffer that holds bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    assert!(number < 16 && bytes.len() < 128);
    [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
}

#[test]
fn sentencepiece_models_are_refused_by_name() {
    let good = fixture("llama2-model/tokenizer.model");
    assert_eq!(loaded(&[("tokenizer.model", &good)]).encode("", true).unwrap(), [1]);
    // The last message of a kind counts, field by field: these go behind a good file.
    let cases: [(&str, Vec<u8>, &str); 6] = [
        ("unigram", field(2, &[3 << 3, 1]), "Unigram"),
        ("unknown type", field(2, &[3 << 3, 9]), "unknown"),
        ("map", field(3, &[&field(2, b"map")[..], &[4 << 3, 0]].concat()), "normalization map"),
        ("white space", field(3, &[4 << 3, 1]), "remove_extra_whitespaces"),
        ("twice", field(1, &field(1, b"<s>")), "twice"),
        ("no text", field(1, &field(1, b"\xff")), "no SentencePiece model"),
    ];
    for (name, more, wanted) in cases {
        let message = refused(&[("tokenizer.model", &[&good[..], &more].concat())]);
        assert!(message.contains(wanted), "{name}: {message}");
    }
    // Llama 3's file of this name is a list of tokens in base 64.
    for text in ["IQ== 0\nIg== 1\n", "", "{}"] {
        assert!(
            refused(&[("tokenizer.model", text.as_bytes())]).contains("no SentencePiece model"),
            "{text}"
        );
    }
}

#[test]
fn the_configuration_decides_over_sentencepiece_models() {
    let model = fixture("llama2-model/tokenizer.model");
    let with = |config: serde_json::Value| {
        loaded(&[("tokenizer.model", &model), ("tokenizer_config.json", config.to_string().as_bytes())])
    };
    let config = json!({"add_bos_token": false, "add_eos_token": true, "add_prefix_space": false});
    let bare = with(config).encode("the", true).unwrap();
    let marked = with(json!({})).encode("the", true).unwrap();
    assert_eq!((bare.last(), marked.first()), (Some(&2), Some(&1)));
    assert_ne!(bare[..bare.len() - 1], marked[1..], "no space was put before the text");
}

#[test]
fn decoders_in_an_order_that_nobody_uses_are_refused() {
    let (strip, fuse) =
        (json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}), json!({"type": "Fuse"}));
    let replace = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
    let bytes = json!({"type": "ByteFallback"});
    let orders = [
        json!([strip, fuse]),
        json!([replace, bytes, strip]),
        json!([bytes, replace, fuse]),
        json!([fuse, replace]),
        json!([bytes, fuse]),
        json!([]),
    ];
    for order in orders {
        let decoder = json!({"type": "Sequence", "decoders": order});
        let file = json!({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "decoder": decoder});
        let message = refused(&[("tokenizer.json", file.to_string().as_bytes())]);
        assert!(message.contains("sequence of decoders"), "{order}: {message}");
    }
}

proptest! {
    #[test]
    fn damaged_models_are_read_or_refused(
        cut in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let mut bytes = fixture("llama2-model/tokenizer.model");
        let len = bytes.len();
        for (at, byte) in changes {
            bytes[at.index(len)] = byte;
        }
        bytes.truncate(cut.index(len + 1));
        if let Err(error) = Model::parse(&bytes) {
            prop_assert!(!error.to_string().contains('\n'));
        }
    }
}
