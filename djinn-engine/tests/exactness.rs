//! Logits are the same bits wherever the weights are, in whatever order the device works.

use djinn_cpu::{CpuConfig, CpuDevice, Math, SimConfig, SimDevice};
use djinn_device::{Error as DeviceError, Ops, Space};
use djinn_engine::{Budget, Engine, Error, Generate, Options, Request, Service};
use djinn_models::{Location, Model, OpenOptions, open};
use std::ops::ControlFlow;
use std::sync::LazyLock;

/// Three blocks, GQA, a tied table: some fifteen tiles of unequal size.
const SHAPE: &str =
    "tiny?layers=3&hidden=96&intermediate=160&heads=6&kv_heads=2&head_dim=16&vocab=700&tied=true";
const FRACTIONS: [f64; 6] = [0.0, 0.1, 0.25, 0.5, 0.9, 1.0];
const CHUNKS: [u64; 3] = [66_000, 100_000, 400_000];
const RINGS: [u64; 3] = [1, 2, 5];
const PROMPTS: [usize; 3] = [1, 17, 512];

/// Opened once, since hundreds of runs load it.
static MODEL: LazyLock<Model> = LazyLock::new(|| {
    open(&Location::Synthetic(SHAPE.into()), &OpenOptions::default()).expect("a known shape")
});

fn prompt(len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (i * 37 + 11) % 700).collect()
}

fn options(fraction: f64, chunk: u64, rings: u64) -> Options {
    let budget = Budget {
        resident_fraction: Some(fraction),
        chunk: Some(chunk),
        ring: Some(rings * chunk),
        ..Budget::default()
    };
    Options { budget, context: 560, logit_rows: 1, ..Options::default() }
}

fn load<D: Ops>(device: D, options: &Options) -> Result<Engine<D>, Error> {
    let Model { graph, source, .. } = &*MODEL;
    Engine::load(device, graph.clone(), &**source, options, &mut |_, _| ControlFlow::Continue(()))
}

fn cpu() -> CpuDevice {
    CpuDevice::new(CpuConfig { threads: 2, ..CpuConfig::default() }).expect("threads")
}

fn sim(config: SimConfig) -> SimDevice {
    SimDevice::new(SimConfig { math: Math::Fast, ..config }).expect("a device")
}

/// The bits of the logits after the prompt and after each of two more tokens.
fn run<D: Ops>(device: D, options: &Options, prompt_len: usize) -> Result<Vec<u32>, Error> {
    let mut service = Service::single(load(device, options)?)?;
    let mut session = None;
    let mut bits = Vec::new();
    let mut tokens = prompt(prompt_len);
    for _ in 0..3 {
        let request = Request { prompt: tokens.clone(), max_tokens: 1, ..Request::default() };
        let generated = service.generate(&mut session, &request, &mut |_| ControlFlow::Continue(()))?;
        bits.extend(service.engine().latest_logits(0)?.iter().map(|l| l.to_bits()));
        tokens.extend(generated.tokens);
    }
    service.close(session)?;
    let device = service.into_engine()?.unload();
    for space in [Space::Device, Space::Host] {
        assert_eq!(device.usage(space).in_use, 0, "{space:?} memory is given back");
    }
    Ok(bits)
}

fn resident(prompt_len: usize) -> Vec<u32> {
    let options = Options { context: 560, ..Options::default() };
    let bits = run(cpu(), &options, prompt_len).expect("it runs");
    assert!(bits.iter().all(|&b| f32::from_bits(b).is_finite()));
    bits
}

fn configurations() -> impl Iterator<Item = (f64, u64, u64, usize)> {
    let chunks = || FRACTIONS.into_iter().flat_map(|f| CHUNKS.into_iter().map(move |c| (f, c)));
    let rings = move || chunks().flat_map(|(f, c)| RINGS.into_iter().map(move |r| (f, c, r)));
    PROMPTS.into_iter().flat_map(move |p| rings().map(move |(f, c, r)| (f, c, r, p)))
}

#[test]
fn placement_never_changes_a_bit_on_the_cpu() {
    let expected = PROMPTS.map(resident);
    for (fraction, chunk, rings, len) in configurations() {
        let bits = run(cpu(), &options(fraction, chunk, rings), len).expect("it runs");
        let at = PROMPTS.iter().position(|&p| p == len).expect("listed");
        assert!(
            bits == expected[at],
            "fraction {fraction}, chunk {chunk}, {rings} chunks of ring, prompt {len}"
        );
    }
}

