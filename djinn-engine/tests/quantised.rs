//! Quantised checkpoints (`scripts/make_quant_checkpoints.py`): the logits of their decoded weights, in blocks, streamed
//! and decoded to 16 bits.

use djinn_cpu::{CpuConfig, CpuDevice};
use djinn_engine::{Budget, Engine, Options};
use djinn_models::{Location, OpenOptions, open};
use djinn_srg::Encoding;
use std::ops::ControlFlow;
use std::path::Path;

/// The last position's logits.
fn logits(path: &Path, encodings: &'static [Encoding], resident: f64, prompt: &[u32]) -> Vec<f32> {
    let options = OpenOptions { encodings, ..OpenOptions::default() };
    let model = open(&Location::Directory(path.into()), &options).expect("it opens");
    let device = CpuDevice::new(CpuConfig { threads: 2, ..CpuConfig::default() }).expect("threads");
    let budget = Budget { resident_fraction: Some(resident), stream_check: true, ..Budget::default() };
    let options = Options { context: 16, logit_rows: 9, budget, ..Options::default() };
    let mut engine =
        Engine::load(device, model.graph, &*model.source, &options, &mut |_, _| ControlFlow::Continue(()))
            .expect("it loads");
    let vocab = engine.graph().vocab as usize;
    engine.logits(&mut engine.free_pages(), prompt).expect("it runs").split_off((prompt.len() - 1) * vocab)
}

fn distance(found: &[f32], expected: &[f32]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    assert_eq!(found.len(), expected.len());
    let error = norm(&mut found.iter().zip(expected).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    error / norm(&mut expected.iter().map(|x| f64::from(*x)))
}

#[test]
fn quantised_checkpoints_have_the_logits_of_their_decoded_weights() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../djinn-models/tests/quantised");
    let mut checkpoints = 0;
    for entry in std::fs::read_dir(root).expect("the checkpoints are in the repository") {
        let path = entry.expect("readable").path();
        let text =
            std::fs::read_to_string(path.join("expected.json")).expect("answers lie beside the weights");
        let expected: serde_json::Value = serde_json::from_str(&text).expect("the script's JSON");
        for case in expected["cases"].as_array().expect("cases") {
            let numbers = |key: &str| case[key].as_array().expect(key).iter();
            let prompt: Vec<u32> = numbers("prompt").map(|x| x.as_u64().expect("a token") as u32).collect();
            let wanted: Vec<f32> = numbers("logits").map(|x| x.as_f64().expect("a logit") as f32).collect();
            let stored = logits(&path, &Encoding::ENCODED, 1.0, &prompt);
            let far = distance(&stored, &wanted);
            assert!(far <= 1e-5, "{}: {far:.2e}", path.display());
            let streamed = logits(&path, &Encoding::ENCODED, 0.0, &prompt);
            assert!(streamed == stored, "{}: streaming changes bits", path.display());
            let decoded = distance(&logits(&path, &[], 1.0, &prompt), &wanted);
            assert!(decoded <= 1e-3, "{} decoded to f16: {decoded:.2e}", path.display());
        }
        checkpoints += 1;
    }
    assert_eq!(checkpoints, 8);
}
