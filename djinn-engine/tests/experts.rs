//! Mixtures of experts: the same bits wherever their weights are, and only what the routers choose is streamed.

mod interpreter;
mod mixture;

use djinn_cpu::{CpuConfig, CpuDevice, Math, SimConfig, SimDevice};
use djinn_device::{Device, Error as DeviceError, Ops, Space};
use djinn_engine::{Act, Budget, Edit, Engine, Entry, Error, Intervention, MemoryPlan, Options, Wanted};
use djinn_srg::{Dim, Graph, Hook, NodeId, Op};
use djinn_vmu::{PassStats, Placement, Section};
use interpreter::{Outcome, interpret};
use mixture::{EXPERTS, LAYERS, Random, TOP_K, VOCAB, graph, uneven};
use std::ops::ControlFlow;
use std::sync::LazyLock;

/// Caps of a chunk: one of an expert's tiles, one of its weights, anything.
const CHUNKS: [u64; 3] = [60_000, 100_000, 400_000];

/// Passes: for each the sequences that take part, with their tokens in it.
type Script = Vec<Vec<(usize, usize)>>;

/// Prompts of two sequences, then tokens of one, of both, and of the other.
fn script() -> Script {
    let mut passes = vec![vec![(0, 17)], vec![(1, 5)]];
    for round in 0..14 {
        passes.push(match round / 5 {
            0 => vec![(0, 1)],
            1 => vec![(0, 1), (1, 1)],
            _ => vec![(1, 1)],
        });
    }
    passes
}

/// Token `at` of a sequence.
fn token(sequence: usize, at: usize) -> u32 {
    ((at * 37 + sequence * 101 + at * at % 13) % VOCAB as usize) as u32
}

/// What the script computes, in f64.
struct Expected {
    sequences: [Outcome; 2],
    /// The first position of each sequence in each pass, and how many.
    passes: Vec<Vec<(usize, std::ops::Range<usize>)>>,
}

impl Expected {
    fn of(graph: &Graph, script: &Script) -> Self {
        let mut lengths = [0; 2];
        let mut passes = Vec::new();
        for pass in script {
            let take = |&(sequence, tokens): &(usize, usize)| {
                lengths[sequence] += tokens;
                (sequence, lengths[sequence] - tokens..lengths[sequence])
            };
            passes.push(pass.iter().map(take).collect());
        }
        let outcome = |s: usize| {
            let tokens: Vec<u32> = (0..lengths[s].max(1)).map(|at| token(s, at)).collect();
            interpret(graph, &tokens)
        };
        Expected { sequences: [outcome(0), outcome(1)], passes }
    }

    /// Whether a pass uses a section of a chunk.
    fn uses(&self, pass: usize, section: &Section) -> bool {
        let Some(condition) = section.condition else { return true };
        self.passes[pass].iter().any(|(sequence, positions)| {
            let chosen = &self.sequences[*sequence].chosen[&condition.group];
            chosen[positions.clone()].iter().any(|experts| experts.contains(&condition.expert))
        })
    }

    /// Streamed bytes that a pass uses.
    fn streamed_bytes(&self, pass: usize, plan: &MemoryPlan) -> u64 {
        let chunks = plan.placement.streamed().map(|id| &plan.placement.chunks[id.0 as usize]);
        let sections = chunks.flat_map(|chunk| &chunk.sections);
        sections.filter(|section| self.uses(pass, section)).map(|section| section.bytes).sum()
    }

    /// Compares the bits of every pass's logits.
    fn check_logits(&self, passes: &[Vec<u32>]) {
        for (pass, bits) in passes.iter().enumerate() {
            let (mut difference, mut norm) = (0.0, 0.0);
            for (&bits, want) in bits.iter().zip(self.logits(pass)) {
                difference += (f64::from(f32::from_bits(bits)) - want).powi(2);
                norm += want.powi(2);
            }
            assert!(difference.sqrt() < 1e-4 * norm.sqrt(), "pass {pass}: {difference} of {norm}");
        }
    }

    /// Logits of the last token of each sequence in a pass.
    fn logits(&self, pass: usize) -> Vec<f64> {
        let vocab = VOCAB as usize;
        let last = |(sequence, positions): &(usize, std::ops::Range<usize>)| {
            self.sequences[*sequence].logits[(positions.end - 1) * vocab..][..vocab].to_vec()
        };
        self.passes[pass].iter().flat_map(last).collect()
    }
}