#[test]
fn no_order_of_events_changes_a_bit() {
    let expected = PROMPTS.map(resident);
    let seeds = configurations().chain(configurations()).enumerate().filter(|(i, c)| *i < 162 || c.3 < 512);
    let mut runs = 0;
    for (seed, (fraction, chunk, rings, len)) in seeds {
        let mut options = options(fraction, chunk, rings);
        options.budget.stream_check = seed % 3 == 0;
        let device = sim(SimConfig { seed: seed as u64, ..SimConfig::default() });
        let bits = run(device, &options, len).expect("it runs");
        let at = PROMPTS.iter().position(|&p| p == len).expect("listed");
        assert!(
            bits == expected[at],
            "seed {seed}: fraction {fraction}, chunk {chunk}, ring {rings}, prompt {len}"
        );
        runs += 1;
    }
    assert!(runs >= 200, "{runs} seeds");
}

/// Neither copies that wait until they are needed nor chunks that straddle the wrap change a bit.
#[test]
fn ablations_change_no_bit() {
    let expected = PROMPTS.map(resident);
    let mut straddled = 0;
    for (seed, (fraction, chunk, rings, len)) in configurations().enumerate() {
        let mut options = options(fraction, chunk, rings);
        // Half a chunk more, so that chunks of one size straddle as well.
        options.budget.ring = Some(rings * chunk + chunk / 2);
        let (blocking_copies, straddle) = [(true, false), (false, true), (true, true)][seed % 3];
        options.budget = Budget { blocking_copies, straddle, ..options.budget };
        options.budget.stream_check = seed % 2 == 0;
        let plan = options.plan(&MODEL.graph, 0).expect("it fits");
        let ring = &plan.placement.ring;
        straddled += (0..ring.slots().len()).filter(|&slot| !ring.parts(slot)[1].is_empty()).count();
        let at = PROMPTS.iter().position(|&p| p == len).expect("listed");
        let what = format!("{:?}, prompt {len}, seed {seed}", options.budget);
        assert!(run(cpu(), &options, len).expect("it runs") == expected[at], "{what}, on the CPU");
        if len < 512 {
            let device = sim(SimConfig { seed: seed as u64, ..SimConfig::default() });
            assert!(run(device, &options, len).expect("it runs") == expected[at], "{what}, simulated");
        }
    }
    assert!(straddled > 50, "{straddled} chunks straddled");
}

/// Nor do products that the CPU computes where their weights lie.
#[test]
fn products_in_host_memory_change_no_bit() {
    let expected = PROMPTS.map(resident);
    let mut on_cpu = 0;
    let some = configurations().filter(|c| c.3 < 512).step_by(2);
    for (seed, (fraction, chunk, rings, len)) in some.enumerate() {
        let mut options = options(fraction, chunk, rings);
        options.budget.cpu_share = [0.3, 0.5, 1.0][seed % 3];
        options.budget.blocking_copies = seed % 7 == 0;
        options.budget.stream_check = seed % 2 == 0;
        on_cpu += options.plan(&MODEL.graph, 0).expect("it fits").placement.cpu_bytes();
        let at = PROMPTS.iter().position(|&p| p == len).expect("listed");
        let what = format!("{:?}, prompt {len}, seed {seed}", options.budget);
        assert!(run(cpu(), &options, len).expect("it runs") == expected[at], "{what}, on the CPU");
        let device = sim(SimConfig { seed: seed as u64, ..SimConfig::default() });
        assert!(run(device, &options, len).expect("it runs") == expected[at], "{what}, simulated");
    }
    assert!(on_cpu > 0);
    let options = Options { budget: Budget { cpu_share: 0.5, ..Budget::default() }, ..Options::default() };
    let alone = sim(SimConfig { cpu_products: false, ..SimConfig::default() });
    assert!(matches!(load(alone, &options).err(), Some(Error::CpuProducts { .. })));
}

