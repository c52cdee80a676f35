//! Weights that make logits NaN or infinite are an error in every way to generate; other sessions go on unchanged.

use djinn_cpu::{CpuConfig, CpuDevice, Math, SimConfig, SimDevice};
use djinn_device::{DType, Ops};
use djinn_engine::{
    BadLogit, Budget, Engine, Error, Generate, Happening, NoToken, Opening, Options, Request, Sampling,
    Service, Turn,
};
use djinn_models::{Location, Model, OpenOptions, open};
use djinn_scheduler::{CostModel, Registry, SessionId};
use djinn_vmu::{SourceError, WeightSource};
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};

// Values in bf16.
const NAN: u16 = 0x7fc0;
const INFINITY: u16 = 0x7f80;
const NEG_INFINITY: u16 = 0xff80;
const MAX: u16 = 0x7f7f;

/// Whether an element of a weight, by row and column, is to be changed.
type Place = fn(&str, u64, u64) -> bool;

/// A model's weights, some of them changed.
struct Planted<'a> {
    model: &'a Model,
    place: &'a (dyn Fn(&str, u64, u64) -> bool + Sync),
    value: u16,
}

impl WeightSource for Planted<'_> {
    fn read_rows(&self, name: &str, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        self.model.source.read_rows(name, rows.clone(), out)?;
        let row_bytes = out.len() / (rows.end - rows.start) as usize;
        for (row, out) in rows.zip(out.chunks_exact_mut(row_bytes)) {
            for (column, out) in (0..).zip(out.chunks_exact_mut(2)) {
                if (self.place)(name, row, column) {
                    out.copy_from_slice(&self.value.to_le_bytes());
                }
            }
        }
        Ok(())
    }
}

fn model(family: &str) -> Model {
    open(&Location::Synthetic(family.into()), &OpenOptions::default()).expect("a known shape")
}

fn load<D: Ops>(device: D, source: &Planted<'_>) -> Engine<D> {
    load_with(device, source, DType::F32)
}

fn load_with<D: Ops>(device: D, source: &Planted<'_>, kv_dtype: DType) -> Engine<D> {
    let budget = Budget { resident_fraction: Some(0.5), chunk: Some(64 << 10), ..Budget::default() };
    let options =
        Options { budget, context: 96, prefill_rows: 32, kv_dtype, ..Options::default() }.serving(4);
    let graph = source.model.graph.clone();
    Engine::load(device, graph, source, &options, &mut |_, _| ControlFlow::Continue(())).expect("it loads")
}

fn cpu() -> CpuDevice {
    CpuDevice::new(CpuConfig { threads: 2, ..CpuConfig::default() }).expect("threads")
}

fn sim() -> SimDevice {
    let config = SimConfig { math: Math::Fast, batch_invariant_rows: 4, ..SimConfig::default() };
    SimDevice::new(config).expect("a device")
}

fn request(sampling: Sampling) -> Request {
    Request { prompt: vec![3, 1, 4, 1, 5], max_tokens: 3, sampling, ..Request::default() }
}

fn bad<T>(result: Result<T, Error>) -> Option<BadLogit> {
    match result {
        Ok(_) => None,
        Err(Error::Logits(bad)) => Some(bad),
        Err(error) => panic!("{error}"),
    }
}

/// Generates in every way; the error, which is the same in all.
fn generate<D: Ops>(engine: Engine<D>) -> Option<BadLogit> {
    let mut service = Service::single(engine).expect("it serves");
    let go_on = &mut |_| ControlFlow::Continue(());
    let warm = Sampling { temperature: 1.0, repetition_penalty: 1.1, ..Sampling::default() };
    let mut found = Vec::new();
    for sampling in [Sampling::default(), warm] {
        let mut session = None;
        for max_tokens in [1, 3] {
            let request = Request { max_tokens, ..request(sampling.clone()) };
            found.push(bad(service.generate(&mut session, &request, go_on)));
        }
        service.close(session).expect("the device is sound");
    }
    assert_eq!(found.iter().filter(|found| found.is_some()).count() % 4, 0, "{found:?}");
    if found[0].is_some() {
        bad(service.logits(&[3, 1, 4, 1, 5])).expect("every logit is looked at");
    }
    found[0]
}

