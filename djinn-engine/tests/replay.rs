//! Decode passes that are replayed give the bits of those that are enqueued, whatever runs between them.

use djinn_cpu::{CpuConfig, CpuDevice, Math, SimConfig, SimDevice};
use djinn_device::{Ops, Space};
use djinn_engine::{Budget, Engine, Entry, Options, Sequence, Wanted};
use djinn_models::{Location, OpenOptions, open};
use djinn_vmu::Placement;
use std::ops::ControlFlow;

const MODEL: &str =
    "tiny?layers=3&hidden=96&intermediate=160&heads=6&kv_heads=2&head_dim=16&vocab=700&tied=true";

fn options(fraction: f64, rings: u64, replay: bool) -> Options {
    let (chunk, resident_fraction) = (66_000, Some(fraction));
    let budget =
        Budget { resident_fraction, chunk: Some(chunk), ring: Some(rings * chunk), ..Budget::default() };
    Options { budget, context: 96, sequences: 3, logit_rows: 3, replay, ..Options::default() }
}

fn load<D: Ops>(device: D, options: &Options) -> Engine<D> {
    let model = open(&Location::Synthetic(MODEL.into()), &OpenOptions::default()).expect("a known shape");
    Engine::load(device, model.graph, &*model.source, options, &mut |_, _| ControlFlow::Continue(()))
        .expect("it fits")
}

fn sim(seed: u64) -> SimDevice {
    SimDevice::new(SimConfig { seed, math: Math::Fast, ..SimConfig::default() }).expect("a device")
}

/// Logits' bits of steps over three sequences: prompts, decode steps of one to three rows, a prompt among them,
/// a step that wants nothing, a release. And the passes that were replayed.
fn run<D: Ops>(device: D, options: &Options) -> (Vec<u32>, u64) {
    let mut engine = load(device, options);
    let (mut pages, mut bits) = (engine.free_pages(), vec![]);
    let mut sequences: [Sequence; 3] = Default::default();
    let mut step = |which: &[usize], tokens: usize, wanted: Wanted, engine: &mut Engine<D>| {
        let mut entries = Vec::new();
        for (i, sequence) in sequences.iter_mut().enumerate().filter(|(i, _)| which.contains(i)) {
            let tokens: Vec<u32> = (0..tokens as u32).map(|t| (t * 37 + 11 * i as u32) % 700).collect();
            entries.push((sequence, tokens));
        }
        let mut batch: Vec<Entry<'_>> = Vec::new();
        for (sequence, tokens) in &mut entries {
            batch.push(Entry::new(sequence, tokens, wanted));
        }
        let (logits, stats) = engine.step(&mut pages, &mut batch).expect("it runs");
        let (placement, rows) = (&engine.plan().placement, (which.len() * tokens) as u64);
        let on_cpu = if rows <= Placement::CPU_ROWS { placement.cpu_bytes() } else { 0 };
        assert_eq!((stats.streamed_bytes, stats.cpu_bytes), (placement.streamed_bytes() - on_cpu, on_cpu));
        bits.extend(logits.iter().map(|l| l.to_bits()));
    };
    step(&[0], 5, Wanted::Last, &mut engine);
    step(&[1], 9, Wanted::Last, &mut engine);
    for round in 0..18 {
        let which: &[usize] = [&[0][..], &[0, 1], &[1], &[0, 1, 2]][round / 3 % 4];
        step(which, 1, Wanted::Last, &mut engine);
        match round {
            7 => step(&[2], 17, Wanted::Nothing, &mut engine),
            11 => step(&[0, 1], 1, Wanted::Nothing, &mut engine),
            _ => {}
        }
    }
    let replayed = engine.replayed_passes();
    let device = engine.unload();
    for space in [Space::Device, Space::Host] {
        assert_eq!(device.usage(space).in_use, 0, "{space:?} memory is given back");
    }
    (bits, replayed)
}

