//! One generation: a turn has the same bits whether a session is served beside others, alone, or generated at once, on a
//! device whose products of many rows depend on the number of their rows.

use djinn_cpu::{Math, SimConfig, SimDevice};
use djinn_device::{DType, Encoding};
use djinn_engine::{
    Budget, Engine, Error, Generate, Happening, Opening, Options, Request, Service, Turn, Workspaces,
};
use djinn_models::{Location, OpenOptions, open};
use djinn_scheduler::{CostModel, Registry, Settings};
use std::ops::ControlFlow;

/// How prompts are computed, by weights that stream: prefill chunks of a step, rows beside them, and whether the device has
/// wide products.
#[derive(Clone, Copy, Debug)]
struct Cut {
    chunks: u32,
    beside: u32,
    wide: bool,
}

const CHUNK_BY_CHUNK: Cut = Cut { chunks: 1, beside: 2, wide: false };

fn load(cut: Cut) -> Engine<SimDevice> {
    let config = SimConfig { math: Math::Fast, batch_invariant_rows: 4, ..SimConfig::default() };
    let config = SimConfig { wide_products: cut.wide, ..config };
    let device = SimDevice::new(config).expect("a device");
    let model =
        open(&Location::Synthetic("tiny-gqa".into()), &OpenOptions::default()).expect("a known shape");
    let options = Options { decode_rows: cut.beside, ..options(0.0, cut.chunks).serving(2) };
    Engine::load(device, model.graph, &*model.source, &options, &mut |_, _| ControlFlow::Continue(()))
        .expect("it loads")
}

fn options(resident_fraction: f64, prefill_chunks: u32) -> Options {
    let budget = Budget { resident_fraction: Some(resident_fraction), ..Budget::default() };
    Options { budget, context: 320, prefill_rows: 48, prefill_chunks, ..Options::default() }
}

/// Never more than are asked for. Of resident weights four, and beside decodes two if steps do not decode them.
#[test]
fn steps_take_several_chunks_of_a_prompt() {
    for (shape, resident_fraction, most, chunks, beside_decodes) in [
        ("tiny-gqa", 0.0, 3, 3, None),
        ("tiny-gqa", 0.0, 1, 1, None),
        ("tiny-gqa", 1.0, 8, 4, Some(2)),
        ("tiny-gqa", 1.0, 3, 3, Some(2)),
        ("tiny-gqa", 1.0, 1, 1, Some(2)),
        ("tiny-gqa?encoding=q8_0", 1.0, 8, 4, None),
        ("tiny-gqa?encoding=q8_0", 1.0, 3, 3, None),
    ] {
        let open_options = OpenOptions { encodings: &Encoding::ENCODED, ..OpenOptions::default() };
        let model = open(&Location::Synthetic(shape.into()), &open_options).expect("a known shape");
        let options = options(resident_fraction, most);
        let plan = options.plan(&model.graph, 0).expect("it fits");
        let what = format!("{shape}, {resident_fraction} resident, at most {most}");
        assert_eq!(plan.stack.rows.rows, 48 * chunks, "{what}");
        let beside = options.rows_beside_decodes(&model.graph, &plan);
        assert_eq!(beside, beside_decodes.map(|chunks: u32| 48 * chunks), "{what}");
    }
}

/// Beyond three, the activations of further chunks make a pass stream little more.
#[test]
fn further_chunks_of_streamed_weights_take_little_of_the_budget() {
    for (shape, gib, context, wanted) in [
        ("llama-2-13b", 20, 4096, 5),
        ("llama-2-70b", 24, 4096, 8),
        ("llama-2-70b", 80, 4096, 8),
        ("falcon-180b", 120, 2048, 4),
    ] {
        let model = open(&Location::Synthetic(shape.into()), &OpenOptions::default()).expect("a known shape");
        let plan = |prefill_chunks| {
            let budget = Budget { vram: Some(gib << 30), ..Budget::default() };
            let options =
                Options { budget, prefill_chunks, context, kv_dtype: DType::F16, ..Options::default() };
            let plan = options.plan(&model.graph, 1 << 30).expect("it fits");
            (plan.placement.streamed_bytes(), plan.stack.rows.rows / 512)
        };
        let [(few, three), (more, chunks)] = [3, 8].map(plan);
        assert_eq!(three, 3, "{shape} in {gib} GiB");
        assert!(
            more <= few + few / 50,
            "{shape} in {gib} GiB: {few} bytes stream, {more} with {chunks} chunks"
        );
        assert_eq!(chunks, wanted, "{shape} in {gib} GiB");
    }
}