#[test]
fn bad_weights_are_an_error_wherever_they_are() {
    let places: [(&str, Place); 4] = [
        ("a gain of the last norm", |name, row, column| name == "ln_final.weight" && row + column == 7),
        ("a row of the queries", |name, row, _| name == "blocks.0.attn.qkv.weight" && row == 5),
        ("a row of the values", |name, row, _| name == "blocks.1.attn.qkv.weight" && row == 150),
        ("a row of the last product of a block", |name, row, _| {
            name == "blocks.0.mlp.down.weight" && row == 3
        }),
    ];
    let model = model("tiny");
    for (what, place) in places {
        for value in [NAN, INFINITY, NEG_INFINITY] {
            let planted = Planted { model: &model, place: &place, value };
            for bad in [generate(load(cpu(), &planted)), generate(load(sim(), &planted))] {
                assert_eq!(bad.unwrap_or_else(|| panic!("{value:#x} in {what}")).position, 4);
            }
        }
    }
}

#[test]
fn bad_keys_and_values_are_an_error_where_they_are_rounded() {
    let model = model("tiny");
    // A row of the keys, which the first token's attention does not weigh, and of the values.
    for row in [70, 150] {
        for value in [NAN, INFINITY, NEG_INFINITY] {
            let planted = Planted {
                model: &model,
                place: &move |name, at, _| name == "blocks.1.attn.qkv.weight" && at == row,
                value,
            };
            let bad = generate(load_with(cpu(), &planted, DType::Int8));
            assert_eq!(bad.unwrap_or_else(|| panic!("{value:#x} in row {row}")).position, 4);
        }
    }
}

#[test]
fn weights_that_overflow_are_an_error() {
    let places: [Place; 2] =
        [|name, _, _| name == "blocks.0.attn.qkv.weight", |name, _, _| name == "ln_final.weight"];
    let model = model("tiny");
    for place in places {
        let planted = Planted { model: &model, place: &place, value: MAX };
        generate(load(cpu(), &planted)).expect("it overflows");
        generate(load(sim(), &planted)).expect("it overflows");
    }
}

#[test]
fn a_model_of_nan_is_an_error_in_every_family() {
    for family in ["tiny-gqa", "tiny-gpt2", "tiny-gptj", "tiny-gpt-neox", "tiny-falcon-rw", "tiny-mixtral"] {
        let family = format!("{family}?dtype=bf16");
        let model = model(&family);
        let planted = Planted { model: &model, place: &|name, _, _| !name.starts_with("rope"), value: NAN };
        assert!(generate(load(cpu(), &planted)).expect(&family).logit.is_nan());
    }
}

/// A logit of negative infinity rules its token out, and infinity is an error.
#[test]
fn an_infinite_row_of_the_head_is_one_or_the_other() {
    let model = model("tiny");
    let place: Place = |name, row, column| name == "unembed.weight" && row == 9 && column == 2;
    let nan = Planted { model: &model, place: &place, value: NAN };
    let found = generate(load(cpu(), &nan)).expect("it is NaN");
    assert_eq!((found.token, found.position), (9, 4));
    let infinite = [INFINITY, NEG_INFINITY].map(|value| {
        let planted = Planted { model: &model, place: &place, value };
        let mut service = Service::single(load(cpu(), &planted)).expect("it serves");
        let one = Request { max_tokens: 1, ..request(Sampling::default()) };
        let next = service.generate(&mut None, &one, &mut |_| ControlFlow::Continue(()));
        if let Ok(generated) = &next {
            let logits = service.engine().latest_logits(0).unwrap();
            assert!(logits[9] == f32::NEG_INFINITY && generated.tokens != [9]);
        }
        bad(next)
    });
    assert_eq!(
        infinite.iter().flatten().map(|bad| (bad.token, bad.logit)).collect::<Vec<_>>(),
        [(9, f32::INFINITY)]
    );
}