#[test]
fn replays_change_no_bit() {
    let cpu = CpuDevice::new(CpuConfig { threads: 2, ..CpuConfig::default() }).expect("threads");
    let (expected, replayed) = run(cpu, &options(1.0, 2, true));
    assert_eq!(replayed, 0, "the CPU captures nothing");
    assert!(expected.iter().all(|&b| f32::from_bits(b).is_finite()));
    let mut seed = 0;
    for fraction in [0.0, 0.3, 0.8, 1.0] {
        for rings in [1, 2, 5] {
            for (blocking_copies, straddle, stream_check) in
                [(false, false, false), (false, false, true), (true, false, false), (false, true, true)]
            {
                let mut options = options(fraction, rings, true);
                let ring = options.budget.ring.map(|ring| ring + 33_000 * u64::from(straddle));
                let cpu_share = [0.0, 0.4, 1.0][seed as usize % 3];
                options.budget =
                    Budget { blocking_copies, straddle, stream_check, ring, cpu_share, ..options.budget };
                seed += 1;
                let (bits, replayed) = run(sim(seed), &options);
                assert!(bits == expected, "{:?}, seed {seed}", options.budget);
                // Streaming alternates between two sets of events, so that each kind of pass is met four times
                // before it is replayed.
                assert!(replayed >= 3, "{replayed} passes were replayed; {:?}", options.budget);
            }
        }
    }
    let (bits, replayed) = run(sim(99), &options(0.3, 2, false));
    assert!(bits == expected && replayed == 0, "none is replayed where none is to be");
}

/// Each wait that a run makes once passes are replayed, except those whose work another wait orders as well, is
/// missed under some seed.
#[test]
fn replays_keep_the_order_of_copies_and_uses() {
    let options = options(0.0, 2, true);
    let (expected, _) = run(sim(0), &options);
    let waits = {
        let device =
            SimDevice::new(SimConfig { math: Math::Fast, ..SimConfig::default() }).expect("a device");
        let mut engine = load(device, &options);
        let (mut pages, mut sequence) = (engine.free_pages(), Default::default());
        for _ in 0..8 {
            let mut batch = [Entry::new(&mut sequence, &[3], Wanted::Last)];
            engine.step(&mut pages, &mut batch).expect("it runs");
        }
        assert!(engine.replayed_passes() > 0);
        engine.unload().calls().waits
    };
    let caught = |drop_wait_at: u64| {
        (0..12).any(|seed| {
            let config = SimConfig {
                seed,
                math: Math::Fast,
                drop_wait_at: Some(drop_wait_at),
                ..SimConfig::default()
            };
            let device = SimDevice::new(config).expect("a device");
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(device, &options)))
                .map_or(true, |(bits, _)| bits != expected)
        })
    };
    // A sample of the waits of later passes, which are replays or come between them.
    let sample: Vec<u64> = (0..24).map(|i| waits / 2 + i * waits / 48).collect();
    let found = sample.iter().filter(|&&wait| caught(wait)).count();
    assert!(found * 4 >= sample.len() * 3, "{found} of {} dropped waits were noticed", sample.len());
}

/// A device without room for a capture runs on, and replays the passes that it has captured before.
#[test]
fn a_refused_capture_changes_no_bit() {
    let (expected, _) = run(sim(0), &options(1.0, 2, false));
    for (seed, fraction) in [(1, 0.0), (2, 0.3), (3, 1.0)] {
        for ordinal in 1..4 {
            let fail_capture_at = Some(ordinal);
            let config = SimConfig { seed, math: Math::Fast, fail_capture_at, ..SimConfig::default() };
            let device = SimDevice::new(config).expect("a device");
            let (bits, replayed) = run(device, &options(fraction, 2, true));
            assert!(bits == expected, "{config:?}, fraction {fraction}");
            assert_eq!(replayed > 0, ordinal > 1, "{replayed} passes were replayed, {config:?}");
        }
    }
}