static EXPECTED: LazyLock<Expected> = LazyLock::new(|| Expected::of(&graph(), &script()));
/// The logits' bits with all weights resident, on the CPU.
static RESIDENT: LazyLock<Vec<Vec<u32>>> = LazyLock::new(|| {
    let options = Options { budget: Budget::default(), ..options(1.0, CHUNKS[0], 1) };
    run(cpu(), &options, &script()).expect("it runs").bits
});

fn options(fraction: f64, chunk: u64, rings: u64) -> Options {
    let (resident_fraction, ring) = (Some(fraction), Some(rings * chunk));
    let budget = Budget { resident_fraction, chunk: Some(chunk), ring, ..Budget::default() };
    Options { budget, context: 64, sequences: 2, logit_rows: 2, ..Options::default() }
}

fn cpu() -> CpuDevice {
    CpuDevice::new(CpuConfig { threads: 2, ..CpuConfig::default() }).expect("threads")
}

fn sim(config: SimConfig) -> SimDevice {
    SimDevice::new(SimConfig { math: Math::Fast, ..config }).expect("a device")
}

fn seeded(seed: u64) -> SimDevice {
    sim(SimConfig { seed, ..SimConfig::default() })
}

fn load<D: Ops>(device: D, options: &Options) -> Result<Engine<D>, Error> {
    Engine::load(device, graph(), &Random, options, &mut |_, _| ControlFlow::Continue(()))
}

/// What a run gave.
struct Ran {
    /// Bits of each pass's logits.
    bits: Vec<Vec<u32>>,
    /// Bytes that each pass streamed.
    streamed: Vec<u64>,
    /// Bytes that the CPU used in each pass.
    on_cpu: Vec<u64>,
    replayed: u64,
    plan: MemoryPlan,
}

/// Runs a script: the logits of each sequence's last token in every pass, or of all where the plan has room for more
/// than one of each.
fn passes<D: Ops>(engine: &mut Engine<D>, script: &Script) -> Result<(Vec<Vec<u32>>, Vec<PassStats>), Error> {
    let (mut sequences, mut lengths) = ([(); 2].map(|()| djinn_engine::Sequence::default()), [0; 2]);
    let (mut bits, mut all, mut pages) = (Vec::new(), Vec::new(), engine.free_pages());
    for pass in script {
        let tokens = pass.iter().map(|&(sequence, count)| {
            let first = lengths[sequence];
            lengths[sequence] += count;
            (first..first + count).map(|at| token(sequence, at)).collect()
        });
        let tokens: Vec<Vec<u32>> = tokens.collect();
        let taking_part = sequences.iter_mut().enumerate().filter(|(s, _)| pass.iter().any(|(p, _)| p == s));
        let mut batch: Vec<Entry<'_>> = Vec::new();
        for ((_, sequence), tokens) in taking_part.zip(&tokens) {
            let wanted = if engine.plan().stack.rows.logit_rows > 2 { Wanted::All } else { Wanted::Last };
            batch.push(Entry::new(sequence, tokens, wanted));
        }
        let (logits, stats) = engine.step(&mut pages, &mut batch)?;
        bits.push(logits.iter().map(|l| l.to_bits()).collect());
        all.push(stats);
    }
    Ok((bits, all))
}

fn run<D: Ops>(device: D, options: &Options, script: &Script) -> Result<Ran, Error> {
    let mut engine = load(device, options)?;
    let (bits, stats) = passes(&mut engine, script)?;
    let [streamed, on_cpu] = [|of: &PassStats| of.streamed_bytes, |of: &PassStats| of.cpu_bytes]
        .map(|bytes| stats.iter().map(bytes).collect());
    let (replayed, plan) = (engine.replayed_passes(), engine.plan().clone());
    let device = engine.unload();
    for space in [Space::Device, Space::Host] {
        assert_eq!(device.usage(space).in_use, 0, "{space:?} memory is given back");
    }
    Ok(Ran { bits, streamed, on_cpu, replayed, plan })
}

