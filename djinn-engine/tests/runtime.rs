//! Models on one device: each computes what it would alone, equal weights are kept once, one budget holds all, and a model
//! that left the device for another comes back as it was.

use djinn_cpu::{Math, SimConfig, SimDevice};
use djinn_device::{Device, Space};
use djinn_engine::{Batcher, Budget, Engine, Entry, Error, Options, Runtime, Service, Wanted};
use djinn_models::{Location, Model, OpenOptions, open};
use djinn_vmu::{SourceError, WeightSource};
use std::ops::{ControlFlow, Range};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

const SMALL: &str =
    "tiny?layers=2&hidden=96&intermediate=160&heads=6&kv_heads=2&head_dim=16&vocab=700&tied=true";
const OTHER: &str =
    "tiny?layers=3&hidden=64&intermediate=128&heads=4&kv_heads=4&head_dim=16&vocab=300&tied=false";

fn options(resident_fraction: f64) -> Options {
    let budget = Budget { resident_fraction: Some(resident_fraction), ..Budget::default() };
    Options { budget, context: 64, ..Options::default() }
}

fn runtime(seed: u64) -> Rc<Runtime<SimDevice>> {
    Rc::new(Runtime::new(device(seed)).expect("a stream"))
}

fn device(seed: u64) -> SimDevice {
    let config = SimConfig { seed, math: Math::Fast, ..SimConfig::default() };
    SimDevice::new(config).expect("a device")
}

type Shared = Engine<SimDevice>;

fn load(runtime: &Rc<Runtime<SimDevice>>, model: &str, options: &Options) -> Result<Shared, Error> {
    let Model { graph, source, .. } = opened(model);
    Engine::load_on(Rc::clone(runtime), graph, &*source, options, &mut |_, _| ControlFlow::Continue(()))
}

fn opened(model: &str) -> Model {
    open(&Location::Synthetic(model.into()), &OpenOptions::default()).expect("a known shape")
}

