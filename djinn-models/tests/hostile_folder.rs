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

/// Checks that the model is refused in one line that names the file.
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