/// Runs, and checks the bits and the bytes of every pass.
fn check<D: Ops>(device: D, options: &Options, what: &str) -> Ran {
    let ran = run(device, options, &script()).expect("it runs");
    assert!(ran.bits == *RESIDENT, "bits of {what}: {:?}", options.budget);
    for (pass, &streamed) in ran.streamed.iter().enumerate() {
        let expected = EXPECTED.streamed_bytes(pass, &ran.plan);
        assert_eq!(streamed, expected, "bytes of pass {pass} of {what}: {:?}", options.budget);
    }
    ran
}

fn placements() -> impl Iterator<Item = (f64, u64, u64)> {
    let chunks = [0.0, 0.3, 0.7, 1.0].into_iter().flat_map(|f| CHUNKS.map(|c| (f, c)));
    chunks.flat_map(|(f, c)| [1, 2, 6].map(|r| (f, c, r)))
}

#[test]
fn logits_are_those_of_the_same_graph_in_f64() {
    EXPECTED.check_logits(&RESIDENT);
    let chosen = &EXPECTED.sequences[0].chosen;
    assert_eq!(chosen.len(), LAYERS as usize);
    let used = |e| chosen.values().flatten().filter(|experts| experts.contains(&e)).count();
    assert!((0..EXPERTS).all(|e| used(e) > 0), "every expert has its tokens");
}

/// Attention in some blocks only, and caches of two shapes.
#[test]
fn caches_lie_where_the_graph_s_values_say() {
    let (graph, budget) = (uneven(), Budget { resident_fraction: Some(0.5), ..Budget::default() });
    let options = Options { budget, context: 64, sequences: 2, logit_rows: 2, ..Options::default() };
    let mut engine =
        Engine::load(cpu(), graph.clone(), &Random, &options, &mut |_, _| ControlFlow::Continue(()))
            .expect("it loads");
    let places: Vec<_> =
        engine.plan().kv_places.places().map(|p| (p.first, p.kv_heads, p.head_dim)).collect();
    assert_eq!(places, [(0, 2, 12), (48, 1, 24)]);
    assert_eq!(engine.plan().kv.page_bytes(), 16 * 96 * 4);
    let (bits, _) = passes(&mut engine, &script()).expect("it runs");
    Expected::of(&graph, &script()).check_logits(&bits);
}

#[test]
fn placement_changes_no_bit_and_only_chosen_experts_are_streamed() {
    for (fraction, chunk, rings) in placements() {
        check(cpu(), &options(fraction, chunk, rings), "the CPU");
    }
}

#[test]
fn no_order_of_events_changes_a_bit_or_a_byte() {
    let mut replayed = 0;
    for seed in 0..4 * placements().count() {
        let (fraction, chunk, rings) = placements().nth(seed / 4).expect("one of them");
        let mut options = options(fraction, chunk, rings);
        // Half a chunk and a bit more, so that chunks of one size straddle as well, and at odd places.
        let ring = options.budget.ring.map(|ring| ring + chunk / 2 + 13);
        let (blocking_copies, straddle, stream_check) = match seed % 4 {
            0 => (false, false, seed % 8 == 0),
            1 => (true, false, seed % 3 == 0),
            2 => (false, true, seed % 3 == 0),
            _ => (seed % 8 == 3, true, true),
        };
        options.replay = seed % 5 != 4;
        options.budget = Budget { blocking_copies, straddle, stream_check, ring, ..options.budget };
        let what = format!("seed {seed}, replay {}", options.replay);
        let ran = check(seeded(seed as u64), &options, &what);
        assert_eq!(ran.replayed > 0, options.replay, "{what}");
        replayed += ran.replayed;
    }
    assert!(replayed > 300, "{replayed} passes were replayed");
}

