//! A plain f64 interpreter of a model's graph, fed by its weight source.

use djinn_models::{Location, Model, OpenOptions, open};
use djinn_srg::{DType, GeluForm, Node, Op, RopeStyle, ValueId};
use half::{bf16, f16};
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;

/// Row-major, `[rows, width]`.
#[derive(Clone)]
pub(crate) struct Matrix {
    width: usize,
    data: Vec<f64>,
}

impl Matrix {
    fn map_rows(&self, f: impl Fn(&[f64]) -> Vec<f64>) -> Matrix {
        let rows: Vec<Vec<f64>> = self.rows().map(f).collect();
        Matrix { width: rows[0].len(), data: rows.concat() }
    }

    fn rows(&self) -> std::slice::ChunksExact<'_, f64> {
        self.data.chunks_exact(self.width)
    }

    pub(crate) fn row(&self, row: usize) -> &[f64] {
        &self.data[row * self.width..(row + 1) * self.width]
    }
}

/// A model with its weights in f64.
pub(crate) struct Interpreter {
    model: Model,
    weights: HashMap<ValueId, Matrix>,
}

/// Tests wait for this loop, compiled without optimisation, in which iterators are many calls.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let (mut sum, mut i) = (0.0, 0);
    while i < a.len() {
        sum += a[i] * b[i];
        i += 1;
    }
    sum
}

impl Interpreter {
    pub(crate) fn open(location: &Location, options: &OpenOptions) -> Interpreter {
        let model = open(location, options).unwrap();
        let weights = model.graph.weights().map(|(id, value)| {
            let [rows, columns] = value.matrix();
            let mut bytes = vec![0; (rows * columns * value.dtype().bytes()) as usize];
            model.source.read_rows(&value.name, 0..rows, &mut bytes).unwrap();
            let halves = || bytes.as_chunks::<2>().0;
            let data = match value.dtype() {
                DType::F16 => halves().iter().map(|b| f16::from_le_bytes(*b).to_f64()).collect(),
                DType::BF16 => halves().iter().map(|b| bf16::from_le_bytes(*b).to_f64()).collect(),
                _ => bytes.as_chunks::<4>().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect(),
            };
            (id, Matrix { width: columns as usize, data })
        });
        let weights = weights.collect();
        Interpreter { model, weights }
    }

    /// Logits of every position of one sequence.
    pub(crate) fn logits(&self, tokens: &[usize]) -> Matrix {
        let mut values = HashMap::new();
        for node in &self.model.graph.nodes {
            let output = match &node.op {
                // Attention reads the keys and values of the sequence from the projections themselves.
                Op::KvWrite { .. } => continue,
                Op::Route { top_k, renormalise, .. } => {
                    let [weights, ids] = route(&values[&node.inputs[0]], *top_k as usize, *renormalise);
                    values.insert(node.outputs[1], ids);
                    weights
                }
                Op::Group { experts, .. } => {
                    let [order, starts] = group(&values[&node.inputs[0]], *experts as usize);
                    values.insert(node.outputs[1], starts);
                    order
                }
                _ => self.run(node, &values, tokens),
            };
            values.insert(node.outputs[0], output);
        }
        values.remove(&self.model.graph.logits).unwrap()
    }