/// Whole weights are decoded only where all stay on the device beside them.
#[test]
fn workspaces_have_room_for_whole_weights_where_all_are_resident() {
    let open_options = OpenOptions { encodings: &Encoding::ENCODED, ..OpenOptions::default() };
    let shape = "llama-3.1-8b?encoding=q4_k_m";
    let model = open(&Location::Synthetic(shape.into()), &open_options).expect("a known shape");
    let workspaces = |gib: u64| {
        let budget = Budget { vram: Some(gib << 30), ..Budget::default() };
        Options { budget, prefill_chunks: 8, ..Options::default() }.workspaces(&model.graph)
    };
    let (gate_up, rows) = (2 * 14_336 * 4096 * 2, 4 * 512);
    assert_eq!(workspaces(80).decoded_bytes, gate_up);
    assert!(workspaces(80).activation_bytes >= rows * (4096 + 14_336) * 2);
    assert_eq!(workspaces(4), Workspaces::least(&model.graph));
    assert!(workspaces(4).decoded_bytes <= 64 << 20);
}

/// The activations of a second chunk are taken only from what is free.
#[test]
fn no_weight_streams_for_a_second_chunk() {
    let model =
        open(&Location::Synthetic("tiny-gqa".into()), &OpenOptions::default()).expect("a known shape");
    let bytes = |chunks| options(1.0, chunks).plan(&model.graph, 0).expect("it fits").segments.total();
    for (vram, chunks) in [(bytes(2), 2), (bytes(2) - 1, 1), (bytes(1), 1)] {
        let budget = Budget { vram: Some(vram), ..Budget::default() };
        let plan = Options { budget, ..options(1.0, 3) }.plan(&model.graph, 0).expect("it fits");
        assert_eq!((plan.placement.streamed_bytes(), plan.stack.rows.rows), (0, 48 * chunks), "{vram} bytes");
    }
}

#[test]
fn long_steps_have_whole_tiles_of_rows() {
    let rows = |prefill_rows, sequences| {
        let options = Options { prefill_rows, ..Options::default() }.serving(sequences);
        assert!(options.decode_rows >= sequences && options.logit_rows == sequences);
        options.prefill_rows.saturating_add(options.decode_rows)
    };
    assert_eq!([rows(512, 1), rows(512, 80), rows(512, 128), rows(512, 129)], [640, 640, 640, 768]);
    assert_eq!([rows(48, 2), rows(256, 64), rows(u32::MAX, 1)], [50, 320, u32::MAX]);
}

fn prompt(seed: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| (seed * 7919 + i * 37 + i * i * seed) % 256).collect()
}

/// Prompts that end in the middle of a prefill chunk, and are longer than what is computed row by row; the first has more
/// than two chunks.
fn turns() -> [Vec<u32>; 3] {
    [prompt(1, 130), prompt(2, 75), prompt(3, 50)]
}

const TOKENS: u64 = 5;

/// The bits of the logits after each turn, and its tokens.
type Bits = Vec<(Vec<u32>, Vec<u32>)>;

