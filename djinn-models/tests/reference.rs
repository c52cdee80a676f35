//! Graph and weights together mean what transformers means: a plain f64 interpreter of the graph, fed by the
//! weight source, gives the logits and the greedy tokens in `expected.json`.

use crate::interpreter::{Interpreter, check_greedy, check_logits, expected};
use djinn_models::{Location, OpenOptions};
use std::path::Path;

fn check(variant: &str) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints").join(variant);
    let expected = expected(&directory);
    let interpreter = Interpreter::open(&Location::Directory(directory), &OpenOptions::default());
    check_logits(&interpreter, &expected, 1e-5, variant);
    check_greedy(&interpreter, &expected, variant);
}

#[test]
fn every_checkpoint_means_what_transformers_computes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints");
    let mut variants: Vec<_> = std::fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    variants.sort();
    assert!(variants.len() >= 41, "{} checkpoints", variants.len());
    for variant in &variants {
        check(variant);
    }
}