    fn run(&self, node: &Node, values: &HashMap<ValueId, Matrix>, tokens: &[usize]) -> Matrix {
        let input = |i: usize| &values[&node.inputs[i]];
        let weight = |i: usize| &self.weights[&node.weights[i]];
        match node.op {
            Op::Embed => {
                let places: Vec<usize> = (0..tokens.len()).collect();
                let of_tokens = node.inputs[0] == self.model.graph.tokens;
                let rows = if of_tokens { tokens } else { &places };
                let data = rows.iter().flat_map(|&row| weight(0).row(row).to_vec()).collect();
                Matrix { width: weight(0).width, data }
            }
            Op::RopeTable { scale } => {
                let angles = |p: usize| weight(0).data.iter().map(move |f| p as f64 * f);
                let row = |p: usize| angles(p).map(f64::cos).chain(angles(p).map(f64::sin));
                let data = (0..tokens.len()).flat_map(row).map(|x| x * f64::from(scale)).collect();
                Matrix { width: 2 * weight(0).data.len(), data }
            }
            Op::RmsNorm { eps } => input(0).map_rows(|x| {
                let scale = 1.0 / (dot(x, x) / x.len() as f64 + f64::from(eps)).sqrt();
                x.iter().zip(&weight(0).data).map(|(x, w)| x * scale * w).collect()
            }),
            Op::LayerNorm { eps } => input(0).map_rows(|x| {
                let n = x.len() as f64;
                let mean = x.iter().sum::<f64>() / n;
                let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
                let scale = 1.0 / (variance + f64::from(eps)).sqrt();
                let affine = weight(0).data.iter().zip(&weight(1).data);
                x.iter().zip(affine).map(|(x, (w, b))| (x - mean) * scale * w + b).collect()
            }),
            Op::HeadNorm { heads, kv_heads, head_dim, eps } => input(0).map_rows(|row| {
                let mut row = row.to_vec();
                let normed = row.chunks_exact_mut(head_dim as usize).take((heads + kv_heads) as usize);
                for (at, head) in normed.enumerate() {
                    let scale = 1.0 / (dot(head, head) / f64::from(head_dim) + f64::from(eps)).sqrt();
                    let weight = weight(usize::from(at >= heads as usize));
                    head.iter_mut().zip(&weight.data).for_each(|(x, w)| *x *= scale * w);
                }
                row
            }),
            Op::Gelu { form } => input(0).map_rows(|x| x.iter().map(|&x| gelu(x, form)).collect()),
            Op::ExpertLinear { expert, slots_per_row, .. } => {
                let (x, order, starts) = (input(0), &input(1).data, &input(2).data);
                let slots = order.len();
                let n = weight(0).rows().len();
                let mut out = match node.inputs.get(3) {
                    Some(into) => values[into].clone(),
                    None => Matrix { width: n, data: vec![f64::NAN; slots * n] },
                };
                let [first, end] = [0, 1].map(|i| starts[expert as usize + i] as usize);
                for &slot in &order[first..end] {
                    let row = x.row(slot as usize / slots_per_row as usize);
                    let products = weight(0).rows().map(|w| dot(row, w));
                    out.data[slot as usize * n..][..n].iter_mut().zip(products).for_each(|(o, p)| *o = p);
                }
                out
            }
            Op::Combine { top_k } => {
                let (y, weights) = (input(0), input(1));
                let width = y.width;
                let sum = |row: usize, column: usize| {
                    (0..top_k as usize)
                        .map(|j| weights.row(row)[j] * y.row(row * top_k as usize + j)[column])
                        .sum::<f64>()
                };
                let rows = weights.rows().len();
                let data = (0..rows * width).map(|i| sum(i / width, i % width)).collect();
                Matrix { width, data }
            }
            Op::Linear => input(0).map_rows(|x| {
                let bias = |j: usize| node.weights.get(1).map_or(0.0, |b| self.weights[b].data[j]);
                weight(0).rows().enumerate().map(|(j, w)| dot(x, w) + bias(j)).collect()
            }),
            Op::Rope { heads, kv_heads, head_dim, style, .. } => {
                rotate(input(0), input(1), (heads + kv_heads) as usize, head_dim as usize, style)
            }
            Op::Attention { .. } => attend(input(0), &node.op),
            Op::SiluMul => input(0).map_rows(|x| {
                let (gate, up) = x.split_at(x.len() / 2);
                gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect()
            }),
            Op::Add => {
                let data = input(0).data.iter().zip(&input(1).data).map(|(a, b)| a + b).collect();
                Matrix { width: input(0).width, data }
            }
            Op::SelectRows => input(0).clone(),
            ref other => panic!("no model computes {other:?}"),
        }
    }
}

fn rotate(qkv: &Matrix, table: &Matrix, heads: usize, head_dim: usize, style: RopeStyle) -> Matrix {
    let mut out = qkv.clone();
    let half = table.width / 2;
    for (row, angles) in out.data.chunks_exact_mut(qkv.width).zip(table.rows()) {
        for head in row.chunks_exact_mut(head_dim).take(heads) {
            for i in 0..half {
                let (one, other) = match style {
                    RopeStyle::Half => (i, i + half),
                    RopeStyle::Interleaved => (2 * i, 2 * i + 1),
                };
                let (a, b, cos, sin) = (head[one], head[other], angles[i], angles[i + half]);
                (head[one], head[other]) = (a * cos - b * sin, b * cos + a * sin);
            }
        }
    }
    out
}

fn attend(qkv: &Matrix, op: &Op) -> Matrix {
    let &Op::Attention { heads, kv_heads, head_dim, scale, window, alibi } = op else { unreachable!() };
    let [heads, kv_heads, d] = [heads, kv_heads, head_dim].map(|n| n as usize);
    let part = |row: usize, slot: usize| &qkv.row(row)[slot * d..(slot + 1) * d];
    let mut data = Vec::new();
    for row in 0..qkv.rows().len() {
        let first = window.map_or(0, |window| (row + 1).saturating_sub(window as usize));
        for head in 0..heads {
            let kv = heads + head * kv_heads / heads;
            let bias = |r: usize| if alibi { distance_bias(head, heads, r) } else { 0.0 };
            let scores =
                (first..=row).map(|r| (dot(part(row, head), part(r, kv)) + bias(r)) * f64::from(scale));
            let weights: Vec<f64> = scores.map(f64::exp).collect();
            let total: f64 = weights.iter().sum();
            data.extend((0..d).map(|i| {
                let mix = (first..=row).zip(&weights).map(|(r, w)| w * part(r, kv + kv_heads)[i]);
                mix.sum::<f64>() / total
            }));
        }
    }
    Matrix { width: heads * d, data }
}