/// Slots of the CPU change no bit where both compute alike. Together the two read what the pass uses.
#[test]
fn slots_of_the_cpu_change_no_bit() {
    let (mut on_cpu, mut replayed) = (0, 0);
    for seed in 0..2 * placements().count() {
        let (fraction, chunk, rings) = placements().nth(seed / 2).expect("one of them");
        let mut options = options(fraction, chunk, rings);
        options.budget.cpu_share = [0.3, 0.5, 1.0][seed % 3];
        options.budget.blocking_copies = seed % 7 == 0;
        options.budget.stream_check = seed % 4 == 0;
        options.replay = seed % 5 != 4;
        let what = format!("seed {seed}: {:?}", options.budget);
        let ran = match seed % 2 {
            0 => run(cpu(), &options, &script()),
            _ => run(seeded(seed as u64), &options, &script()),
        };
        let ran = ran.expect("it runs");
        assert!(ran.bits == *RESIDENT, "bits of {what}");
        for (pass, (&streamed, &cpu)) in ran.streamed.iter().zip(&ran.on_cpu).enumerate() {
            let expected = EXPECTED.streamed_bytes(pass, &ran.plan);
            let rows: usize = script()[pass].iter().map(|(_, tokens)| tokens).sum();
            let few = rows as u64 <= Placement::CPU_ROWS && ran.plan.placement.uses_cpu();
            // An expert that both need is read by both.
            assert!(
                streamed + cpu >= expected && (few || (streamed, cpu) == (expected, 0)),
                "pass {pass} of {what}"
            );
            assert!(
                rows > 1 || streamed + cpu == expected,
                "pass {pass} of {what}: {streamed} + {cpu} of {expected}"
            );
            on_cpu += cpu;
        }
        replayed += ran.replayed;
    }
    assert!(on_cpu > 0 && replayed > 100, "{on_cpu} bytes on the CPU, {replayed} replays");
}

/// The floor: a decode pass moves the chosen experts' share of what is streamed of them, and what all passes use.
#[test]
fn a_decode_pass_moves_the_chosen_share() {
    for fraction in [0.0, 0.4] {
        let ran = check(seeded(7), &options(fraction, CHUNKS[1], 3), "a share");
        let placement = &ran.plan.placement;
        let (mut dense, mut experts) = (0, 0);
        for chunk in placement.streamed().map(|id| &placement.chunks[id.0 as usize]) {
            *if chunk.router().is_some() { &mut experts } else { &mut dense } += chunk.bytes;
        }
        assert!(experts > 0 && (dense > 0) == (fraction == 0.0));
        assert_eq!(placement.streamed_bytes(), dense + experts);
        let expected = dense + experts * u64::from(TOP_K) / u64::from(EXPERTS);
        assert_eq!(placement.expected_streamed_bytes(1), expected);
        let single = script().into_iter().zip(&ran.streamed).filter(|(pass, _)| pass[..] == [(0, 1)]);
        let single: Vec<u64> = single.map(|(_, &bytes)| bytes).collect();
        assert!(single.len() >= 4);
        // With nothing resident, every expert of a block has as many bytes, so that the share is exact.
        if fraction == 0.0 {
            assert!(single.iter().all(|&bytes| bytes == expected), "{single:?} instead of {expected}");
        }
        assert!(single.iter().all(|&bytes| bytes < placement.streamed_bytes() / 2));
    }
}

/// The comparison of bits notices every wait that goes missing: between a router's choice and the copies that depend
/// on it, between a use and the copy over it, between a copy and its use.
#[test]
fn a_dropped_wait_is_caught() {
    // With many tokens every expert is used, and no copy is skipped; with one, choices differ from block to block.
    // All of a pass's logits are looked at: in the last block, an expert touches those of its own tokens.
    let scripts: [Script; 2] = [vec![vec![(0, 40)], vec![(1, 2)]], vec![vec![(0, 1)], vec![(0, 1)]]];
    for (chunk, rings, straddle) in [(CHUNKS[1], 1, false), (CHUNKS[1], 3, false), (CHUNKS[0], 2, true)] {
        let mut options = options(0.0, chunk, rings);
        options.budget.straddle = straddle;
        (options.replay, options.logit_rows) = (false, 40);
        let expected = scripts.each_ref().map(|script| run(cpu(), &options, script).expect("it runs").bits);
        let waits = {
            let mut engine = load(seeded(0), &options).expect("it loads");
            passes(&mut engine, &vec![vec![(0, 1)]]).expect("it runs");
            engine.unload().calls().waits
        };
        let slots = options.plan(&graph(), 0).expect("it fits").placement.ring.slots().len() as u64;
        assert!(waits > slots + u64::from(LAYERS), "{waits} waits for {slots} slots");
        let caught = |wait: u64| {
            (0..200).any(|seed| {
                let config = SimConfig { seed, drop_wait_at: Some(wait), ..SimConfig::default() };
                let which = seed as usize % 2;
                // The simulator panics on some misuse; that counts as caught.
                let outcome = std::panic::catch_unwind(|| run(sim(config), &options, &scripts[which]));
                !matches!(outcome, Ok(Ok(ran)) if ran.bits == expected[which])
            })
        };
        // All of one kind of ring; a sample does for the others.
        let every = if rings == 3 { 1 } else { 3 };
        let missed: Vec<u64> = (1..=waits).step_by(every).filter(|&wait| !caught(wait)).collect();
        // Where the router's own chunk is overwritten by a copy that is not the first after the choice, the wait for its
        // end, which comes before the choice, orders nothing that the wait for the choice does not.
        let most = if straddle { LAYERS as usize } else { 0 };
        assert!(missed.len() <= most, "nothing noticed the loss of waits {missed:?} of {waits}: {options:?}");
    }
}

