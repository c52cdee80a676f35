//! Every hook point of every tiny checkpoint reads what PyTorch's forward hooks see at that place in transformers.
//!
//! The values come from `scripts/make_hook_fixtures.py`, in float32 from the stored weights.

use djinn_cpu::{CpuConfig, CpuDevice, Math};
use djinn_engine::debug::{
    AtTtl, AttentionScores, Breakpoint, DebugSetup, Debugger, Filter, KvRange, Look, Looked,
};
use djinn_engine::{
    Act, Captured, Engine, Entry, Intervention, Opening, Options, Sequence, Service, SessionId, Turn, Wanted,
};
use djinn_models::{Location, OpenOptions, open};
use safetensors::SafeTensors;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// ‖found − expected‖ / ‖expected‖ of each token's values: both sides compute in float32, in orders of their own.
const TOLERANCE: f64 = 1e-5;

/// By name of a hook: f32 `[3, width]`, for the first, middle and last position.
type Expected = BTreeMap<String, Vec<f32>>;

struct Fixture {
    /// By name of a checkpoint.
    expected: BTreeMap<String, Expected>,
    /// By name of a checkpoint: modules of transformers, with the hook that reads their output.
    modules: BTreeMap<String, BTreeMap<String, String>>,
}

fn fixture() -> Fixture {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/transformers-hooks.safetensors");
    let bytes = std::fs::read(path).expect("the fixture is in the repository");
    let (_, header) = SafeTensors::read_metadata(&bytes).expect("the script's file");
    let modules = &header.metadata().as_ref().expect("it says what modules there are")["modules"];
    let mut expected: BTreeMap<String, Expected> = BTreeMap::new();
    for (name, tensor) in SafeTensors::deserialize(&bytes).expect("the script's file").tensors() {
        let (checkpoint, hook) = name.split_once('/').expect("CHECKPOINT/HOOK");
        assert_eq!((tensor.dtype(), tensor.shape()[0]), (safetensors::Dtype::F32, 3), "{name}");
        let values = tensor.data().chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().expect("four")));
        expected.entry(checkpoint.to_owned()).or_default().insert(hook.to_owned(), values.collect());
    }
    Fixture { expected, modules: serde_json::from_str(modules).expect("JSON") }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../djinn-models/tests/checkpoints")
}

fn engine(checkpoint: &str, math: Math) -> Engine<CpuDevice> {
    let place = Location::Directory(root().join(checkpoint));
    let model = open(&place, &OpenOptions::default()).expect("it opens");
    let device = CpuDevice::new(CpuConfig { math, threads: 2, ..CpuConfig::default() }).expect("threads");
    let options = Options { context: 80, logit_rows: 16, hook_bytes: 1 << 20, ..Options::default() };
    Engine::load(device, model.graph, &*model.source, &options, &mut |_, _| ControlFlow::Continue(()))
        .expect("it loads")
}

/// The prompt of nine tokens.
fn prompt(checkpoint: &str) -> Vec<u32> {
    let text = std::fs::read_to_string(root().join(checkpoint).join("expected.json")).expect("readable");
    let json: serde_json::Value = serde_json::from_str(&text).expect("the script's JSON");
    serde_json::from_value(json["cases"][1]["prompt"].clone()).expect("token ids")
}

/// What is read at these hooks for every token of the prompt.
fn read(engine: &mut Engine<CpuDevice>, tokens: &[u32], hooks: &[String]) -> Vec<Captured> {
    let all = 0..tokens.len();
    let at = |name: &String| {
        let hook = engine.graph().hook(name).unwrap_or_else(|| panic!("no hook {name}")).clone();
        Intervention { hook, tokens: vec![all.clone()], act: Act::Capture }
    };
    let interventions: Vec<Intervention> = hooks.iter().map(at).collect();
    let mut sequence = Sequence::default();
    let entry = Entry { interventions: &interventions, ..Entry::new(&mut sequence, tokens, Wanted::All) };
    engine.step(&mut engine.free_pages(), &mut [entry]).expect("it runs");
    engine.take_captured()
}

