//! Graph and weights together mean what transformers means: a plain f64 interpreter of the graph, fed by the
//! weight source, gives the logits and the greedy tokens in `expected.json`.

use djinn_models::{Location, Model, OpenOptions, open};
use djinn_srg::{DType, Node, Op, RopeStyle, ValueId};
use half::{bf16, f16};
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;

/// Row-major, `[rows, width]`.
#[derive(Clone)]
struct Matrix {
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

    fn row(&self, row: usize) -> &[f64] {
        &self.data[row * self.width..(row + 1) * self.width]
    }
}

/// A model with its weights in f64.
struct Interpreter {
    model: Model,
    weights: HashMap<ValueId, Matrix>,
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl Interpreter {
    fn open(directory: &Path) -> Interpreter {
        let model = open(&Location::Directory(directory.to_owned()), &OpenOptions::default()).unwrap();
        let weights = model.graph.weights().map(|(id, value)| {
            let [rows, columns] = value.matrix();
            let mut bytes = vec![0; (rows * columns * value.dtype.bytes()) as usize];
            model.source.read_rows(&value.name, 0..rows, &mut bytes).unwrap();
            let halves = || bytes.as_chunks::<2>().0;
            let data = match value.dtype {
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
    fn logits(&self, tokens: &[usize]) -> Matrix {
        let mut values = HashMap::new();
        for node in &self.model.graph.nodes {
            let output = match &node.op {
                // Attention reads the keys and values of the sequence from the projections themselves.
                Op::KvWrite { .. } => continue,
                _ => self.run(node, &values, tokens),
            };
            values.insert(node.output, output);
        }
        values.remove(&self.model.graph.logits).unwrap()
    }

    fn run(&self, node: &Node, values: &HashMap<ValueId, Matrix>, tokens: &[usize]) -> Matrix {
        let input = |i: usize| &values[&node.inputs[i]];
        let weight = |i: usize| &self.weights[&node.weights[i]];
        match node.op {
            Op::Embed => {
                let data = tokens.iter().flat_map(|&t| weight(0).row(t).to_vec()).collect();
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
            Op::Linear => input(0).map_rows(|x| {
                let bias = |j: usize| node.weights.get(1).map_or(0.0, |b| self.weights[b].data[j]);
                weight(0).rows().enumerate().map(|(j, w)| dot(x, w) + bias(j)).collect()
            }),
            Op::Rope { heads, kv_heads, head_dim, rotary_dim, style } => {
                assert_eq!((style, rotary_dim), (RopeStyle::Half, head_dim));
                rotate(input(0), input(1), (heads + kv_heads) as usize, head_dim as usize)
            }
            Op::Attention { heads, kv_heads, head_dim, scale, window: None, alibi: false } => {
                let sizes = [heads, kv_heads, head_dim].map(|n| n as usize);
                attend(input(0), sizes, f64::from(scale))
            }
            Op::SiluMul => input(0).map_rows(|x| {
                let (gate, up) = x.split_at(x.len() / 2);
                gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect()
            }),
            Op::Add => {
                let data = input(0).data.iter().zip(&input(1).data).map(|(a, b)| a + b).collect();
                Matrix { width: input(0).width, data }
            }
            Op::SelectRows => input(0).clone(),
            ref other => panic!("no Llama computes {other:?}"),
        }
    }
}

fn rotate(qkv: &Matrix, table: &Matrix, heads: usize, head_dim: usize) -> Matrix {
    let mut out = qkv.clone();
    let half = head_dim / 2;
    for (row, angles) in out.data.chunks_exact_mut(qkv.width).zip(table.rows()) {
        for head in row.chunks_exact_mut(head_dim).take(heads) {
            for i in 0..half {
                let (a, b, cos, sin) = (head[i], head[i + half], angles[i], angles[i + half]);
                (head[i], head[i + half]) = (a * cos - b * sin, b * cos + a * sin);
            }
        }
    }
    out
}

fn attend(qkv: &Matrix, [heads, kv_heads, d]: [usize; 3], scale: f64) -> Matrix {
    let part = |row: usize, slot: usize| &qkv.row(row)[slot * d..(slot + 1) * d];
    let mut data = Vec::new();
    for row in 0..qkv.rows().len() {
        for head in 0..heads {
            let kv = heads + head * kv_heads / heads;
            let scores = (0..=row).map(|r| dot(part(row, head), part(r, kv)) * scale);
            let weights: Vec<f64> = scores.map(f64::exp).collect();
            let total: f64 = weights.iter().sum();
            data.extend((0..d).map(|i| {
                let mix = weights.iter().enumerate().map(|(r, w)| w * part(r, kv + kv_heads)[i]);
                mix.sum::<f64>() / total
            }));
        }
    }
    Matrix { width: heads * d, data }
}

fn numbers<T>(value: &Value, read: impl Fn(&Value) -> Option<T>) -> Vec<T> {
    value.as_array().unwrap().iter().map(|v| read(v).unwrap()).collect()
}

fn tokens(value: &Value) -> Vec<usize> {
    numbers(value, |v| v.as_u64().map(|n| n as usize))
}

fn check(variant: &str) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints").join(variant);
    let expected: Value =
        serde_json::from_slice(&std::fs::read(directory.join("expected.json")).unwrap()).unwrap();
    let interpreter = Interpreter::open(&directory);
    for case in expected["cases"].as_array().unwrap() {
        let prompt = tokens(&case["prompt"]);
        let logits = interpreter.logits(&prompt);
        for (position, row) in tokens(&case["positions"]).into_iter().zip(case["logits"].as_array().unwrap())
        {
            let wanted = numbers(row, Value::as_f64);
            let error: Vec<f64> = wanted.iter().zip(logits.row(position)).map(|(w, f)| w - f).collect();
            let relative = (dot(&error, &error) / dot(&wanted, &wanted)).sqrt();
            assert!(relative < 1e-5, "{variant}: {} tokens, position {position}: {relative}", prompt.len());
        }
    }
    let mut text = tokens(&expected["greedy"]["prompt"]);
    for token in tokens(&expected["greedy"]["tokens"]) {
        let logits = interpreter.logits(&text);
        let last = logits.row(text.len() - 1);
        let best = (0..last.len()).max_by(|&a, &b| last[a].total_cmp(&last[b])).unwrap();
        assert_eq!(best, token, "{variant}: after {} tokens", text.len());
        text.push(token);
    }
}

macro_rules! checkpoints {
    ($($test:ident: $variant:literal,)*) => {
        $(#[test]
        fn $test() {
            check($variant);
        })*
    };
}

checkpoints! {
    biases: "biases-bf16",
    a_configuration_of_transformers_4: "classic-config-bf16",
    grouped_queries: "gqa-bf16",
    an_explicit_head_size: "head-dim-f16",
    one_key_for_each_query: "mha-f16",
    one_layer: "one-layer-f32",
    linear_rope_scaling: "rope-linear-f16",
    llama3_rope_scaling: "rope-llama3-bf16",
    shards: "sharded-bf16",
    a_tied_embedding: "tied-f32",
}