/// Copies of experts fail as others do, and what was allocated is what was planned.
#[test]
fn a_failed_copy_stops_the_engine_and_the_cap_holds() {
    let options = options(0.3, CHUNKS[1], 2);
    let mut failures = 0;
    for fail in (1..400).step_by(7) {
        let config = SimConfig { seed: fail, fail_copy_at: Some(fail), ..SimConfig::default() };
        match run(sim(config), &options, &script()) {
            Ok(ran) => assert!(ran.bits == *RESIDENT, "copy {fail} failed unnoticed"),
            Err(Error::Device(DeviceError::CopyFailed { .. })) => failures += 1,
            Err(other) => panic!("copy {fail}: {other}"),
        }
    }
    assert!(failures > 20, "{failures} failures");
    for stream_check in [false, true] {
        let whole = graph().text_bytes();
        let budget = Budget { vram: Some(whole / 2 + 700_000), stream_check, ..Budget::default() };
        let options = Options { budget, ..self::options(0.0, CHUNKS[0], 1) };
        let vram = options.budget.vram;
        let device = CpuDevice::new(CpuConfig { vram, threads: 1, ..CpuConfig::default() }).expect("threads");
        let mut engine = load(device, &options).expect("the plan fits");
        assert!(engine.plan().segments.flags > 0 && engine.plan().placement.streamed_bytes() > 0);
        passes(&mut engine, &script()).expect("it runs");
        let planned = engine.plan().segments.total();
        assert_eq!(engine.unload().usage(Space::Device).peak, planned, "the plan is exact");
    }
}

/// A trace shows every launch, and a copy for each chunk that was moved.
#[test]
fn a_trace_shows_launches_and_moved_chunks() {
    let mut engine = load(seeded(3), &options(0.0, CHUNKS[1], 3)).expect("it loads");
    engine.start_trace().expect("it starts");
    let (bits, stats) = passes(&mut engine, &script()).expect("it runs");
    assert!(bits == *RESIDENT);
    let mut json = Vec::new();
    engine.finish_trace().expect("it was started").write(&mut json).expect("memory takes it");
    let json: serde_json::Value = serde_json::from_slice(&json).expect("valid JSON");
    let spans: Vec<_> = json["traceEvents"].as_array().expect("a list").iter().collect();
    let of = |pass: usize| spans.iter().filter(move |s| s["args"]["pass"] == pass);
    for (pass, bytes) in stats.iter().map(|of| of.streamed_bytes).enumerate() {
        let copies: Vec<u64> = of(pass).filter_map(|s| s["args"]["bytes"].as_u64()).collect();
        assert_eq!(copies.iter().sum::<u64>(), bytes, "pass {pass}");
        assert!(copies.iter().all(|&bytes| bytes > 0));
        let launches = |op: &str| of(pass).filter(|s| s["args"]["op"] == op).count() as u32;
        assert_eq!(["route", "group", "combine"].map(launches), [LAYERS; 3]);
        // An expert's first product is two tiles. Each is launched alone, so that it has its own time.
        assert_eq!(launches("expert_linear"), LAYERS * EXPERTS * 3);
        let mut products = of(pass).filter(|s| s["args"]["op"] == "expert_linear");
        assert!(products.all(|product| product["dur"].as_f64() > Some(0.0)), "pass {pass}");
    }
}