/// What each of some prompts comes to: its tokens, and the error that ended it.
fn serve<D: Ops>(engine: Engine<D>, prompts: &[Vec<u32>]) -> Vec<(Vec<u32>, Option<BadLogit>)> {
    let cost =
        CostModel { page_bytes: 4096, out_bytes_per_s: 1e9, in_bytes_per_s: 1e9, prefill_tokens_per_s: 1e4 };
    let registry = Registry::default();
    let settings = registry.yaml("scheduler:\n  policy: signal\n").expect("a known policy");
    let service = Service::new(engine, |capacity| registry.scheduler(&settings, capacity, cost));
    let mut service = service.expect("it serves");
    let mut outcomes: BTreeMap<SessionId, (Vec<u32>, Option<BadLogit>)> = BTreeMap::new();
    for tokens in prompts {
        let turn = Turn { tokens: tokens.clone(), max_tokens: 6, ..Turn::default() };
        let id = service.open(Opening { turn, ..Opening::default() }).expect("there is room");
        outcomes.insert(id, Default::default());
    }
    let mut going = prompts.len();
    while going > 0 {
        for (id, happening) in service.advance().expect("the device is sound") {
            let (tokens, failed) = outcomes.get_mut(&id).expect("it was opened");
            assert!(failed.is_none(), "{id} is gone");
            match happening {
                Happening::Token { token, finish, .. } => {
                    tokens.push(token);
                    going -= usize::from(finish.is_some());
                }
                Happening::Failed(NoToken::Logits(bad)) => {
                    *failed = Some(bad);
                    going -= 1;
                }
                other => panic!("{id}: {other:?}"),
            }
        }
    }
    for (id, (_, failed)) in &outcomes {
        assert_eq!(service.state().session(*id).is_none(), failed.is_some(), "{id}");
    }
    service.state().audit();
    outcomes.into_values().collect()
}

#[test]
fn of_many_sessions_the_one_with_bad_logits_ends() {
    fn check<D: Ops>(device: impl Fn() -> D) {
        let model = model("tiny");
        let prompts: Vec<Vec<u32>> =
            (0..4).map(|at| (0..10 + 15 * at).map(|i| (i * 29 + at * 3) % 251).collect()).collect();
        let sound = Planted { model: &model, place: &|_, _, _| false, value: NAN };
        let clean = serve(load(device(), &sound), &prompts);
        assert!(clean.iter().all(|(tokens, failed)| tokens.len() == 6 && failed.is_none()));
        // A token that only some sessions come to, so that the others never read what is bad.
        let bad_token = clean[1].0[2];
        let reads: Vec<Option<usize>> = prompts
            .iter()
            .zip(&clean)
            .map(|(prompt, (tokens, _))| {
                prompt.iter().chain(&tokens[..5]).position(|&token| token == bad_token)
            })
            .collect();
        assert!(reads.contains(&None) && reads[1].is_some(), "{reads:?}");
        let place =
            |name: &str, row, column| name == "embed.weight" && row == u64::from(bad_token) && column == 0;
        let planted = Planted { model: &model, place: &place, value: NAN };
        let found = serve(load(device(), &planted), &prompts);
        for (at, ((tokens, failed), read)) in found.iter().zip(reads).enumerate() {
            let prompt = prompts[at].len();
            // The first logits after the token was read are the first that are bad.
            let chosen = read.map_or(6, |read| (read + 1).saturating_sub(prompt));
            assert_eq!(tokens[..], clean[at].0[..chosen], "session {at}");
            let position = read.map(|read| read.max(prompt - 1) as u64);
            assert_eq!(failed.map(|bad| bad.position), position, "session {at}");
        }
    }
    check(cpu);
    check(sim);
}