fn served(cut: Cut) -> Bits {
    let cost =
        CostModel { page_bytes: 4096, out_bytes_per_s: 1e9, in_bytes_per_s: 1e9, prefill_tokens_per_s: 1e4 };
    let make = |capacity| Registry::default().scheduler(&Settings::default(), capacity, cost);
    let mut service = Service::new(load(cut), make).expect("it serves");
    let mut id = None;
    let mut found = Vec::new();
    for tokens in turns() {
        let turn = Turn { tokens, max_tokens: TOKENS, ..Turn::default() };
        match id {
            None => id = Some(service.open(Opening { turn, ..Opening::default() }).expect("room")),
            Some(id) => service.turn(id, turn).expect("it waits"),
        }
        let mut tokens = Vec::new();
        while (tokens.len() as u64) < TOKENS {
            for (_, happening) in service.advance().expect("the device is sound") {
                let Happening::Token { token, .. } = happening else { panic!("{happening:?}") };
                tokens.push(token);
            }
        }
        let logits = service.engine().latest_logits(0).unwrap();
        found.push((logits.iter().map(|l| l.to_bits()).collect(), tokens));
    }
    found
}

fn generated(cut: Cut) -> Bits {
    let mut service = Service::single(load(cut)).expect("it serves");
    let mut session = None;
    let mut request = Request { max_tokens: TOKENS as usize, ..Request::default() };
    let mut found = Vec::new();
    for tokens in turns() {
        request.prompt.extend(tokens);
        let go_on = &mut |_| ControlFlow::Continue(());
        let tokens = service.generate(&mut session, &request, go_on).expect("it runs").tokens;
        request.prompt.extend(&tokens);
        found
            .push((service.engine().latest_logits(0).unwrap().iter().map(|l| l.to_bits()).collect(), tokens));
    }
    found
}

/// Logits beside sessions take pages that none of them has, or are refused.
#[test]
fn logits_leave_sessions_as_they_are() {
    let mut service = Service::single(load(CHUNK_BY_CHUNK)).expect("it serves");
    let expected = service.logits(&prompt(9, 40)).expect("all pages are free");
    let mut request = Request { max_tokens: TOKENS as usize, ..Request::default() };
    let (mut session, mut other) = (None, None);
    for (tokens, (_, known)) in turns().into_iter().zip(generated(CHUNK_BY_CHUNK)) {
        request.prompt.extend(tokens);
        let go_on = &mut |_| ControlFlow::Continue(());
        let tokens = service.generate(&mut session, &request, go_on).expect("it runs").tokens;
        assert_eq!(tokens, known);
        request.prompt.extend(&tokens);
        assert!(service.logits(&prompt(9, 40)).expect("there is room") == expected);
    }
    let long = Request { prompt: prompt(4, 250), ..request };
    service.generate(&mut other, &long, &mut |_| ControlFlow::Continue(())).expect("it runs");
    let free = u64::from(service.state().device_free()) * 16;
    match service.logits(&prompt(9, 120)) {
        Err(Error::ContextFull { tokens, context }) => assert!(tokens > context && context == free),
        other => panic!("{free} tokens fit: {:?}", other.map(|logits| logits.len())),
    }
    assert!(service.state().device_free() > 0);
    service.state().audit();
}

#[test]
fn a_turn_is_computed_alike_served_and_generated() {
    same("served", &served(CHUNK_BY_CHUNK), &generated(CHUNK_BY_CHUNK));
}

#[test]
fn a_step_of_several_chunks_computes_what_each_would() {
    for wide in [false, true] {
        let expected = generated(Cut { chunks: 1, beside: 2, wide });
        for chunks in [2, 3] {
            let cut = Cut { chunks, beside: 2, wide };
            same(&format!("{cut:?}, served"), &served(cut), &expected);
            same(&format!("{cut:?}, generated"), &generated(cut), &expected);
        }
        // The first prompt takes two steps, of one chunk, and of one with the prompt's end; the others take one.
        let cut = Cut { chunks: 1, beside: 40, wide };
        same(&format!("{cut:?}, served"), &served(cut), &expected);
    }
}

#[track_caller]
fn same(name: &str, found: &Bits, expected: &Bits) {
    for (turn, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.1, expected.1, "{name}: tokens of turn {turn}");
        let other = found.0.iter().zip(&expected.0).filter(|(a, b)| a != b).count();
        assert_eq!(other, 0, "{name}: logits after turn {turn} that differ, of {}", found.0.len());
    }
}