/// The products that a pass gives the device together, in order, each as its node and the first row of its tile: those
/// of a node's output from one chunk, or from resident ones, up to a node with a hook.
fn together(graph: &Graph, plan: &MemoryPlan, hooked: Option<NodeId>) -> Vec<Vec<(u32, u32)>> {
    let (placement, mut groups) = (&plan.placement, Vec::<Vec<_>>::new());
    let mut before: Option<&djinn_vmu::PlacedTile> = None;
    let of_experts = |tile: &&djinn_vmu::PlacedTile| tile.tile.condition.is_some();
    for placed in placement.tiles.iter().filter(of_experts) {
        let output = |placed: &djinn_vmu::PlacedTile| graph.node(placed.tile.node).outputs[0];
        let resident = |placed: &djinn_vmu::PlacedTile| placement.slots[placed.chunk.0 as usize].is_none();
        let goes_on = before.is_some_and(|before| {
            let passes_hook = hooked == Some(before.tile.node) && placed.tile.node != before.tile.node;
            let nearby = before.chunk == placed.chunk || resident(before) && resident(placed);
            output(before) == output(placed) && nearby && !passes_hook
        });
        if !goes_on {
            groups.push(Vec::new());
        }
        let &Op::ExpertLinear { expert, .. } = &graph.node(placed.tile.node).op else {
            panic!("{placed:?} is no expert's")
        };
        groups.last_mut().expect("one was begun").push((expert, placed.tile.rows.start as u32));
        before = Some(placed);
    }
    groups
}

/// What the device was given together.
fn given(device: &SimDevice) -> Vec<Vec<(u32, u32)>> {
    let calls = device.experts_at_once().into_iter();
    calls.map(|call| call.iter().map(|product| (product.expert, product.out_column)).collect()).collect()
}

/// Resident experts' products are handed over together, and so are those of a streamed chunk: not before its copy is waited
/// for, and before its place is given to another.
#[test]
fn resident_experts_are_computed_at_once_and_streamed_ones_by_chunk() {
    let (mut longest, mut alone) = (0, 0);
    for (seed, (fraction, chunk, rings)) in (0..).zip(placements()) {
        let options = Options { replay: false, ..options(fraction, chunk, rings) };
        let mut engine = load(seeded(seed), &options).expect("it loads");
        let (bits, _) = passes(&mut engine, &script()).expect("it runs");
        assert!(bits == *RESIDENT, "bits of {:?}", options.budget);
        let expected = together(engine.graph(), engine.plan(), None);
        longest = longest.max(expected.iter().map(Vec::len).max().expect("there are experts"));
        alone += expected.iter().filter(|group| group.len() == 1).count();
        let expected = vec![expected; script().len()].concat();
        assert_eq!(given(&engine.unload()), expected, "{:?}", options.budget);
    }
    // An expert's first product is two tiles.
    assert_eq!(longest, 2 * EXPERTS as usize);
    assert!(alone > 100, "{alone} products are alone");
}

/// A hook after an expert's product sees what the experts up to there gave, and later ones write over a change, whether
/// or not the products would be computed at once.
#[test]
fn a_hook_between_experts_is_between_their_products() {
    let graph = graph();
    let tokens: Vec<u32> = (0..17).map(|at| token(0, at)).collect();
    let changed = |fraction: f64, seed: u64, hook: Option<&Hook>| {
        let base = options(fraction, CHUNKS[0], 2);
        let mut engine = load(seeded(seed), &Options { hook_bytes: 1 << 16, ..base }).expect("it loads");
        let (mut pages, mut sequence) = (engine.free_pages(), djinn_engine::Sequence::default());
        let set = hook.map(|hook| Intervention {
            hook: hook.clone(),
            tokens: std::iter::once(0..tokens.len()).collect(),
            act: Act::Edit(Edit::set(vec![0.5])),
        });
        let entry =
            Entry { interventions: set.as_slice(), ..Entry::new(&mut sequence, &tokens, Wanted::Last) };
        let (logits, _) = engine.step(&mut pages, &mut [entry]).expect("it runs");
        let bits: Vec<u32> = logits.iter().map(|l| l.to_bits()).collect();
        let expected = together(engine.graph(), engine.plan(), hook.map(|hook| hook.after));
        assert_eq!(given(&engine.unload()), expected, "{hook:?}");
        bits
    };
    let unchanged = changed(1.0, 0, None);
    let of_middle = |name: &str| name.starts_with("blocks.1.mlp.experts.");
    let mut hooks = 0;
    for (at, node) in graph.nodes.iter().enumerate().filter(|(_, node)| of_middle(&node.name)) {
        let value = node.outputs[0];
        let Dim::Fixed(width) = graph.value(value).shape[1] else { panic!("{} has no width", node.name) };
        let (name, after) = (node.name.clone(), NodeId(at as u32));
        let hook = Hook { name, value, after, columns: (0, width) };
        let [resident, streamed] = [1.0, 0.0].map(|fraction| changed(fraction, at as u64, Some(&hook)));
        assert!(resident == streamed, "bits with a hook after {}", node.name);
        assert!(resident != unchanged, "a hook after {} changes nothing", node.name);
        hooks += 1;
    }
    assert_eq!(hooks, 2 * EXPERTS);
}

