//! Tokens that the device chooses: from the right rows, by the step's own settings, whatever is replayed and whichever
//! sessions share the step.

use djinn_cpu::{CpuConfig, CpuDevice, Math, SimConfig, SimDevice};
use djinn_device::{Change, Changes, Draw, Ops, choice};
use djinn_engine::{
    Budget, Engine, Entry, Happening, Opening, Options, Sampling, Sequence, Service, SessionId, Turn, Wanted,
};
use djinn_models::{Location, OpenOptions, open};
use djinn_scheduler::{CostModel, Registry, Settings};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

const MODEL: &str =
    "tiny?layers=2&hidden=64&intermediate=96&heads=4&kv_heads=2&head_dim=16&vocab=700&tied=true";
const VOCAB: usize = 700;

fn load<D: Ops>(device: D, options: &Options) -> Engine<D> {
    let model = open(&Location::Synthetic(MODEL.into()), &OpenOptions::default()).expect("a known shape");
    Engine::load(device, model.graph, &*model.source, options, &mut |_, _| ControlFlow::Continue(()))
        .expect("it fits")
}

fn sim(seed: u64) -> SimDevice {
    SimDevice::new(SimConfig { seed, math: Math::Fast, ..SimConfig::default() }).expect("a device")
}

fn warm(seed: u64) -> Draw {
    Draw { temperature: 3.0, top_p: 0.95, seed, logprob: true, presence_penalty: 0.5, ..Draw::GREEDY }
}

/// Steps over three sequences. Some rows' tokens are chosen, some rows' logits are wanted, and of some rows both: other ones
/// every few steps. Each token is the one that its own logits and settings give. All tokens, and the passes that
/// were replayed.
fn run<D: Ops>(device: D) -> (Vec<u32>, u64) {
    let budget = Budget {
        resident_fraction: Some(0.5),
        chunk: Some(66_000),
        ring: Some(132_000),
        ..Budget::default()
    };
    let options = Options { budget, context: 96, sequences: 3, logit_rows: 4, ..Options::default() };
    let mut engine = load(device, &options);
    let (mut pages, mut tokens) = (engine.free_pages(), Vec::new());
    let mut sequences: [Sequence; 3] = Default::default();
    let mut next = [3_u32, 4, 5];
    // Of the second and the third sequence all tokens, or every other one, change.
    let change =
        |token| Change { token, bias: (token % 9) as f32 - 4.0, count: token % 3, seen: false }.words();
    let known: Vec<_> = (0..VOCAB as u32).map(change).collect();
    let allowed = [0x5555_5555; VOCAB.div_ceil(32)];
    for round in 0..30_u32 {
        let chosen = [[true, true, false], [true, true, true], [false, true, true]][round as usize / 10];
        let wanted = [[false, true, true], [false, false, false], [true, false, true]][round as usize / 10];
        let draw = |at: usize| Draw { position: round, best: at as u32 * 3, ..warm(at as u64) };
        let changes = |at: usize| match at {
            0 => Changes::default(),
            at => {
                Changes { tokens: &known[..300 * at], allowed: (at == 2).then_some(&allowed), latest: None }
            }
        };
        let mut entries: Vec<Entry<'_>> = Vec::new();
        for (at, (sequence, token)) in sequences.iter_mut().zip(&next).enumerate() {
            let (wanted, choose) = (wanted[at], chosen[at].then(|| draw(at)));
            let wanted = if wanted { Wanted::Last } else { Wanted::Nothing };
            let entry = Entry::new(sequence, std::slice::from_ref(token), wanted);
            entries.push(Entry { choose, changes: changes(at), ..entry });
        }
        let (logits, _) = engine.step(&mut pages, &mut entries).expect("it runs");
        let (mut logits, mut drawn) = (logits.chunks_exact(VOCAB), engine.take_drawn().into_iter());
        for at in 0..3 {
            let row = engine.latest_logits(at).expect("the device is sound");
            if wanted[at] {
                assert!(logits.next() == Some(&row), "row {at} of round {round}");
            }
            let expected = choice::choose_changed(&row, &draw(at), &changes(at));
            next[at] = expected.token;
            if chosen[at] {
                assert_eq!(drawn.next(), Some(expected), "row {at} of round {round}");
            }
        }
        assert_eq!((logits.next(), drawn.next()), (None, None), "round {round}");
        tokens.extend(next);
    }
    // Of a prompt all of whose logits are wanted, the token after the last one is chosen.
    let mut one = Sequence::default();
    let mut batch = [Entry { choose: Some(warm(9)), ..Entry::new(&mut one, &[1, 2, 3, 4], Wanted::All) }];
    let (logits, _) = engine.step(&mut pages, &mut batch).expect("it runs");
    assert_eq!(logits.len(), 4 * VOCAB);
    assert_eq!(engine.take_drawn(), [choice::choose(&logits[3 * VOCAB..], &warm(9))]);
    (tokens, engine.replayed_passes())
}