/// The waits of loading and one pass whose loss no seed betrays, and how many waits there are.
fn missed_waits(options: &Options) -> (Vec<u64>, u64) {
    let expected = resident(17);
    let waits = {
        let mut engine = load(sim(SimConfig::default()), options).expect("it loads");
        engine.logits(&mut engine.free_pages(), &prompt(1)).expect("it runs");
        engine.unload().calls().waits
    };
    assert!(waits >= 10, "{waits} waits in a pass");
    let caught = |wait: &u64| {
        (0..40).any(|seed| {
            let config = SimConfig { seed, drop_wait_at: Some(*wait), ..SimConfig::default() };
            // The simulator panics on some misuse; that counts as caught.
            let outcome = std::panic::catch_unwind(|| run(sim(config), options, 17));
            !matches!(outcome, Ok(Ok(bits)) if bits == expected)
        })
    };
    ((1..=waits).filter(|wait| !caught(wait)).collect(), waits)
}

/// The comparison of bits must notice every wait that goes missing.
#[test]
fn a_dropped_wait_is_caught() {
    for (straddle, cpu_share) in [(false, 0.0), (true, 0.0), (false, 0.5)] {
        let mut options = options(0.25, CHUNKS[0], 2);
        options.budget = Budget { straddle, cpu_share, ..options.budget };
        let (missed, waits) = missed_waits(&options);
        assert!(missed.is_empty(), "nothing noticed the loss of waits {missed:?} of {waits}: {options:?}");
    }
}

/// A blocking copy waits for its need, then the need for the copy. The first wait only protects bytes where
/// the copy overwrites the chunk used just before it; elsewhere its loss is one of time.
#[test]
fn a_dropped_wait_of_a_blocking_copy_is_caught() {
    let mut options = options(0.25, CHUNKS[0], 1);
    options.budget.blocking_copies = true;
    let plan = options.plan(&MODEL.graph, 0).expect("it fits");
    let slots = plan.placement.ring.slots();
    let (missed, waits) = missed_waits(&options);
    assert_eq!(waits, 2 * slots.len() as u64, "two waits for each copy");
    let needed = |wait: &&u64| {
        let slot = (**wait - 1) as usize / 2;
        let copy = (**wait).is_multiple_of(2);
        copy || slot > 0 && slots[slot].blocker.index == slot - 1
    };
    let unnoticed: Vec<_> = missed.iter().filter(needed).collect();
    assert!(unnoticed.is_empty(), "nothing noticed the loss of waits {unnoticed:?} of {waits}");
    assert!(missed.len() < waits as usize / 2, "{} of {waits} waits do not matter", missed.len());
}

#[test]
fn a_lost_allocation_is_an_error_and_leaks_nothing_it_can_free() {
    let options = options(0.5, CHUNKS[0], 2);
    for fail in 1.. {
        let device = sim(SimConfig { fail_alloc_at: Some(fail), ..SimConfig::default() });
        match run(device, &options, 1) {
            Ok(_) => {
                assert!(fail > 10, "loading makes {fail} allocations");
                return;
            }
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("out of") && !text.contains('\n'), "{text}");
            }
        }
    }
}

#[test]
fn a_failed_copy_stops_the_engine_and_never_gives_wrong_logits() {
    let expected = resident(17);
    let options = options(0.25, CHUNKS[0], 2);
    let mut failures = 0;
    for (seed, fail) in (1..120).step_by(3).enumerate() {
        let config = SimConfig { seed: seed as u64, fail_copy_at: Some(fail), ..SimConfig::default() };
        match run(sim(config), &options, 17) {
            Ok(bits) => assert!(bits == expected, "copy {fail} failed unnoticed"),
            Err(Error::Device(DeviceError::CopyFailed { .. }) | Error::Stopped(_)) => failures += 1,
            Err(other) => panic!("copy {fail}: {other}"),
        }
    }
    assert!(failures > 10, "{failures} failures");
}

#[test]
fn the_cap_is_never_exceeded() {
    let whole = MODEL.graph.text_bytes();
    for (share, straddle) in [30, 50, 80, 120].into_iter().flat_map(|s| [(s, false), (s, true)]) {
        let vram = 400_000 + whole * share / 100;
        let budget = Budget { vram: Some(vram), straddle, ..Budget::default() };
        let options = Options { budget, context: 64, prefill_rows: 32, ..Options::default() };
        let device =
            CpuDevice::new(CpuConfig { vram: Some(vram), threads: 1, ..CpuConfig::default() }).unwrap();
        let mut engine = load(device, &options).expect("the plan fits");
        engine.logits(&mut engine.free_pages(), &prompt(40)).expect("it runs");
        let planned = engine.plan().segments.total();
        let peak = engine.usage(Space::Device).peak;
        assert!(peak <= vram, "{peak} of {vram}");
        assert_eq!(peak, planned, "the plan is exact");
    }
}

