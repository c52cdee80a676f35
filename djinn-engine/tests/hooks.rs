//! Hook points: what is read is what the model computes, what is written back unchanged changes nothing, what is changed
//! changes what its name says and no other sequence.

use crate::shapes::FAMILIES;
use djinn_cpu::{CpuConfig, CpuDevice, Math, SimConfig, SimDevice};
use djinn_device::Ops;
use djinn_engine::{
    Act, Budget, Captured, Edit, Engine, Entry, Error, Intervention, Options, Sequence, Wanted,
};
use djinn_models::{Location, OpenOptions, open};
use std::ops::ControlFlow;

fn options() -> Options {
    Options { context: 64, prefill_rows: 40, logit_rows: 64, hook_bytes: 4 << 20, ..Options::default() }
}

fn load<D: Ops>(device: D, family: &str, options: &Options) -> Engine<D> {
    let model = open(&Location::Synthetic(family.into()), &OpenOptions::default()).expect("a known shape");
    let go_on = &mut |_, _| ControlFlow::Continue(());
    Engine::load(device, model.graph, &*model.source, options, go_on).expect("it loads")
}

fn cpu() -> CpuDevice {
    CpuDevice::new(CpuConfig { threads: 2, ..CpuConfig::default() }).expect("threads")
}

fn sim(seed: u64) -> SimDevice {
    SimDevice::new(SimConfig { seed, math: Math::Fast, ..SimConfig::default() }).expect("a device")
}

fn prompt(length: u32, seed: u32) -> Vec<u32> {
    (0..length).map(|at| (at * 37 + 11 + seed * 101) % 256).collect()
}

fn at<D: Ops>(engine: &Engine<D>, hook: &str, tokens: std::ops::Range<usize>, act: Act) -> Intervention {
    let hook = engine.graph().hook(hook).unwrap_or_else(|| panic!("no {hook}")).clone();
    Intervention { hook, tokens: vec![tokens], act }
}

/// A sequence's logits for all of `tokens`, its keys and values, and what was read.
struct Ran {
    logits: Vec<f32>,
    kv: Vec<u8>,
    captured: Vec<Captured>,
}

/// Runs `tokens` with interventions: most as one step, the last alone where `apart`, which has the interventions then.
fn run<D: Ops>(engine: &mut Engine<D>, tokens: &[u32], apart: bool, interventions: &[Intervention]) -> Ran {
    let (mut pages, mut sequence) = (engine.free_pages(), Sequence::default());
    let (before, last) = tokens.split_at(if apart { tokens.len() - 1 } else { 0 });
    if apart {
        let entry = Entry::new(&mut sequence, before, Wanted::Last);
        engine.step(&mut pages, &mut [entry]).expect("it runs");
    }
    let entry = Entry { interventions, ..Entry::new(&mut sequence, last, Wanted::All) };
    let (logits, _) = engine.step(&mut pages, &mut [entry]).expect("it runs");
    let captured = engine.take_captured();
    let kv = engine.kv_bytes(&sequence).expect("it reads");
    Ran { logits, kv, captured }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// The canonical names of all hook points.
fn distinct<D: Ops>(engine: &Engine<D>) -> Vec<String> {
    engine.graph().hook_points().iter().map(|names| names[0].name.clone()).collect()
}

/// The sums that blocks are made of hold for what is read, to the bit, and the last hook reads the logits.
#[test]
fn what_is_read_is_what_the_model_computes() {
    for family in FAMILIES {
        let mut engine = load(cpu(), family, &options());
        let tokens = prompt(37, 1);
        let every = distinct(&engine);
        let reads: Vec<_> =
            every.iter().map(|hook| at(&engine, hook, 0..tokens.len(), Act::Capture)).collect();
        let plain = run(&mut engine, &tokens, false, &[]);
        let ran = run(&mut engine, &tokens, false, &reads);
        assert_eq!(
            (bits(&ran.logits), &ran.kv),
            (bits(&plain.logits), &plain.kv),
            "{family}: reading changes nothing"
        );
        assert_eq!(ran.captured.len(), every.len());
        let points = engine.graph().hook_points();
        let values = |hook: &str| {
            let at = points.iter().position(|names| names.iter().any(|known| known.name == hook));
            at.map(|at| ran.captured[at].values.clone())
        };
        let sum = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a + b).collect::<Vec<f32>>();
        assert_eq!(bits(&values("unembed.hook_out").unwrap()), bits(&ran.logits), "{family}");
        let blocks = engine.graph().nodes.iter().filter_map(|node| node.layer).max().unwrap() + 1;
        for block in 0..blocks {
            let of = |name: &str| values(&format!("blocks.{block}.{name}"));
            let (before, attention) = (of("hook_in").unwrap(), of("attn.hook_out").unwrap());
            let middle = sum(&before, &attention);
            if let Some(read) = of("hook_resid_mid") {
                assert_eq!(bits(&read), bits(&middle), "{family}, block {block}");
            }
            let after = sum(&middle, &of("mlp.hook_out").unwrap());
            assert_eq!(bits(&of("hook_out").unwrap()), bits(&after), "{family}, block {block}");
            let next =
                if block + 1 < blocks { values(&format!("blocks.{}.hook_in", block + 1)) } else { None };
            assert!(next.is_none_or(|next| bits(&next) == bits(&after)), "{family}, block {block}");
        }
    }
}

