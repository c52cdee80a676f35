//! Tiny checkpoints written by Hugging Face transformers: same logits, same tokens.

use djinn_cpu::{CpuConfig, CpuDevice, Math};
use djinn_engine::{Budget, Engine, Generate, Options, Request, Service};
use djinn_models::{Location, OpenOptions, open};
use std::ops::ControlFlow;
use std::path::PathBuf;

/// ‖found − expected‖ / ‖expected‖ against transformers' float32 logits.
const TOLERANCE: f64 = 1e-5;

#[derive(serde::Deserialize)]
struct Expected {
    cases: Vec<Case>,
    greedy: Greedy,
}

#[derive(serde::Deserialize)]
struct Case {
    prompt: Vec<u32>,
    positions: Vec<usize>,
    logits: Vec<Vec<f32>>,
}

#[derive(serde::Deserialize)]
struct Greedy {
    prompt: Vec<u32>,
    tokens: Vec<u32>,
}

fn checkpoints() -> Vec<PathBuf> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../djinn-models/tests/checkpoints");
    let entries = std::fs::read_dir(root).expect("the checkpoints are in the repository");
    let mut found: Vec<PathBuf> =
        entries.map(|e| e.expect("readable").path()).filter(|p| p.is_dir()).collect();
    found.sort();
    assert!(found.len() >= 41, "{} checkpoints", found.len());
    found
}

fn expected(path: &std::path::Path) -> Expected {
    let text = std::fs::read_to_string(path.join("expected.json")).expect("answers lie beside the weights");
    serde_json::from_str(&text).expect("the script's JSON")
}

fn engine(path: &std::path::Path, math: Math, options: &Options) -> Engine<CpuDevice> {
    let model = open(&Location::Directory(path.into()), &OpenOptions::default()).expect("it opens");
    let device = CpuDevice::new(CpuConfig { math, threads: 2, ..CpuConfig::default() }).expect("threads");
    Engine::load(device, model.graph, &*model.source, options, &mut |_, _| ControlFlow::Continue(()))
        .expect("it loads")
}

fn distance(found: &[f32], expected: &[f32]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    assert_eq!(found.len(), expected.len());
    let error = norm(&mut found.iter().zip(expected).map(|(a, b)| *a as f64 - *b as f64));
    error / norm(&mut expected.iter().map(|x| *x as f64))
}

fn compare(math: Math, options: &Options) {
    for path in checkpoints() {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let expected = expected(&path);
        let mut engine = engine(&path, math, options);
        let vocab = engine.graph().vocab as usize;
        for case in &expected.cases {
            let logits = engine.logits(&mut engine.free_pages(), &case.prompt).expect("it runs");
            for (&position, wanted) in case.positions.iter().zip(&case.logits) {
                let found = &logits[position * vocab..][..vocab];
                let distance = distance(found, wanted);
                assert!(distance <= TOLERANCE, "{name}, position {position}: {distance:.2e}");
            }
        }
        let request = Request {
            prompt: expected.greedy.prompt.clone(),
            max_tokens: expected.greedy.tokens.len(),
            ..Request::default()
        };
        let mut service = Service::single(engine).expect("it serves");
        let go_on = &mut |_| ControlFlow::Continue(());
        let generated = service.generate(&mut None, &request, go_on).expect("it runs");
        assert_eq!(generated.tokens, expected.greedy.tokens, "{name}");
    }
}

fn options() -> Options {
    Options { context: 80, logit_rows: 40, ..Options::default() }
}

#[test]
fn the_fast_path_agrees_with_transformers() {
    compare(Math::Fast, &options());
}

#[test]
fn the_reference_agrees_with_transformers() {
    compare(Math::Reference, &options());
}

#[test]
fn streamed_weights_agree_with_transformers() {
    let budget = Budget { resident_fraction: Some(0.0), stream_check: true, ..Budget::default() };
    compare(Math::Fast, &Options { budget, ..options() });
}

/// Prefill in one piece, in pieces, and token by token: the CPU computes each row alone, so not a bit
/// differs.
#[test]
fn pieces_of_a_prompt_give_the_same_logits() {
    for path in checkpoints() {
        let prompt = &expected(&path).cases[2].prompt;
        let logits = |options: &Options| {
            let mut engine = engine(&path, Math::Fast, options);
            engine.logits(&mut engine.free_pages(), prompt).expect("it runs")
        };
        let whole = logits(&options());
        for rows in [1, 7, 16] {
            let pieces = Options { logit_rows: rows, ..options() };
            assert!(logits(&pieces) == whole, "{}, {rows} at a time", path.display());
        }
    }
}