/// A pass that changes what slots give leaves none of them to the CPU. A change elsewhere does not matter.
#[test]
fn a_hook_at_slots_finds_all_of_them_on_the_device() {
    let graph = graph();
    let tokens: Vec<u32> = (0..4).map(|at| token(0, at)).collect();
    let changed = |fraction: f64, seed: u64, hook: &Hook| {
        let mut options = Options { hook_bytes: 1 << 16, ..options(fraction, CHUNKS[0], 2) };
        options.budget.cpu_share = 0.5;
        let mut engine = load(seeded(seed), &options).expect("it loads");
        let (mut pages, mut sequence) = (engine.free_pages(), djinn_engine::Sequence::default());
        let every = || std::iter::once(0..tokens.len()).collect();
        let act = [Act::Edit(Edit::add(vec![0.5], 1.0)), Act::Capture];
        let both = act.map(|act| Intervention { hook: hook.clone(), tokens: every(), act });
        let entry = Entry { interventions: &both, ..Entry::new(&mut sequence, &tokens, Wanted::Last) };
        let (logits, stats) = engine.step(&mut pages, &mut [entry]).expect("it runs");
        let bits: Vec<u32> = logits.iter().map(|l| l.to_bits()).collect();
        let captured: Vec<u32> = engine.take_captured()[0].values.iter().map(|x| x.to_bits()).collect();
        (bits, captured, stats.cpu_bytes)
    };
    let mut on_cpu = [0, 0];
    for (at, node) in graph.nodes.iter().enumerate().filter(|(_, node)| node.name.starts_with("blocks.1.")) {
        let value = node.outputs[0];
        let (shape, of_weights) =
            (&graph.value(value).shape, matches!(node.op, Op::Route { .. } | Op::Group { .. }));
        let &[dim, Dim::Fixed(width)] = shape.as_slice() else { continue };
        let slots = matches!(dim, Dim::Slots(_));
        if of_weights || matches!(node.op, Op::KvWrite { .. }) || slots && at % 3 != 0 {
            continue;
        }
        let hook = Hook { name: node.name.clone(), value, after: NodeId(at as u32), columns: (0, width) };
        let [(resident, seen, _), (streamed, seen_there, cpu)] =
            [1.0, 0.0].map(|fraction| changed(fraction, at as u64, &hook));
        assert!(resident == streamed && seen == seen_there, "a hook after {}", node.name);
        assert!(!slots || cpu == 0, "a hook after {}", node.name);
        on_cpu[usize::from(slots)] += cpu;
    }
    assert!(on_cpu[0] > 0, "{on_cpu:?}");
}

#[test]
fn steps_with_more_slots_than_operations_take_are_refused() {
    let base = options(1.0, CHUNKS[0], 1);
    let mut graph = graph();
    graph.max_context = 1 << 30;
    let plan = |rows: u32| {
        let options = Options { prefill_rows: rows, context: 1 << 19, ..base.clone() };
        options.plan(&graph, 0)
    };
    assert!(plan(1 << 18).is_ok());
    let error = plan((1 << 18) + 1).expect_err("too many").to_string();
    assert!(error.contains("lower the rows of a step") && !error.contains('\n'), "{error}");
}