fn distance(found: &[f32], expected: &[f32]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    assert_eq!(found.len(), expected.len());
    let error = norm(&mut found.iter().zip(expected).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    error / norm(&mut expected.iter().map(|x| f64::from(*x)))
}

fn compare(math: Math) {
    for (checkpoint, expected) in fixture().expected {
        let (mut engine, tokens) = (engine(&checkpoint, math), prompt(&checkpoint));
        let hooks: Vec<String> = expected.keys().cloned().collect();
        let captured = read(&mut engine, &tokens, &hooks);
        assert_eq!(captured.len(), hooks.len(), "{checkpoint}");
        for (captured, (hook, expected)) in captured.iter().zip(&expected) {
            let width = expected.len() / 3;
            assert_eq!(captured.values.len(), tokens.len() * width, "{checkpoint}, {hook}");
            let rows = [0, tokens.len() / 2, tokens.len() - 1];
            for (row, expected) in rows.into_iter().zip(expected.chunks_exact(width)) {
                let distance = distance(&captured.values[row * width..][..width], expected);
                assert!(distance <= TOLERANCE, "{checkpoint}, {hook}, token {row}: {distance:.2e}");
            }
        }
    }
}

#[test]
fn hooks_read_what_transformers_computes() {
    compare(Math::Fast);
}

#[test]
fn hooks_of_the_reference_read_what_transformers_computes() {
    compare(Math::Reference);
}

/// No hook point of any checkpoint is left out, and modules of transformers name the hook that reads their output.
#[test]
fn every_hook_point_is_compared() {
    let Fixture { expected, modules } = fixture();
    let entries = std::fs::read_dir(root()).expect("the checkpoints are in the repository");
    let folders = entries.map(|e| e.expect("readable").file_name().to_string_lossy().into_owned());
    assert_eq!(folders.collect::<BTreeSet<_>>(), expected.keys().cloned().collect());
    for (checkpoint, expected) in &expected {
        let model = open(&Location::Directory(root().join(checkpoint)), &OpenOptions::default());
        let graph = model.expect("it opens").graph;
        for names in graph.hook_points() {
            let compared = names.iter().any(|hook| expected.contains_key(&hook.name));
            assert!(compared, "{checkpoint}: {}", names[0].name);
        }
        for (module, hook) in &modules[checkpoint] {
            let found = graph.hook(module).unwrap_or_else(|| panic!("{checkpoint}: no hook {module}"));
            let same = graph.hook(hook).expect("it is compared");
            assert_eq!((found.value, found.columns), (same.value, same.columns), "{checkpoint}: {module}");
        }
    }
}

fn settle(service: &mut Service<CpuDevice>) {
    while service.state().sessions().any(|session| session.is_ready())
        || service.idle_for() == Some(Duration::ZERO)
    {
        service.advance().expect("the device is sound");
    }
}

/// A block's pattern and, of the same tokens, its values.
fn attention(
    service: &mut Service<CpuDevice>,
    id: SessionId,
    layer: u32,
    end: u64,
) -> (AttentionScores, Looked) {
    let (sender, scores) = mpsc::channel();
    service.attention(id, layer, Box::new(move |read| sender.send(read).expect("it is awaited")));
    settle(service);
    let (sender, looked) = mpsc::channel();
    let caches = vec![KvRange { layer, positions: 0..end }];
    let look = Look { caches, ..Look::default() };
    service.look(id, look, Box::new(move |read| sender.send(read).expect("it is awaited")));
    settle(service);
    let read = |error: &str| panic!("{error}");
    let scores = scores.try_recv().expect("it is answered").unwrap_or_else(|error| read(&error.to_string()));
    (scores, looked.try_recv().expect("it is answered").expect("it is allowed"))
}

/// What attention's pattern makes of the cached values is what transformers' attention gives: with windows, ALiBi, rotated and
/// learned positions, one key head for several query heads.
#[test]
fn patterns_weigh_values_as_transformers_does() {
    for (checkpoint, expected) in fixture().expected {
        let engine = engine(&checkpoint, Math::Fast);
        let tokens = prompt(&checkpoint);
        let blocks =
            engine.graph().nodes.iter().filter_map(|node| node.layer).max().expect("it has blocks") + 1;
        let mut service = Service::single(engine).expect("it serves");
        let stop = Breakpoint {
            hook: service.hook("embed.hook_out").expect("every model has it"),
            filter: Filter::default(),
            condition: None,
            pause: true,
            capture: false,
            hits: None,
            ttl: None,
            at_ttl: AtTtl::Abort,
        };
        let debug = DebugSetup { breakpoints: vec![stop], steering: Vec::new() };
        let turn = Turn { tokens: tokens.clone(), max_tokens: 1, ..Turn::default() };
        let id = service.open(Opening { turn, debug, ..Opening::default() }).expect("there is room");
        settle(&mut service);
        for layer in 0..blocks {
            let Some(z) = expected.get(&format!("blocks.{layer}.attn.hook_z")) else {
                panic!("{checkpoint}: no fixture of block {layer}")
            };
            let (scores, looked) = attention(&mut service, id, layer, tokens.len() as u64);
            let (pattern, cache) = (scores.pattern(), &looked.caches[0]);
            let (heads, kv_heads) = (scores.heads as usize, cache.kv_heads as usize);
            let (dim, count) = (cache.head_dim as usize, tokens.len());
            let rows = [0, count / 2, count - 1];
            for (row, expected) in rows.into_iter().zip(z.chunks_exact(heads * dim)) {
                let mut found = vec![0.0; heads * dim];
                for (head, found) in found.chunks_exact_mut(dim).enumerate() {
                    let weights = &pattern[(head * count + row) * count..][..count];
                    assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{checkpoint}: rows sum to 1");
                    assert!(
                        weights[row + 1..].iter().all(|&weight| weight == 0.0),
                        "{checkpoint}: the future"
                    );
                    for (key, weight) in weights.iter().enumerate() {
                        let at = (key * kv_heads + head * kv_heads / heads) * dim;
                        let values = &cache.values[at..][..dim];
                        found.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight * value);
                    }
                }
                let distance = distance(&found, expected);
                assert!(distance <= TOLERANCE, "{checkpoint}, block {layer}, token {row}: {distance:.2e}");
            }
        }
    }
}
