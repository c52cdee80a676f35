//! Decoders of GPT-2's kind, i.e. learned positions, LayerNorm and GELU, and attention in windows and with linear
//! biases: against the same formulas in f64, in pieces of any size, and with streamed weights.

use djinn_device::{CpuConfig, CpuDevice, Math, Ops, SimConfig, SimDevice};
use djinn_engine::{Budget, Engine, Entry, Options, Wanted};
use djinn_srg::{DType, Gelu, Graph, GraphBuilder, GraphError, KvShape, Scores, ValueId};
use djinn_vmu::{SourceError, WeightSource};
use std::ops::Range;

const LAYERS: u32 = 2;
const HEADS: usize = 6;
const DIM: usize = 8;
const WIDTH: usize = HEADS * DIM;
const INNER: usize = 512;
const VOCAB: usize = 300;
const CONTEXT: usize = 48;
const EPS: f32 = 1e-5;

/// What distinguishes the decoders.
#[derive(Clone, Copy, Debug)]
struct Kind {
    window: Option<u32>,
    alibi: bool,
    form: Gelu,
}

const KINDS: [Kind; 4] = [
    Kind { window: None, alibi: false, form: Gelu::Tanh },
    Kind { window: Some(9), alibi: false, form: Gelu::Erf },
    Kind { window: None, alibi: true, form: Gelu::Erf },
    Kind { window: Some(17), alibi: true, form: Gelu::Tanh },
];

fn scale() -> f32 {
    2.0 / (DIM as f32).sqrt()
}

fn graph(kind: Kind) -> Result<Graph, GraphError> {
    let kv = KvShape { layers: LAYERS, kv_heads: HEADS as u32, head_dim: DIM as u32 };
    let mut b = GraphBuilder::new("classic", kv, VOCAB as u64, CONTEXT as u64);
    let [d, f] = [WIDTH as u64, INNER as u64];
    let weight = |b: &mut GraphBuilder, name: &str, shape: &[u64]| b.weight(name, shape, DType::F32);
    let norm = |b: &mut GraphBuilder, name: &str, x| {
        let scale = weight(b, &format!("{name}.weight"), &[d])?;
        let bias = weight(b, &format!("{name}.bias"), &[d])?;
        b.layer_norm(name, x, scale, bias, EPS)
    };
    let linear = |b: &mut GraphBuilder, name: &str, x, shape: [u64; 2]| {
        let matrix = weight(b, &format!("{name}.weight"), &shape)?;
        let bias = weight(b, &format!("{name}.bias"), &shape[..1])?;
        b.linear(name, x, matrix, Some(bias))
    };
    let table = weight(&mut b, "embed", &[VOCAB as u64, d])?;
    let places = weight(&mut b, "pos_embed", &[CONTEXT as u64, d])?;
    let (tokens, places) = (b.embed("tok", table)?, b.embed_positions("pos", places)?);
    let mut x = b.add("sum", tokens, places)?;
    for layer in 0..LAYERS {
        b.set_layer(Some(layer));
        let at = |part: &str| format!("{layer}.{part}");
        let normed = norm(&mut b, &at("ln1"), x)?;
        let qkv = linear(&mut b, &at("qkv"), normed, [3 * d, d])?;
        let scores = Scores { scale: scale(), window: kind.window, alibi: kind.alibi };
        let mixed = b.attention(&at("attn"), qkv, HEADS as u32, scores)?;
        let out = linear(&mut b, &at("out"), mixed, [d, d])?;
        x = b.add(&at("add1"), x, out)?;
        let normed = norm(&mut b, &at("ln2"), x)?;
        let up = linear(&mut b, &at("up"), normed, [f, d])?;
        let act = b.gelu(&at("act"), up, kind.form)?;
        let down = linear(&mut b, &at("down"), act, [d, f])?;
        x = b.add(&at("add2"), x, down)?;
    }
    b.set_layer(None);
    let last: ValueId = b.select_rows("select", x)?;
    let normed = norm(&mut b, "ln_final", last)?;
    let logits = b.linear("unembed", normed, table, None)?;
    b.finish(logits)
}

