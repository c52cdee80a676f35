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
    let budget = djinn_vmu::Error::Fraction("resident_fraction", 2.0);
    assert!(one_line(&EngineError::from(budget)).starts_with("--resident-fraction 2 "));
    let short = EngineError::ContextFull { tokens: 2, context: 1 };
    assert!(one_line(&HostError::from(short)).ends_with("; raise --ctx"));
    assert_eq!(one_line(&caused(&["unknown key `vram`"])), "unknown key `vram`");
}

/// The words of files, templates and settings are those of strangers, whichever options have the same names.
#[test]
fn words_of_files_are_not_replaced() {
    let detail = "the header: missing field `dtype`".to_owned();
    let malformed = ModelError::Malformed { path: "a.safetensors".into(), detail };
    assert!(one_line(&HostError::from(malformed)).ends_with("missing field `dtype`"));
    let template = ModelError::Template("use `system` and `device`".to_owned());
    assert_eq!(one_line(&HostError::from(template)), "chat template: use `system` and `device`");
    let what = || "a tensor called `dtype`".to_owned();
    let error = ModelError::Unsupported { what: what(), remedy: "use `dtype` bf16".to_owned() };
    assert_eq!(one_line(&error), "a tensor called `dtype` is not supported; use --dtype bf16");
    let error = ModelError::Unsupported { what: what(), remedy: "drop `ram`".to_owned() };
    assert_eq!(one_line(&error), "a tensor called `dtype` is not supported; drop `ram`");
    let settings = HostError::Settings { file: "a.toml".into(), detail: "key `vram`".to_owned() };
    assert!(one_line(&settings).starts_with("a.toml: key `vram`; "));
    let model = "`system`".to_owned();
    assert!(
        one_line(&HostError::NoTokenizer { model }).starts_with("`system` has no tokenizer; give --prompt")
    );
}

#[test]
fn missing_memory_is_told_in_units_and_without_a_limit_that_is_none() {
    let error = |limit_bytes| {
        let (space, requested_bytes, in_use_bytes) = (Space::Host, 1 << 40, 3 << 20);
        let error = DeviceError::OutOfMemory { space, requested_bytes, in_use_bytes, limit_bytes };
        one_line(&HostError::from(EngineError::from(MemoryError::from(error))))
    };
    assert_eq!(error(u64::MAX), "out of host memory: 1.00 TiB requested, 3.00 MiB in use");
    assert_eq!(error(1 << 30), "out of host memory: 1.00 TiB requested, 3.00 MiB of 1.00 GiB in use");
}

#[test]
fn a_list_of_known_names_is_printed_whole() {
    let known: Vec<String> = (0..200).map(|number| format!("name-{number}")).collect();
    let known = known.join(", ");
    let what = format!("there is no \x1b[2J{}", "x".repeat(10_000));
    let error = HostError::UnknownName { what, known: known.clone() };
    for line in [one_line(&error), line_about(&format!("error: {error}; see --help"), &error)] {
        assert!(line.contains(&format!("; known are {known}")) && line.contains("\\u{1b}[2J"), "{line}");
        assert!(line.chars().count() < known.len() + printable::MAX_CHARS + 20, "{line}");
    }
}
