//! A stranger's model folder: whatever one of its files is, opening the model ends at once, in one line that
//! names the file.
#![cfg(unix)]

use djinn_models::{Location, OpenOptions, open};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

fn tests() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// A model that opens, with the older tokenizer files where `older`.
fn model(older: bool) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = tests().join(if older { "tokenizers/gpt2-files" } else { "tokenizers/gpt2" });
    for source in [tests().join("checkpoints/one-layer-f32"), tokenizer] {
        for file in std::fs::read_dir(source).unwrap().map(|entry| entry.unwrap().path()) {
            std::fs::copy(&file, dir.path().join(file.file_name().unwrap())).unwrap();
        }
    }
    opened(dir.path()).expect("the model opens");
    dir
}

fn opened(dir: &Path) -> Result<(), String> {
    let opened = open(&Location::Directory(dir.to_owned()), &OpenOptions::default());
    opened.map(drop).map_err(|error| error.to_string())
}

/// Checks that the model is refused in one line that has `file` in it.
fn refused(dir: &Path, file: &str) -> String {
    let message = opened(dir).expect_err(file);
    assert!(message.contains(file), "{file}: {message}");
    assert!(!message.contains(char::is_control) && message.chars().count() <= 500, "{message:?}");
    message
}

#[test]
fn files_that_are_no_files_are_refused() {
    let usual = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
        "chat_template.json",
        "model.safetensors",
    ];
    let older = ["vocab.json", "merges.txt", "added_tokens.json"];
    for (is_older, files) in [(false, &usual[..]), (true, &older)] {
        let dir = model(is_older);
        for file in files {
            let path = dir.path().join(file);
            let saved = std::fs::read(&path).ok();
            for kind in ["fifo", "zero", "directory"] {
                let _ = std::fs::remove_file(&path);
                match kind {
                    "fifo" => assert!(Command::new("mkfifo").arg(&path).status().unwrap().success()),
                    "zero" => symlink("/dev/zero", &path).unwrap(),
                    _ => std::fs::create_dir(&path).unwrap(),
                }
                assert!(refused(dir.path(), file).contains("not a regular file"), "{kind} {file}");
            }
            std::fs::remove_dir(&path).unwrap();
            if let Some(bytes) = saved {
                std::fs::write(&path, bytes).unwrap();
            }
        }
        opened(dir.path()).unwrap();
    }
}

#[test]
fn hostile_contents_are_refused_in_one_line() {
    let deep = "[".repeat(1 << 20);
    let long = format!("{{\"{}\": 1}}", "\u{1b}]0;\u{202e}狐".repeat(100_000));
    let escapes = r#"{"architectures": ["\u001b[2J\u0007\n"], "model": {"type": "\u001b[2J\r\n"}, "chat_template": 1,
        "eos_token_id": "\u001b", "decoder": {"type": "\u009b31m"}}"#;
    let contents = ["", "{", "[1]", "\u{feff}{}", "\0", &deep, &long, escapes];
    let contents = contents.map(str::as_bytes).into_iter().chain([&b"\xff\xfe{}"[..]]);
    let contents: Vec<&[u8]> = contents.collect();
    let dir = model(false);
    let files = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.json",
        "model.safetensors",
    ];
    let mut refusals = 0;
    for file in files {
        let path = dir.path().join(file);
        let saved = std::fs::read(&path).ok();
        for bytes in &contents {
            std::fs::write(&path, bytes).unwrap();
            // Some files may say anything that Djinn does not read.
            if opened(dir.path()).is_err() {
                refused(dir.path(), "");
                refusals += 1;
            }
        }
        std::fs::remove_file(&path).unwrap();
        if let Some(bytes) = saved {
            std::fs::write(&path, bytes).unwrap();
        }
    }
    assert!(refusals > files.len() * 6, "{refusals}");
}

#[test]
fn a_folder_with_every_hostile_tokenizer_opens_or_is_refused_in_one_line() {
    let dir = model(false);
    let corpus = tests().join("../../fuzz/corpus/tokenizer");
    let mut count = 0;
    for path in std::fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()) {
        let bytes = std::fs::read(&path).unwrap();
        if let Some(json) = bytes.strip_prefix(b"j") {
            std::fs::write(dir.path().join("tokenizer.json"), json).unwrap();
            if opened(dir.path()).is_err() {
                refused(dir.path(), "");
                count += 1;
            }
        }
    }
    assert!(count >= 8, "{count}");
}