#[test]
fn tokens_come_from_their_own_rows_and_settings() {
    let cpu = CpuDevice::new(CpuConfig { threads: 2, ..CpuConfig::default() }).expect("threads");
    let (expected, _) = run(cpu);
    let different: std::collections::BTreeSet<&u32> = expected.iter().collect();
    assert!(different.len() > 20, "{expected:?}");
    for seed in 0..4 {
        let (tokens, replayed) = run(sim(seed));
        assert!(tokens == expected, "seed {seed}");
        // Streaming makes two of each of the three kinds of step.
        assert!(replayed >= 9, "{replayed} passes were replayed");
    }
}

/// The tokens of sessions that are served together, by the seed of each.
fn served(seeds: &[u64], sampling: impl Fn(u64) -> Sampling) -> BTreeMap<u64, Vec<u32>> {
    let options = Options { context: 96, prefill_rows: 40, page_tokens: 8, ..Options::default() }.serving(4);
    let device = SimConfig { math: Math::Fast, batch_invariant_rows: 4, ..SimConfig::default() };
    let engine = load(SimDevice::new(device).expect("a device"), &options);
    let cost =
        CostModel { page_bytes: 4096, out_bytes_per_s: 1e9, in_bytes_per_s: 1e9, prefill_tokens_per_s: 1e4 };
    let (registry, settings) = (Registry::default(), Settings::from_yaml("").expect("the defaults"));
    let mut service = Service::new(engine, |capacity| registry.scheduler(&settings, capacity, cost));
    let service = service.as_mut().expect("it serves");
    let mut found: BTreeMap<SessionId, (u64, Vec<u32>)> = BTreeMap::new();
    for &seed in seeds {
        let tokens = (0..10 + 7 * seed as u32).map(|i| (i * 37 + seed as u32) % VOCAB as u32).collect();
        let turn = Turn { tokens, max_tokens: 12, sampling: sampling(seed), ..Turn::default() };
        let id = service.open(Opening { turn, ..Opening::default() }).expect("there is room");
        found.insert(id, (seed, Vec::new()));
    }
    let mut left = seeds.len();
    while left > 0 {
        for (id, happening) in service.advance().expect("the device is sound") {
            let Happening::Token { token, finish, .. } = happening else { panic!("{id}: {happening:?}") };
            found.get_mut(&id).expect("it was opened").1.push(token);
            left -= usize::from(finish.is_some());
        }
    }
    found.into_values().collect()
}

#[test]
fn a_session_draws_what_it_would_draw_alone() {
    let sampling = |seed: u64| Sampling {
        temperature: 2.0,
        top_p: 0.9,
        seed,
        presence_penalty: if seed == 2 { 0.5 } else { 0.0 },
        repetition_penalty: if seed == 1 { 1.7 } else { 1.0 },
        logit_bias: (0..seed as u32 * 2).map(|token| (token * 90, 3.0)).collect(),
        ..Sampling::default()
    };
    let together = served(&[0, 1, 2, 3], sampling);
    for (seed, tokens) in &together {
        assert_eq!(&served(&[*seed], sampling)[seed], tokens, "session {seed}");
    }
    let others = served(&[0, 1, 2, 3], |seed| Sampling { seed: seed + 9, ..sampling(seed) });
    assert_ne!(together, others, "seeds matter");
}
