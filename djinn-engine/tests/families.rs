//! Every family's blocks, on synthetic weights: the same bits wherever the weights are, in whatever order the device
//! works, and however a prompt is cut.

use djinn_cpu::{CpuConfig, CpuDevice, Math, SimConfig, SimDevice};
use djinn_device::{Device, Ops, Space};
use djinn_engine::{Budget, Engine, Generate, Options, Request, Service};
use djinn_models::{Location, OpenOptions, open};
use std::ops::ControlFlow;

const FAMILIES: [&str; 11] = [
    "tiny-gqa",
    "tiny-window",
    "tiny-qwen3",
    "tiny-mixtral",
    "tiny-qwen3-moe",
    "tiny-gpt2",
    "tiny-gptj",
    "tiny-gpt-neox",
    "tiny-falcon",
    "tiny-falcon?kv_heads=1",
    "tiny-falcon-rw",
];

fn prompt() -> Vec<u32> {
    (0..40).map(|i| (i * 37 + 11) % 256).collect()
}

/// The bits of every position's logits, and the tokens after the prompt.
fn run<D: Ops>(device: D, family: &str, options: &Options) -> (Vec<u32>, Vec<u32>) {
    let model = open(&Location::Synthetic(family.into()), &OpenOptions::default()).expect("a known shape");
    let mut engine =
        Engine::load(device, model.graph, &*model.source, options, &mut |_, _| ControlFlow::Continue(()))
            .expect("it loads");
    let logits = engine.logits(&mut engine.free_pages(), &prompt()).expect("it runs");
    let request = Request { prompt: prompt(), max_tokens: 6, ..Request::default() };
    let mut service = Service::single(engine).expect("it serves");
    let go_on = &mut |_| ControlFlow::Continue(());
    let generated = service.generate(&mut None, &request, go_on).expect("it runs");
    (logits.iter().map(|l| l.to_bits()).collect(), generated.tokens)
}

fn cpu() -> CpuDevice {
    CpuDevice::new(CpuConfig { threads: 2, ..CpuConfig::default() }).expect("threads")
}

fn options() -> Options {
    Options { context: 64, logit_rows: 40, ..Options::default() }
}

#[test]
fn no_placement_and_no_order_of_events_changes_a_bit() {
    for family in FAMILIES {
        let expected = run(cpu(), family, &options());
        assert!(expected.0.iter().all(|&bits| f32::from_bits(bits).is_finite()), "{family}");
        for seed in 0..12 {
            let budget = Budget {
                resident_fraction: Some([0.0, 0.3, 0.7][seed as usize % 3]),
                stream_check: seed % 2 == 0,
                straddle: seed % 4 == 3,
                cpu_share: [0.0, 0.5, 0.0, 1.0][seed as usize % 4],
                ..Budget::default()
            };
            let rows = [40, 16, 7][seed as usize % 3];
            let streamed = Options { budget, logit_rows: rows, prefill_rows: rows, ..options() };
            let config = SimConfig { seed, math: Math::Fast, ..SimConfig::default() };
            let found = run(SimDevice::new(config).expect("a device"), family, &streamed);
            assert!(found == expected, "{family}, seed {seed}: {budget:?}");
        }
    }
}

/// A position that a window hides leaves no trace in the logits, and one that it does not leaves one.
#[test]
fn a_window_hides_what_came_before_it() {
    let family = "tiny-window?layers=1&window=24";
    let mut other = prompt();
    other[0] ^= 1;
    let last = |tokens: &[u32]| {
        let model =
            open(&Location::Synthetic(family.into()), &OpenOptions::default()).expect("a known shape");
        let mut engine = Engine::load(cpu(), model.graph, &*model.source, &options(), &mut |_, _| {
            ControlFlow::Continue(())
        })
        .expect("it loads");
        let logits = engine.logits(&mut engine.free_pages(), tokens);
        logits.expect("it runs").split_off((tokens.len() - 1) * 256)
    };
    assert!(last(&prompt()) == last(&other), "40 tokens, of which the last sees 24");
    assert!(last(&prompt()[..24]) != last(&other[..24]), "the first of 24 tokens is in sight");
}

/// Layers that repeat others' weights take the host's memory once, and the device's as if they had their own.
#[test]
fn layers_that_share_weights_share_the_hosts_bytes() {
    let family = "tiny-gqa?layers=7&distinct=2";
    let expected = run(cpu(), family, &options());
    let mut shared = 0;
    for (seed, fraction) in [(1, 0.0), (2, 0.4), (3, 0.8)] {
        let budget = Budget { resident_fraction: Some(fraction), stream_check: true, ..Budget::default() };
        let options = Options { budget, ..options() };
        let sim = || {
            SimDevice::new(SimConfig { seed, math: Math::Fast, ..SimConfig::default() }).expect("a device")
        };
        assert!(run(sim(), family, &options) == expected, "fraction {fraction}");
        let model =
            open(&Location::Synthetic(family.into()), &OpenOptions::default()).expect("a known shape");
        let engine =
            Engine::load(sim(), model.graph, &*model.source, &options, &mut |_, _| ControlFlow::Continue(()))
                .expect("it loads");
        let plan = engine.plan();
        let placement = &plan.placement;
        shared += placement.streamed_bytes() - placement.host_bytes();
        assert_eq!(engine.usage(Space::Device).in_use, plan.segments.total());
        let weights = engine.usage(Space::Host).in_use;
        assert!(
            weights < plan.host_bytes + (1 << 20),
            "{weights} bytes of host memory for {}",
            plan.host_bytes
        );
        let device = engine.unload();
        for space in [Space::Device, Space::Host] {
            assert_eq!(device.usage(space).in_use, 0, "{space:?} memory is given back");
        }
    }
    assert!(shared > 500_000, "{shared} bytes are shared");
}
