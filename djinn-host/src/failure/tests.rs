//! Errors with their causes in one printable line.

use super::*;
use crate::{DeviceName, Error as HostError};

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Text(String, #[source] Option<Box<Text>>);

fn caused(texts: &[&str]) -> Text {
    let [text, causes @ ..] = texts else { panic!("no text") };
    Text((*text).to_owned(), (!causes.is_empty()).then(|| Box::new(caused(causes))))
}

#[test]
fn causes_are_joined_once() {
    let error = caused(&["cannot\nopen the model", "a.bin: no such file", "no such file"]);
    assert_eq!(one_line(&error), "cannot open the model: a.bin: no such file");
}

#[test]
fn escapes_of_strangers_do_not_reach_the_terminal() {
    let line = one_line(&caused(&["chat template", &format!("\x1b]0;owned\x07 {}", "x".repeat(10_000))]));
    assert!(line.starts_with("chat template: \\u{1b}]0;owned\\u{7} xxx"), "{line}");
    assert!(line.chars().count() <= printable::MAX_CHARS);
}

#[test]
fn fields_of_libraries_become_flags_and_keys_of_files_stay() {
    let source = djinn_cuda::Error::NotBuilt;
    let line = one_line(&HostError::Gpu { device: DeviceName::Cuda(1), source });
    assert!(line.starts_with("--device cuda:1: ") && line.ends_with("use --device cpu"), "{line}");
    let budget = djinn_vmu::Error::ChunkTooSmall { chunk_bytes: 1, least_bytes: 2 };
    let line = one_line(&HostError::from(djinn_engine::Error::from(budget)));
    assert!(line.starts_with("--chunk of 1 B"), "{line}");
    assert_eq!(one_line(&caused(&["unknown key `vram`"])), "unknown key `vram`");
}