#[test]
fn a_budget_that_is_too_small_says_what_would_do() {
    let budget = Budget { vram: Some(1000), ..Budget::default() };
    let options = Options { budget, context: 64, ..Options::default() };
    let Err(error) = load(cpu(), &options) else { panic!("a kilobyte is not enough") };
    let text = error.to_string();
    assert!(text.contains("at least") && text.contains("`vram`"), "{text}");
}

#[test]
fn one_layer_unequal_chunks_and_a_ring_that_holds_everything() {
    let shape = "tiny?layers=1&hidden=96&intermediate=160&heads=6&kv_heads=2&head_dim=16&vocab=700";
    let model = || open(&Location::Synthetic(shape.into()), &OpenOptions::default()).expect("a known shape");
    let logits = |options: &Options, seed| {
        let model = model();
        let device = sim(SimConfig { seed, ..SimConfig::default() });
        let mut engine =
            Engine::load(device, model.graph, &*model.source, options, &mut |_, _| ControlFlow::Continue(()))
                .expect("loads");
        let first = engine.logits(&mut engine.free_pages(), &prompt(9)).expect("it runs");
        (first, engine.logits(&mut engine.free_pages(), &prompt(20)).expect("it runs"))
    };
    let base = Options { context: 64, logit_rows: 8, ..Options::default() };
    let expected = logits(&base, 0);
    for (seed, rings) in [(1, 1), (2, 3), (3, 50)] {
        let streaming = Options { logit_rows: 8, ..options(0.0, 70_000, rings) };
        assert!(logits(&streaming, seed) == expected, "{rings} chunks of ring");
    }
}

/// A link that is the bottleneck is busy all the time: streaming reaches its bandwidth.
#[test]
fn a_slow_link_never_rests() {
    let mut options = options(0.25, CHUNKS[0], 3);
    options.context = 64;
    let config = SimConfig { link_bytes_per_second: 1e8, ..SimConfig::default() };
    let mut engine = load(sim(config), &options).expect("it loads");
    let (mut pages, mut sequence) = (engine.free_pages(), djinn_engine::Sequence::default());
    let mut passes = Vec::new();
    for token in [1, 2, 3, 4, 5] {
        let tokens = [token];
        let entry = djinn_engine::Entry::new(&mut sequence, &tokens, djinn_engine::Wanted::Last);
        passes.push(engine.step(&mut pages, &mut [entry]).expect("it runs").1);
    }
    let pass = passes[3];
    let rate = pass.streamed_bytes as f64 / pass.copy.as_secs_f64();
    assert!((rate / 1e8 - 1.0).abs() < 0.01, "copies run at {rate} bytes/s");
    assert!(pass.stalls > 0, "operations wait for a slow link");
    assert!(pass.hidden().is_some_and(|hidden| hidden < 1.0));
}

/// Without pipelining every copy is waited for, to the last byte, on a link of any speed.
#[test]
fn a_blocking_copy_hides_nothing() {
    for rate in [1e8, 1e10] {
        let mut options = options(0.25, CHUNKS[0], 5);
        (options.context, options.budget.blocking_copies) = (64, true);
        let config = SimConfig { link_bytes_per_second: rate, ..SimConfig::default() };
        let engine = load(sim(config), &options).expect("it loads");
        let mut service = Service::single(engine).expect("it serves");
        let request = Request { prompt: prompt(1), max_tokens: 5, ..Request::default() };
        let pass = service.generate(&mut None, &request, &mut |_| ControlFlow::Continue(())).unwrap();
        let pass = pass.stats.decode_streamed;
        assert!(pass.streamed_bytes > 0 && pass.stall >= pass.copy, "{pass:?}");
        assert!(pass.hidden().is_some_and(|hidden| hidden < 1e-9), "{pass:?}");
    }
}