/// What is read and written back gives the same bits, at every hook: of a prompt and of one token, resident and streamed.
#[test]
fn what_is_written_back_changes_nothing() {
    for (number, family) in (0..).zip(FAMILIES) {
        for streamed in [false, true] {
            let resident_fraction = streamed.then_some(0.3);
            let budget = Budget { resident_fraction, stream_check: streamed, ..Budget::default() };
            let mut engine = load(sim(number), family, &Options { budget, ..options() });
            for (apart, length) in [(true, 33), (false, 35)] {
                let tokens = prompt(length, number as u32);
                let among = if apart { 0..1 } else { 3..length as usize - 2 };
                let plain = run(&mut engine, &tokens, apart, &[]);
                for hook in distinct(&engine) {
                    let read = at(&engine, &hook, among.clone(), Act::Capture);
                    let values = run(&mut engine, &tokens, apart, &[read]).captured.remove(0).values;
                    let write = at(&engine, &hook, among.clone(), Act::Edit(Edit::set(values)));
                    let same = run(&mut engine, &tokens, apart, &[write]);
                    assert!(
                        bits(&same.logits) == bits(&plain.logits),
                        "{family}, {hook}, streamed {streamed}"
                    );
                    assert!(same.kv == plain.kv, "{family}, {hook}, streamed {streamed}");
                }
            }
        }
    }
}

/// The residual stream of one token carries all that later blocks know of it: patched with that of another token, the
/// logits are the other's, to the bit.
#[test]
fn a_patched_residual_stream_is_that_of_another_token() {
    for family in FAMILIES {
        let mut engine = load(cpu(), family, &options());
        let one = prompt(33, 1);
        let mut other = one.clone();
        *other.last_mut().unwrap() ^= 64;
        let blocks = engine.graph().nodes.iter().filter_map(|node| node.layer).max().unwrap() + 1;
        let names = (0..blocks)
            .flat_map(|b| ["hook_in", "hook_resid_mid", "hook_out"].map(|n| format!("blocks.{b}.{n}")));
        let names: Vec<String> = names.filter(|name| engine.graph().hook(name).is_some()).collect();
        let plain = run(&mut engine, &one, true, &[]);
        let want = run(&mut engine, &other, true, &[]);
        assert_ne!(bits(&plain.logits), bits(&want.logits));
        for name in names {
            let read = at(&engine, &name, 0..1, Act::Capture);
            let values = run(&mut engine, &other, true, &[read]).captured.remove(0).values;
            let patch = at(&engine, &name, 0..1, Act::Edit(Edit::set(values)));
            let patched = run(&mut engine, &one, true, &[patch]);
            assert!(bits(&patched.logits) == bits(&want.logits), "{family}, {name}");
        }
        // Queries, keys and values carry all that attention knows of it.
        let parts = ["attn.hook_q", "attn.hook_k", "attn.hook_v"].map(|name| format!("blocks.1.{name}"));
        let reads = parts.each_ref().map(|name| at(&engine, name, 0..1, Act::Capture));
        let of_other = run(&mut engine, &other, true, &reads).captured;
        let mut all: Vec<_> = parts
            .iter()
            .zip(of_other)
            .map(|(name, read)| at(&engine, name, 0..1, Act::Edit(Edit::set(read.values))))
            .collect();
        let z = at(&engine, "blocks.1.attn.hook_z", 0..1, Act::Capture);
        let want = run(&mut engine, &other, true, std::slice::from_ref(&z)).captured.remove(0).values;
        let plain = run(&mut engine, &one, true, std::slice::from_ref(&z)).captured.remove(0).values;
        all.push(z);
        let patched = run(&mut engine, &one, true, &all).captured.remove(0).values;
        assert!(bits(&patched) == bits(&want) && bits(&plain) != bits(&want), "{family}");
    }
}