/// Weights that follow from their names.
struct Named;

/// An element of a weight: in -0.2..0.2, and about 1 for scales of norms.
fn element(name: &str, index: u64) -> f32 {
    let hash = |h: u64, byte: u64| (h ^ byte).wrapping_mul(0x0100_0000_01b3);
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, byte| hash(h, byte.into()));
    let mixed = (seed ^ index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let unit = (mixed >> 40) as f32 / (1 << 23) as f32 - 1.0;
    let norm = name.contains("ln") && name.ends_with("weight");
    if norm { 1.0 + 0.2 * unit } else { 0.2 * unit }
}

impl WeightSource for Named {
    fn read_rows(&self, name: &str, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        let columns = out.len() as u64 / 4 / (rows.end - rows.start);
        for (i, to) in out.chunks_exact_mut(4).enumerate() {
            to.copy_from_slice(&element(name, rows.start * columns + i as u64).to_le_bytes());
        }
        Ok(())
    }
}

fn row(name: &str, row: usize, columns: usize) -> Vec<f64> {
    (0..columns).map(|i| element(name, (row * columns + i) as u64).into()).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn norm(name: &str, x: &[f64]) -> Vec<f64> {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
    let (scale, bias) =
        (row(&format!("{name}.weight"), 0, x.len()), row(&format!("{name}.bias"), 0, x.len()));
    let root = (variance + f64::from(EPS)).sqrt();
    x.iter().zip(scale.iter().zip(bias)).map(|(x, (scale, bias))| (x - mean) / root * scale + bias).collect()
}

fn linear(name: &str, x: &[f64], n: usize) -> Vec<f64> {
    let (weight, bias) = (format!("{name}.weight"), row(&format!("{name}.bias"), 0, n));
    (0..n).map(|j| dot(x, &row(&weight, j, x.len())) + bias[j]).collect()
}

/// By the trapezoidal rule: the distribution function of the normal distribution.
fn normal(x: f64) -> f64 {
    let density = |t: f64| (-t * t / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let (steps, h) = (2000, x / 2000.0);
    let inner: f64 = (1..steps).map(|i| density(i as f64 * h)).sum();
    0.5 + h * (inner + (density(0.0) + density(x)) / 2.0)
}

fn gelu(form: Gelu, x: f64) -> f64 {
    let y = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
    match form {
        Gelu::Erf => x * normal(x),
        Gelu::Tanh => 0.5 * x * (1.0 + y.tanh()),
    }
}

/// Slopes of six heads, as bf16: 2^-2, 2^-4, 2^-6, 2^-8, then 2^-1 and 2^-3.
const SLOPES: [f64; HEADS] = [0.25, 0.0625, 0.015_625, 0.003_906_25, 0.5, 0.125];

fn attend(kind: Kind, qkv: &[Vec<f64>], at: usize) -> Vec<f64> {
    let first = kind.window.map_or(0, |window| (at + 1).saturating_sub(window as usize));
    let part = |position: usize, slot: usize| &qkv[position][slot * DIM..][..DIM];
    let mut out = Vec::new();
    for (head, slope) in SLOPES.into_iter().enumerate() {
        // Positions below 256 and slopes that are powers of two are exact in bf16.
        let bias = |position: usize| if kind.alibi { slope * position as f64 } else { 0.0 };
        let score = |p| (dot(part(at, head), part(p, HEADS + head)) + bias(p)) * f64::from(scale());
        let weights: Vec<f64> = (first..=at).map(|p| score(p).exp()).collect();
        let total: f64 = weights.iter().sum();
        let value = |p: usize, i: usize| part(first + p, 2 * HEADS + head)[i];
        let mix = |i: usize| weights.iter().enumerate().map(|(p, w)| w * value(p, i)).sum::<f64>();
        out.extend((0..DIM).map(|i| mix(i) / total));
    }
    out
}

/// Logits of every position.
fn reference(kind: Kind, tokens: &[u32]) -> Vec<f64> {
    let sum = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a + b).collect::<Vec<f64>>();
    let embed = |(place, &token): (usize, &u32)| {
        sum(&row("embed", token as usize, WIDTH), &row("pos_embed", place, WIDTH))
    };
    let mut x: Vec<Vec<f64>> = tokens.iter().enumerate().map(embed).collect();
    for layer in 0..LAYERS {
        let at = |part: &str| format!("{layer}.{part}");
        let qkv: Vec<_> = x.iter().map(|x| linear(&at("qkv"), &norm(&at("ln1"), x), 3 * WIDTH)).collect();
        for (place, x) in x.iter_mut().enumerate() {
            *x = sum(x, &linear(&at("out"), &attend(kind, &qkv, place), WIDTH));
            let up = linear(&at("up"), &norm(&at("ln2"), x), INNER);
            let act: Vec<f64> = up.into_iter().map(|u| gelu(kind.form, u)).collect();
            *x = sum(x, &linear(&at("down"), &act, WIDTH));
        }
    }
    let logits = |x: &Vec<f64>| {
        let x = norm("ln_final", x);
        (0..VOCAB).map(|token| dot(&x, &row("embed", token, WIDTH))).collect::<Vec<_>>()
    };
    x.iter().flat_map(logits).collect()
}

fn tokens() -> Vec<u32> {
    (0..CONTEXT as u32).map(|i| (i * 37 + 11) % VOCAB as u32).collect()
}

/// Logits of every position, in pieces of so many tokens.
fn run<D: Ops>(device: D, kind: Kind, budget: Budget, piece: usize) -> Vec<f32> {
    let size = CONTEXT as u64;
    let rows = CONTEXT as u32;
    let options = Options { budget, context: size, logit_rows: rows, page_tokens: 16, ..Options::default() };
    let graph = graph(kind).expect("shapes fit");
    let mut engine = Engine::load(device, graph, &Named, &options, &mut |_, _| {}).expect("it fits");
    let (mut sequence, mut logits) = (Default::default(), Vec::new());
    for tokens in tokens().chunks(piece) {
        let entry = Entry { sequence: &mut sequence, tokens, wanted: Wanted::All };
        logits.extend(engine.step(&mut [entry]).expect("it runs").0);
    }
    engine.release(sequence);
    logits
}

fn cpu(math: Math) -> CpuDevice {
    CpuDevice::new(CpuConfig { threads: 2, math, ..CpuConfig::default() }).expect("threads")
}

#[test]
fn logits_are_those_of_the_formulas_in_pieces_of_any_size() {
    for kind in KINDS {
        let wanted = reference(kind, &tokens());
        let norm = wanted.iter().map(|w| w * w).sum::<f64>().sqrt();
        for (math, piece) in [(Math::Fast, CONTEXT), (Math::Fast, 7), (Math::Fast, 1), (Math::Reference, 20)]
        {
            let logits = run(cpu(math), kind, Budget::default(), piece);
            let difference =
                logits.iter().zip(&wanted).map(|(l, w)| (f64::from(*l) - w).powi(2)).sum::<f64>();
            let error = difference.sqrt() / norm;
            assert!(error < 1e-5, "{kind:?}, {math:?}, {piece} tokens at once: {error:e}");
        }
    }
}

#[test]
fn streamed_weights_change_no_bit() {
    let bits = |logits: Vec<f32>| logits.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    for (i, kind) in KINDS.into_iter().enumerate() {
        let expected = bits(run(cpu(Math::Fast), kind, Budget::default(), 9));
        for (fraction, rings) in [(0.0, 1), (0.0, 3), (0.5, 2)] {
            let chunk = 66_000;
            let (resident_fraction, ring) = (Some(fraction), Some(rings * chunk));
            let budget = Budget { resident_fraction, chunk: Some(chunk), ring, ..Budget::default() };
            for seed in 0..3 {
                let seed = seed + 10 * i as u64;
                let config = SimConfig { seed, math: Math::Fast, ..SimConfig::default() };
                let device = SimDevice::new(config).expect("a device");
                assert!(bits(run(device, kind, budget, 9)) == expected, "{kind:?}, {budget:?}, seed {seed}");
            }
        }
    }
}
