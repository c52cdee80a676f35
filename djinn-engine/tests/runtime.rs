//! Two models on one device: each computes what it would alone, equal weights are kept once, and one budget holds both.

use djinn_cpu::{Math, SimConfig, SimDevice};
use djinn_device::{Device, Space};
use djinn_engine::{Budget, Engine, Entry, Error, Options, Runtime, Wanted};
use djinn_models::{Location, OpenOptions, open};
use std::ops::ControlFlow;

const SMALL: &str =
    "tiny?layers=2&hidden=96&intermediate=160&heads=6&kv_heads=2&head_dim=16&vocab=700&tied=true";
const OTHER: &str =
    "tiny?layers=3&hidden=64&intermediate=128&heads=4&kv_heads=4&head_dim=16&vocab=300&tied=false";

fn options(resident_fraction: f64) -> Options {
    let budget = Budget { resident_fraction: Some(resident_fraction), ..Budget::default() };
    Options { budget, context: 64, ..Options::default() }
}

fn runtime(seed: u64) -> Runtime<SimDevice> {
    let config = SimConfig { seed, math: Math::Fast, ..SimConfig::default() };
    Runtime::new(SimDevice::new(config).expect("a device")).expect("a stream")
}

type Shared<'a> = Engine<SimDevice, &'a Runtime<SimDevice>>;

fn load<'a>(runtime: &'a Runtime<SimDevice>, model: &str, options: &Options) -> Result<Shared<'a>, Error> {
    let model = open(&Location::Synthetic(model.into()), &OpenOptions::default()).expect("a known shape");
    Engine::load_on(runtime, model.graph, &*model.source, options, &mut |_, _| ControlFlow::Continue(()))
}

/// Bits of the logits of a prompt and some decode steps of each model, by turns.
fn run(models: &mut [&mut Shared<'_>]) -> Vec<Vec<u32>> {
    let mut sequences: Vec<_> = models.iter().map(|model| (model.free_pages(), Default::default())).collect();
    let mut bits = vec![Vec::new(); models.len()];
    for tokens in [&[1, 2, 3, 4, 5][..], &[6], &[7], &[8], &[9], &[10]] {
        for ((model, (pages, sequence)), bits) in models.iter_mut().zip(&mut sequences).zip(&mut bits) {
            let batch = &mut [Entry::new(sequence, tokens, Wanted::Last)];
            let (logits, _) = model.step(pages, batch).expect("it runs");
            bits.extend(logits.iter().map(|logit| logit.to_bits()));
        }
    }
    bits
}

#[test]
fn models_on_one_device_compute_what_each_does_alone() {
    let alone = |model, fraction| {
        let runtime = runtime(0);
        let mut model = load(&runtime, model, &options(fraction)).expect("it fits");
        run(&mut [&mut model]).remove(0)
    };
    let expected = [alone(SMALL, 1.0), alone(OTHER, 1.0)];
    for seed in 1..6 {
        let runtime = runtime(seed);
        let mut first = load(&runtime, SMALL, &options(0.3)).expect("it fits");
        let mut second = load(&runtime, OTHER, &options(0.6)).expect("it fits");
        assert_eq!(run(&mut [&mut first, &mut second]), expected, "seed {seed}");
        assert!(first.replayed_passes() > 0 && second.replayed_passes() > 0);
        first.leave();
        assert_eq!(run(&mut [&mut second])[0], expected[1], "after the other is gone");
        second.leave();
        for space in [Space::Device, Space::Host] {
            assert_eq!(runtime.device().usage(space).in_use, 0, "{space:?} memory is given back");
        }
    }
}

#[test]
fn equal_weights_are_kept_once() {
    let runtime = runtime(7);
    let used = |runtime: &Runtime<SimDevice>| runtime.device().usage(Space::Device).in_use;
    let mut first = load(&runtime, SMALL, &options(1.0)).expect("it fits");
    let one = used(&runtime);
    let mut second = load(&runtime, SMALL, &options(1.0)).expect("it fits");
    let weights = first.plan().segments.resident;
    assert_eq!(used(&runtime), 2 * one - weights);
    let bits = run(&mut [&mut first, &mut second]);
    assert_eq!(bits[0], bits[1]);
    first.leave();
    assert_eq!(run(&mut [&mut second])[0], bits[0], "the other still has its weights");
    second.leave();
    assert_eq!(used(&runtime), 0);
}

#[test]
fn a_load_that_is_cancelled_leaves_nothing_on_the_runtime() {
    let runtime = runtime(9);
    let first = load(&runtime, SMALL, &options(0.5)).expect("it fits");
    let used = || [Space::Device, Space::Host].map(|space| runtime.device().usage(space).in_use);
    let before = used();
    let other = open(&Location::Synthetic(OTHER.into()), &OpenOptions::default()).expect("a known shape");
    let stop = &mut |_, _| ControlFlow::Break(());
    let cancelled = Engine::load_on(&runtime, other.graph, &*other.source, &options(0.5), stop);
    assert!(matches!(cancelled, Err(Error::Cancelled)));
    assert_eq!(used(), before);
    first.leave();
    assert_eq!(used(), [0, 0]);
}

#[test]
fn one_budget_holds_all_models() {
    let runtime = runtime(8);
    let options = |vram| {
        let budget = Budget { vram: Some(vram), ..Budget::default() };
        Options { budget, context: 64, ..Options::default() }
    };
    let needed = {
        let model = load(&runtime, SMALL, &self::options(1.0)).expect("it fits");
        let bytes = model.plan().segments.total();
        model.leave();
        bytes
    };
    let first = load(&runtime, SMALL, &options(needed)).expect("it takes all of the budget");
    match load(&runtime, OTHER, &options(needed)) {
        Err(Error::Memory(djinn_vmu::Error::BudgetTooSmall { .. })) => {}
        other => panic!("there is no room for {:?}", other.map(|model| model.plan().segments)),
    }
    first.leave();
    let second = load(&runtime, OTHER, &options(needed)).expect("there is room again");
    second.leave();
    assert_eq!(runtime.device().usage(Space::Device).in_use, 0);
}