/// Bits of the logits of a prompt and some decode steps of each model, by turns.
fn run(models: &mut [&mut Shared]) -> Vec<Vec<u32>> {
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

/// A model that loads and then cannot be served leaves nothing behind.
#[test]
fn an_engine_that_is_refused_leaves_its_runtime() {
    let runtime = runtime(0);
    let loaded = |options: &Options| load(&runtime, SMALL, options).expect("it fits");
    let is_empty = || {
        for space in [Space::Device, Space::Host] {
            assert_eq!(runtime.device().usage(space).in_use, 0, "{space:?} memory is given back");
        }
    };
    // More sequences than rows of logits; prefill chunks that are no whole pages.
    for options in
        [Options { sequences: 4, ..options(1.0) }, Options { prefill_rows: 24, ..options(1.0) }.serving(4)]
    {
        assert!(matches!(Batcher::new(loaded(&options)), Err(Error::Option(_))));
        is_empty();
    }
    let why = djinn_scheduler::Error::Backend { reason: "planted".to_owned() };
    let refused = Service::new(loaded(&options(1.0)), |_| Err(why));
    assert!(matches!(refused.err(), Some(Error::Stopped(why)) if why == "planted"));
    is_empty();
    let failed = loaded(&options(1.0)).prepared(|_| Err::<(), _>("it is planted"));
    assert_eq!(failed.err(), Some("it is planted"));
    is_empty();
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
    let used = |runtime: &Rc<Runtime<SimDevice>>| runtime.device().usage(Space::Device).in_use;
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

/// A trace, captures, swaps and a streamed model need streams and events of their own.
#[test]
fn a_model_that_leaves_or_fails_to_load_gives_back_its_streams_and_events() {
    let options = Options { host_pages: 2, ..options(0.5) };
    for fail in 1.. {
        let config = SimConfig { math: Math::Fast, fail_alloc_at: Some(fail), ..SimConfig::default() };
        let runtime = Rc::new(Runtime::new(SimDevice::new(config).expect("a device")).expect("a stream"));
        let before = runtime.device().handles();
        match load(&runtime, OTHER, &options) {
            Err(_) => assert_eq!(runtime.device().handles(), before, "allocation {fail}"),
            Ok(mut model) => {
                run(&mut [&mut model]);
                model.start_trace().expect("it starts");
                run(&mut [&mut model]);
                model.start_trace().expect("it starts again");
                run(&mut [&mut model]);
                assert!(model.replayed_passes() > 0 && runtime.device().handles() > before);
                model.leave();
                assert_eq!(runtime.device().handles(), before);
                return assert!(fail > 10, "loading makes {fail} allocations");
            }
        }
    }
}

#[test]
fn a_load_that_is_cancelled_leaves_nothing_on_the_runtime() {
    let runtime = runtime(9);
    let first = load(&runtime, SMALL, &options(0.5)).expect("it fits");
    let used = || [Space::Device, Space::Host].map(|space| runtime.device().usage(space).in_use);
    let before = (used(), runtime.device().handles());
    let other = opened(OTHER);
    let stop = &mut |_, _| ControlFlow::Break(());
    let cancelled = Engine::load_on(Rc::clone(&runtime), other.graph, &*other.source, &options(0.5), stop);
    assert!(matches!(cancelled, Err(Error::Cancelled)));
    assert_eq!((used(), runtime.device().handles()), before);
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

/// Weights, some of them changed, and how many bytes were read.
struct Tuned<'a> {
    of: &'a dyn WeightSource,
    /// Weights whose names begin so are changed by this.
    change: (&'a str, AtomicU64),
    read: AtomicU64,
}

impl<'a> Tuned<'a> {
    fn new(of: &'a dyn WeightSource, names: &'a str, by: u64) -> Self {
        Tuned { of, change: (names, AtomicU64::new(by)), read: AtomicU64::new(0) }
    }

    fn take_read(&self) -> u64 {
        self.read.swap(0, Ordering::Relaxed)
    }
}

impl WeightSource for Tuned<'_> {
    fn read_rows(&self, name: &str, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        self.read.fetch_add(out.len() as u64, Ordering::Relaxed);
        self.of.read_rows(name, rows, out)?;
        if name.starts_with(self.change.0) {
            out[0] ^= self.change.1.load(Ordering::Relaxed) as u8;
        }
        Ok(())
    }
}

fn go_on(_: u64, _: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn a_model_that_left_for_another_comes_back_as_it_was() {
    let [small, other] = [SMALL, OTHER].map(opened);
    for (seed, fraction, copies) in [(1, 1.0, u64::MAX), (2, 0.4, u64::MAX), (3, 1.0, 0), (4, 0.4, 0)] {
        let runtime = Rc::new(Runtime::in_turns(device(seed), copies).expect("a stream"));
        let used = |space| runtime.device().usage(space).in_use;
        let [small_source, other_source] =
            [&small, &other].map(|model| Tuned::new(&*model.source, "none", 0));
        let load = |model: &Model, source: &Tuned<'_>| {
            Engine::load_on(Rc::clone(&runtime), model.graph.clone(), source, &options(fraction), &mut go_on)
        };
        let mut first = load(&small, &small_source).expect("it fits");
        let weights = runtime.weight_bytes(Space::Device);
        let expected = run(&mut [&mut first]);
        let (on_device, host) = (used(Space::Device), used(Space::Host));
        first.evict();
        assert_eq!(used(Space::Device), 0, "it has left");
        assert_eq!((used(Space::Host), first.missing_bytes()), (host, on_device), "what it has there stays");
        let mut second = load(&other, &other_source).expect("it fits");
        let others = run(&mut [&mut second]);
        second.evict();
        small_source.take_read();
        first.restore(&small_source, &mut go_on).expect("there is room");
        assert_eq!((used(Space::Device), first.missing_bytes()), (on_device, 0));
        let again = if copies > 0 { 0 } else { weights };
        assert!(small_source.take_read().abs_diff(again) <= again / 50, "all but padding, or nothing");
        assert_eq!(run(&mut [&mut first]), expected, "seed {seed}");
        second.restore(&other_source, &mut go_on).expect("there is room");
        assert_eq!(run(&mut [&mut second, &mut first])[0], others[0], "beside the first");
        let given_up = first.drop_copies();
        // A norm of ones may be the other's as well.
        let most = if copies > 0 { weights } else { 0 };
        assert!(given_up <= most && given_up >= most.saturating_sub(1 << 10), "{given_up} of {most}");
        first.evict();
        first.restore(&small_source, &mut go_on).expect("there is room");
        assert_eq!(run(&mut [&mut first]), expected, "read again, seed {seed}");
        first.evict();
        first.leave();
        second.leave();
        assert_eq!([Space::Device, Space::Host].map(used), [0, 0], "all is given back");
    }
}

#[test]
fn a_return_that_fails_leaves_the_model_away() {
    let model = opened(SMALL);
    let source = Tuned::new(&*model.source, "", 0);
    let needed = {
        let runtime = runtime(1);
        let engine = load(&runtime, SMALL, &options(1.0)).expect("it fits");
        engine.plan().segments.total()
    };
    let config = SimConfig { seed: 5, math: Math::Fast, vram: Some(needed), ..SimConfig::default() };
    let runtime = Rc::new(Runtime::in_turns(SimDevice::new(config).expect("a device"), 0).expect("a stream"));
    let used = || [Space::Device, Space::Host].map(|space| runtime.device().usage(space).in_use);
    let mut engine =
        Engine::load_on(Rc::clone(&runtime), model.graph.clone(), &source, &options(1.0), &mut go_on)
            .expect("it fits");
    let expected = run(&mut [&mut engine]);
    engine.evict();
    let before = used();
    let in_the_way = runtime.device().alloc(Space::Device, 1).expect("there is room");
    let full = engine.restore(&source, &mut go_on).expect_err("a byte is missing");
    assert!(full.to_string().contains("memory"), "{full}");
    runtime.device().free(in_the_way);
    assert_eq!((used(), engine.is_away()), (before, true));
    source.change.1.store(1, Ordering::Relaxed);
    let changed = engine.restore(&source, &mut go_on).expect_err("it is another model");
    assert!(changed.to_string().contains("changed since it was loaded"), "{changed}");
    assert_eq!((used(), engine.is_away()), (before, true));
    source.change.1.store(0, Ordering::Relaxed);
    let cancelled = engine.restore(&source, &mut |_, _| ControlFlow::Break(()));
    assert!(matches!(cancelled, Err(Error::Cancelled)));
    assert_eq!((used(), engine.is_away()), (before, true));
    engine.restore(&source, &mut go_on).expect("all is well");
    assert_eq!(run(&mut [&mut engine]), expected);
}

#[test]
fn fine_tunes_cost_what_they_have_in_common_once() {
    /// Models, each with a last block of its own.
    const TUNES: u64 = 10;
    let base =
        opened("tiny?layers=4&hidden=64&intermediate=96&heads=4&kv_heads=2&head_dim=16&vocab=300&tied=true");
    let tuned = |name: &str| name.contains(".3.");
    let names: Vec<String> = base.graph.weights().map(|(_, value)| value.name.clone()).collect();
    let prefix = names.iter().find(|name| tuned(name)).expect("a last block");
    let prefix = &prefix[..prefix.find(".3.").expect("as above") + 3];
    let runtime = Rc::new(Runtime::in_turns(device(3), u64::MAX).expect("a stream"));
    let budget = Budget { chunk: None, ..options(1.0).budget };
    let options = Options { budget, context: 16, ..Options::default() };
    let mut engines: Vec<Shared> = Vec::new();
    let sources: Vec<Tuned<'_>> = (0..TUNES).map(|by| Tuned::new(&*base.source, prefix, by)).collect();
    for source in &sources {
        let loaded = Engine::load_on(Rc::clone(&runtime), base.graph.clone(), source, &options, &mut go_on);
        engines.push(loaded.expect("it fits"));
    }
    let placement = &engines[0].plan().placement;
    let is_own = |chunk: &djinn_vmu::Chunk| {
        let parts = placement.tiles[chunk.tiles.clone()].iter().flat_map(|placed| &placed.tile.parts);
        parts.into_iter().any(|part| base.graph.value(part.value).name.starts_with(prefix))
    };
    let bytes = |own: bool| -> u64 {
        placement.chunks.iter().filter(|chunk| is_own(chunk) == own).map(|chunk| chunk.bytes).sum()
    };
    let (common, own) = (bytes(false), bytes(true));
    assert!(common > own && own > 0, "{common} {own}");
    for space in [Space::Device, Space::Host] {
        assert_eq!(runtime.weight_bytes(space), common + TUNES * own, "{space:?}");
    }
    let beside: u64 = engines.iter().map(|engine| engine.plan().segments.total() - common - own).sum();
    assert_eq!(runtime.device().usage(Space::Device).in_use, common + TUNES * own + beside);
    let first = run(&mut [&mut engines[4]]);
    for engine in &mut engines[1..] {
        engine.evict();
    }
    assert_eq!(runtime.weight_bytes(Space::Device), common + own, "of the one that stays");
    let one = engines[4].plan().segments.total();
    assert_eq!(engines[4].missing_bytes(), one - common, "what is common is there");
    engines[0].evict();
    assert_eq!(runtime.device().usage(Space::Device).in_use, 0);
    engines[4].restore(&sources[4], &mut go_on).expect("there is room");
    assert_eq!(runtime.device().usage(Space::Device).in_use, one);
    assert_eq!(run(&mut [&mut engines[4]]), first);
    engines.into_iter().for_each(|engine| drop(engine.leave()));
    assert_eq!([Space::Device, Space::Host].map(|space| runtime.device().usage(space).in_use), [0, 0]);
}