/// ALiBi in the rounding of the published Falcon: slope, position and product in bf16.
fn distance_bias(head: usize, heads: usize, position: usize) -> f64 {
    let rounded = |x: f64| bf16::from_f64(x).to_f64();
    let whole = 1 << heads.ilog2();
    let slope = match head.checked_sub(whole) {
        None => 2f64.powf(-8.0 * (head + 1) as f64 / whole as f64),
        Some(extra) => 2f64.powf(-4.0 * (2 * extra + 1) as f64 / whole as f64),
    };
    rounded(rounded(slope) * rounded(position as f64))
}

fn gelu(x: f64, form: GeluForm) -> f64 {
    match form {
        GeluForm::Tanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
        // The integral of the normal density from 0 to x, by Simpson's rule.
        GeluForm::Erf => {
            const STEPS: i32 = 200;
            let density = |t: f64| (-0.5 * t * t).exp() / std::f64::consts::TAU.sqrt();
            let h = x / f64::from(STEPS);
            let weight = |i: i32| match i {
                0 | STEPS => 1.0,
                _ if i % 2 == 1 => 4.0,
                _ => 2.0,
            };
            let (mut sum, mut i) = (0.0, 0);
            while i <= STEPS {
                sum += weight(i) * density(f64::from(i) * h);
                i += 1;
            }
            x * (0.5 + sum * h / 3.0)
        }
    }
}

/// Weights and ids of each row's experts.
fn route(logits: &Matrix, top_k: usize, renormalise: bool) -> [Matrix; 2] {
    let (mut weights, mut ids) = (Vec::new(), Vec::new());
    for row in logits.rows() {
        let total: f64 = row.iter().map(|x| x.exp()).sum();
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
        let chosen: Vec<f64> = order[..top_k].iter().map(|&e| row[e].exp() / total).collect();
        let sum = if renormalise { chosen.iter().sum() } else { 1.0 };
        weights.extend(chosen.iter().map(|w| w / sum));
        ids.extend(order[..top_k].iter().map(|&e| e as f64));
    }
    [weights, ids].map(|data| Matrix { width: top_k, data })
}

/// Slots by expert, and where each expert's begin.
fn group(ids: &Matrix, experts: usize) -> [Matrix; 2] {
    let (mut order, mut starts) = (Vec::new(), vec![0.0]);
    for expert in 0..experts {
        let slots = ids.data.iter().enumerate().filter(|(_, id)| **id == expert as f64);
        order.extend(slots.map(|(slot, _)| slot as f64));
        starts.push(order.len() as f64);
    }
    [order, starts].map(|data| Matrix { width: data.len(), data })
}

fn numbers<T>(value: &Value, read: impl Fn(&Value) -> Option<T>) -> Vec<T> {
    value.as_array().unwrap().iter().map(|v| read(v).unwrap()).collect()
}

fn tokens(value: &Value) -> Vec<usize> {
    numbers(value, |v| v.as_u64().map(|n| n as usize))
}

/// The norm of the difference, against that of `wanted`.
fn distance(wanted: &[f64], found: &[f64]) -> f64 {
    let error: Vec<f64> = wanted.iter().zip(found).map(|(w, f)| w - f).collect();
    (dot(&error, &error) / dot(wanted, wanted)).sqrt()
}

/// `expected.json` of a checkpoint.
pub(crate) fn expected(checkpoint: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(checkpoint.join("expected.json")).unwrap()).unwrap()
}

/// Compares the logits with those of transformers.
pub(crate) fn check_logits(interpreter: &Interpreter, expected: &Value, tolerance: f64, name: &str) {
    for case in expected["cases"].as_array().unwrap() {
        let prompt = tokens(&case["prompt"]);
        let logits = interpreter.logits(&prompt);
        let rows = case["logits"].as_array().unwrap();
        for (position, row) in tokens(&case["positions"]).into_iter().zip(rows) {
            let relative = distance(&numbers(row, Value::as_f64), logits.row(position));
            let length = prompt.len();
            assert!(relative < tolerance, "{name}: {length} tokens, position {position}: {relative}");
        }
    }
}

/// Compares the greedy tokens with those of transformers. No row depends on later tokens, so that one pass over all of
/// them gives what a pass for each token would.
pub(crate) fn check_greedy(interpreter: &Interpreter, expected: &Value, name: &str) {
    let prompt = tokens(&expected["greedy"]["prompt"]);
    let text = [prompt.clone(), tokens(&expected["greedy"]["tokens"])].concat();
    let logits = interpreter.logits(&text[..text.len() - 1]);
    for (at, &token) in text.iter().enumerate().skip(prompt.len()) {
        let row = logits.row(at - 1);
        let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
        assert_eq!(best, token, "{name}: after {at} tokens");
    }
}
