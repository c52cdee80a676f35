//! GGUF files in llama.cpp's conventions (`scripts/make_gguf.py`): each means what transformers computed from the
//! checkpoint that it was made from. llama.cpp ran all of them but qwen3-moe-bf16.

use crate::interpreter::{Interpreter, check_greedy, check_logits, expected};
use djinn_models::{Location, Model, OpenOptions, open};
use djinn_srg::{DType, Op};
use half::{bf16, f16};
use std::path::{Path, PathBuf};

/// Each file, by its checkpoint's directory, and whether its matrices are the checkpoint's rounded to f16.
const FILES: [(&str, bool); 12] = [
    ("gqa-bf16", false),
    ("rope-llama3-bf16", false),
    ("mistral-window-f16", false),
    ("mixtral-window-bf16", false),
    ("qwen2-bf16", false),
    ("qwen3-bf16", false),
    ("qwen3-moe-bf16", false),
    ("gpt2-f16", false),
    ("gpt2-bare-f32", true),
    ("falcon-7b-f32", true),
    ("falcon-40b-f16", false),
    ("falcon-11b-bf16", false),
];

fn checkpoint(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints").join(name)
}

fn file(name: &str) -> Location {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gguf/families");
    Location::Gguf(directory.join(format!("{name}.gguf")))
}

#[test]
fn each_file_gives_transformers_logits_and_tokens() {
    for (name, rounded) in FILES {
        let expected = expected(&checkpoint(name));
        let interpreter = Interpreter::open(&file(name), &OpenOptions::default());
        check_logits(&interpreter, &expected, if rounded { 2e-3 } else { 1e-5 }, name);
        if !rounded {
            check_greedy(&interpreter, &expected, name);
        }
    }
}

/// A weight's numbers. Norms and biases, which GGUF keeps in f32, may be narrower in the checkpoint.
fn numbers(model: &Model, name: &str) -> Vec<f32> {
    let (_, value) = model.graph.weights().find(|(_, value)| value.name == name).unwrap();
    let [rows, columns] = value.matrix();
    let mut bytes = vec![0; (rows * columns * value.dtype().bytes()) as usize];
    model.source.read_rows(name, 0..rows, &mut bytes).unwrap();
    let halves = || bytes.as_chunks::<2>().0;
    match value.dtype() {
        DType::F16 => halves().iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        DType::BF16 => halves().iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
        _ => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
    }
}

fn operations(model: &Model) -> Vec<Op> {
    model.graph.nodes.iter().map(|node| node.op.clone()).collect()
}

#[test]
fn each_file_is_its_checkpoint() {
    for (name, rounded) in FILES {
        let options = OpenOptions { dtype: rounded.then_some(DType::F16), ..OpenOptions::default() };
        let from_gguf = open(&file(name), &options).unwrap();
        let from_checkpoint = open(&Location::Directory(checkpoint(name)), &options).unwrap();
        // GGUF has no name for Mistral.
        let architecture = from_checkpoint.architecture.replace("Mistral", "Llama");
        assert_eq!(from_gguf.architecture, architecture, "{name}");
        assert_eq!(operations(&from_gguf), operations(&from_checkpoint), "{name}");
        let weights = [&from_gguf, &from_checkpoint].map(|model| model.graph.weights().count());
        assert_eq!(weights[0], weights[1], "{name}");
        for (_, value) in from_checkpoint.graph.weights() {
            let [found, wanted] = [&from_gguf, &from_checkpoint].map(|model| numbers(model, &value.name));
            if name == "rope-llama3-bf16" && value.name == "rope.inv_freq" {
                // Divisors are rounded before they divide.
                assert!(found.iter().zip(&wanted).all(|(f, w)| (f / w - 1.0).abs() < 1e-6), "{found:?}");
            } else {
                assert!(found == wanted, "{name}: {}", value.name);
            }
        }
    }
}

/// Any number in the header may be wrong: the file opens, or is refused in one line.
#[test]
fn headers_with_other_numbers_are_opened_or_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("changed.gguf");
    let extremes = [0, 1, 2, 3, 7, 1 << 10, 1 << 16, 1 << 24, u32::MAX];
    let [mut opened, mut refused] = [0, 0];
    for name in ["rope-llama3-bf16", "mixtral-window-bf16", "qwen3-bf16", "gpt2-f16", "falcon-40b-f16"] {
        let Location::Gguf(original) = file(name) else { unreachable!() };
        let original = std::fs::read(original).unwrap();
        // Metadata ends before the first tensor's name.
        let metadata = original.windows(4).position(|bytes| bytes == b"blk.").unwrap();
        for at in (24..metadata - 4).step_by(3) {
            let mut changed = original.clone();
            let number: u32 = extremes[at % extremes.len()];
            changed[at..at + 4].copy_from_slice(&number.to_le_bytes());
            std::fs::write(&path, changed).unwrap();
            match open(&Location::Gguf(path.clone()), &OpenOptions::default()) {
                Ok(_) => opened += 1,
                Err(error) => {
                    let message = error.to_string();
                    assert!(!message.contains(char::is_control), "{name}, byte {at}: {message:?}");
                    refused += 1;
                }
            }
        }
    }
    assert!(opened > 50 && refused > 500, "{opened} opened, {refused} were refused");
}