/// A vector of zeros changes no bit and costs nothing; the effect of others grows with their strength; neighbours in the
/// batch keep their bits.
#[test]
fn edits_change_what_they_name_and_no_neighbour() {
    for family in FAMILIES {
        let mut engine = load(sim(7), family, &Options { sequences: 3, decode_rows: 3, ..options() });
        let hook = "blocks.0.hook_out";
        let width = engine.graph().hook(hook).unwrap().columns.1 as usize;
        let vector: Vec<f32> = (0..width).map(|i| ((i * 7 % 13) as f32 - 6.0) / 6.0).collect();
        let (mut pages, mut sequences) = (engine.free_pages(), [(); 3].map(|()| Sequence::default()));
        for (number, sequence) in (0..).zip(&mut sequences) {
            let prompt = prompt(20, number);
            let entry = Entry::new(sequence, &prompt, Wanted::Last);
            engine.step(&mut pages, &mut [entry]).expect("it runs");
        }
        let mut logits = |engine: &mut Engine<SimDevice>, edit: Option<Edit>| {
            let edit = edit.map(|edit| at(engine, hook, 0..1, Act::Edit(edit)));
            let mut entries: Vec<_> =
                sequences.iter_mut().map(|sequence| Entry::new(sequence, &[9], Wanted::Last)).collect();
            entries[1].interventions = edit.as_slice();
            let (logits, _) = engine.step(&mut pages, &mut entries).expect("it runs");
            sequences.iter_mut().for_each(|sequence| engine.truncate(&mut pages, sequence, 20));
            let (mut all, rest) = (Vec::new(), logits.chunks_exact(256));
            all.extend(rest.map(<[f32]>::to_vec));
            all
        };
        let plain = logits(&mut engine, None);
        // Passes of one shape are captured and replayed, and one that changes nothing is such a pass.
        (0..3).for_each(|_| assert_eq!(logits(&mut engine, None), plain));
        for nothing in [Edit::add(vec![0.0; width], 3.0), Edit::add(vector.clone(), 0.0), Edit::scale(1.0)] {
            let before = engine.replayed_passes();
            assert_eq!(logits(&mut engine, Some(nothing)), plain, "{family}");
            assert_eq!(engine.replayed_passes(), before + 1, "{family}: it costs a launch");
        }
        let mut effect = 0.0;
        for strength in [0.01, 0.1, 1.0] {
            let steered = logits(&mut engine, Some(Edit::add(vector.clone(), strength)));
            assert!(steered[0] == plain[0] && steered[2] == plain[2], "{family}: a neighbour changed");
            let change: f32 = steered[1].iter().zip(&plain[1]).map(|(a, b)| (a - b).powi(2)).sum();
            assert!(change > effect, "{family}: {change} at {strength}, {effect} before");
            effect = change;
        }
        // A direction that was projected out is gone.
        let out = at(&engine, hook, 0..1, Act::Edit(Edit::along(vector.clone(), -1.0)));
        let read = at(&engine, hook, 0..1, Act::Capture);
        let steps = [out, read];
        let entry = Entry { interventions: &steps, ..Entry::new(&mut sequences[0], &[9], Wanted::Last) };
        engine.step(&mut pages, &mut [entry]).expect("it runs");
        let left = engine.take_captured().remove(0).values;
        let (dot, norm): (f32, f32) =
            left.iter().zip(&vector).fold((0.0, 0.0), |(dot, norm), (a, b)| (dot + a * b, norm + b * b));
        assert!(dot.abs() < 1e-4 * norm, "{family}: {dot} of {norm} is left");
    }
}

/// What cannot be is refused in one line, and leaves the sequence and the engine as they were.
#[test]
fn what_cannot_be_is_refused() {
    let mut engine = load(cpu(), "tiny-gqa", &options());
    assert!(
        load(cpu(), "tiny-gptj", &options()).graph().hook("blocks.0.hook_resid_mid").is_none(),
        "halves side by side"
    );
    let width = engine.graph().hook("blocks.0.hook_out").unwrap().columns.1 as usize;
    let edit = |edit| Act::Edit(edit);
    let wrong = [
        ("blocks.0.hook_out", 3..9, Act::Capture, "no tokens 3 to 9 among 8"),
        ("blocks.0.hook_out", 3..3, Act::Capture, "no tokens 3 to 3"),
        ("blocks.0.hook_out", 0..2, edit(Edit::set(vec![0.5; 3])), "3 values"),
        ("blocks.0.hook_out", 0..2, edit(Edit::set(vec![f32::NAN; 2 * width])), "not finite"),
        ("blocks.0.hook_out", 0..2, edit(Edit::along(vec![0.0; width], 1.0)), "direction of length 0"),
        ("blocks.0.hook_out", 0..2, edit(Edit::clamp(1.0, -1.0)), "bounds 1 and -1"),
        ("unembed.hook_out", 0..2, Act::Capture, "logits are wanted"),
    ];
    let (mut pages, mut sequence) = (engine.free_pages(), Sequence::default());
    for (hook, tokens, act, part) in wrong {
        let one = [at(&engine, hook, tokens, act)];
        let entry = Entry { interventions: &one, ..Entry::new(&mut sequence, &[7; 8], Wanted::Last) };
        let error = engine.step(&mut pages, &mut [entry]).expect_err(part);
        assert!(matches!(error, Error::Intervention { .. }), "{error}");
        assert!(error.to_string().contains(part) && error.to_string().contains(hook), "{error}");
        assert_eq!(sequence.tokens(), 0);
    }
    let entry = Entry::new(&mut sequence, &[7; 8], Wanted::Last);
    engine.step(&mut pages, &mut [entry]).expect("the engine goes on");
    let mut small = load(cpu(), "tiny-gqa", &Options { hook_bytes: 0, ..options() });
    let read = [at(&small, "blocks.0.hook_out", 0..8, Act::Capture)];
    let mut sequence = Sequence::default();
    let entry = Entry { interventions: &read, ..Entry::new(&mut sequence, &[7; 8], Wanted::Last) };
    let error =
        small.step(&mut small.free_pages(), &mut [entry]).expect_err("there is no memory for it").to_string();
    assert!(error.contains("`hook_bytes`"), "{error}");
}
