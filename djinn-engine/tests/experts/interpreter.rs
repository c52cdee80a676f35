//! The mixture in f64, one sequence at a time: its logits, and the experts that each token chooses.

use super::mixture::Random;
use djinn_srg::{Dim, Graph, Lifecycle, Node, NodeId, Op, ValueId};
use std::collections::HashMap;

/// What one sequence gives.
pub(crate) struct Outcome {
    /// Of every position, `[tokens, vocab]`.
    pub(crate) logits: Vec<f64>,
    /// For each grouping of slots, the experts of every position.
    pub(crate) chosen: HashMap<NodeId, Vec<Vec<u32>>>,
}

/// Runs the graph over one sequence.
pub(crate) fn interpret(graph: &Graph, tokens: &[u32]) -> Outcome {
    let mut run = Run { graph, tokens, values: HashMap::new(), ids: HashMap::new(), chosen: HashMap::new() };
    for (index, node) in graph.nodes.iter().enumerate() {
        run.node(NodeId(index as u32), node);
    }
    let logits = run.values.remove(&graph.logits).expect("the graph computes them");
    Outcome { logits, chosen: run.chosen }
}

struct Run<'a> {
    graph: &'a Graph,
    tokens: &'a [u32],
    /// Row-major.
    values: HashMap<ValueId, Vec<f64>>,
    /// Each row's experts, by the value of ids and that of the order.
    ids: HashMap<ValueId, Vec<Vec<u32>>>,
    chosen: HashMap<NodeId, Vec<Vec<u32>>>,
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl Run<'_> {
    fn width(&self, id: ValueId) -> usize {
        match self.graph.value(id).shape.as_slice() {
            [_, Dim::Fixed(width)] => *width as usize,
            other => panic!("no width: {other:?}"),
        }
    }

    fn rows(&self, id: ValueId) -> std::slice::ChunksExact<'_, f64> {
        self.values[&id].chunks_exact(self.width(id))
    }

    fn weight(&self, id: ValueId) -> Vec<Vec<f64>> {
        let value = self.graph.value(id);
        assert_eq!(value.lifecycle, Lifecycle::Text);
        let [rows, columns] = value.matrix();
        let all: Vec<f64> = Random::rows(&value.name, 0..rows, columns).map(f64::from).collect();
        all.chunks_exact(columns as usize).map(<[f64]>::to_vec).collect()
    }

    fn node(&mut self, id: NodeId, node: &Node) {
        let input = |i: usize| node.inputs[i];
        let output: Vec<f64> = match node.op {
            Op::KvWrite { .. } => return,
            Op::Embed => {
                let table = self.weight(node.weights[0]);
                self.tokens.iter().flat_map(|&t| table[t as usize].clone()).collect()
            }
            Op::RopeTable { .. } => {
                let frequencies = self.weight(node.weights[0]).concat();
                let angles = |p: usize| frequencies.iter().map(move |f| p as f64 * f);
                (0..self.tokens.len())
                    .flat_map(|p| angles(p).map(f64::cos).chain(angles(p).map(f64::sin)).collect::<Vec<_>>())
                    .collect()
            }
            Op::RmsNorm { eps } => {
                let weight = self.weight(node.weights[0]).concat();
                let norm = |x: &[f64]| {
                    let scale = 1.0 / (dot(x, x) / x.len() as f64 + f64::from(eps)).sqrt();
                    x.iter().zip(&weight).map(|(x, w)| x * scale * w).collect::<Vec<_>>()
                };
                self.rows(input(0)).flat_map(norm).collect()
            }
            Op::Linear => {
                let weight = self.weight(node.weights[0]);
                let product = |x: &[f64]| weight.iter().map(|w| dot(x, w)).collect::<Vec<_>>();
                self.rows(input(0)).flat_map(product).collect()
            }
            Op::Rope { heads, kv_heads, head_dim, .. } => {
                self.rotate(node, (heads + kv_heads) as usize, head_dim as usize)
            }
            Op::Attention { heads, kv_heads, head_dim, scale, window: None, alibi: false } => {
                self.attend(node, [heads, kv_heads, head_dim].map(|n| n as usize), scale.into())
            }
            Op::SiluMul => {
                let act = |x: &[f64]| {
                    let (gate, up) = x.split_at(x.len() / 2);
                    gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect::<Vec<_>>()
                };
                self.rows(input(0)).flat_map(act).collect()
            }
            Op::Add => {
                self.values[&input(0)].iter().zip(&self.values[&input(1)]).map(|(a, b)| a + b).collect()
            }
            Op::SelectRows => self.values[&input(0)].clone(),
            Op::Route { top_k, renormalise, .. } => self.route(node, top_k as usize, renormalise),
            Op::Group { .. } => {
                let ids = self.ids[&input(0)].clone();
                self.ids.insert(node.outputs[0], ids.clone());
                self.chosen.insert(id, ids);
                return;
            }
            Op::ExpertLinear { expert, slots_per_row, .. } => {
                self.expert(node, expert, slots_per_row as usize)
            }
            Op::Combine { top_k } => {
                let (width, weights) = (self.width(input(0)), &self.values[&input(1)]);
                let slots: Vec<&[f64]> = self.rows(input(0)).collect();
                let rows = slots.chunks_exact(top_k as usize).zip(weights.chunks_exact(top_k as usize));
                let sum = |(y, weights): (&[&[f64]], &[f64])| {
                    let at = |i: usize| y.iter().zip(weights).map(|(y, w)| y[i] * w).sum::<f64>();
                    (0..width).map(at).collect::<Vec<_>>()
                };
                rows.flat_map(sum).collect()
            }
            ref other => panic!("the mixture has no {other:?}"),
        };
        self.values.insert(node.outputs[0], output);
    }

    fn rotate(&self, node: &Node, heads: usize, head_dim: usize) -> Vec<f64> {
        let mut out = self.values[&node.inputs[0]].clone();
        let (width, half) = (self.width(node.inputs[0]), head_dim / 2);
        for (row, angles) in out.chunks_exact_mut(width).zip(self.rows(node.inputs[1])) {
            for head in row.chunks_exact_mut(head_dim).take(heads) {
                for i in 0..half {
                    let (a, b, cos, sin) = (head[i], head[i + half], angles[i], angles[i + half]);
                    (head[i], head[i + half]) = (a * cos - b * sin, b * cos + a * sin);
                }
            }
        }
        out
    }

    fn attend(&self, node: &Node, [heads, kv_heads, dim]: [usize; 3], scale: f64) -> Vec<f64> {
        let rows: Vec<&[f64]> = self.rows(node.inputs[0]).collect();
        let head = |row: usize, at: usize| &rows[row][at * dim..][..dim];
        let mut out = Vec::new();
        for row in 0..rows.len() {
            for h in 0..heads {
                let kv = heads + h * kv_heads / heads;
                let scores: Vec<f64> =
                    (0..=row).map(|p| (dot(head(row, h), head(p, kv)) * scale).exp()).collect();
                let total: f64 = scores.iter().sum();
                let value = |i: usize| {
                    scores.iter().enumerate().map(|(p, s)| s * head(p, kv + kv_heads)[i]).sum::<f64>() / total
                };
                out.extend((0..dim).map(value));
            }
        }
        out
    }

    fn route(&mut self, node: &Node, top_k: usize, renormalise: bool) -> Vec<f64> {
        let (mut weights, mut ids) = (Vec::new(), Vec::new());
        for logits in self.rows(node.inputs[0]) {
            let total: f64 = logits.iter().map(|x| x.exp()).sum();
            let mut order: Vec<u32> = (0..logits.len() as u32).collect();
            order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
            order.truncate(top_k);
            let shares: Vec<f64> = order.iter().map(|&e| logits[e as usize].exp() / total).collect();
            let sum = if renormalise { shares.iter().sum() } else { 1.0 };
            weights.extend(shares.iter().map(|share| share / sum));
            ids.push(order);
        }
        self.ids.insert(node.outputs[1], ids);
        weights
    }

    /// The output with one more expert's slots.
    fn expert(&self, node: &Node, expert: u32, slots_per_row: usize) -> Vec<f64> {
        let weight = self.weight(node.weights[0]);
        let slots = self.ids[&node.inputs[1]].concat();
        let before = node.inputs.get(3).map(|made| self.values[made].clone());
        let mut out = before.unwrap_or_else(|| vec![f64::NAN; slots.len() * weight.len()]);
        let x: Vec<&[f64]> = self.rows(node.inputs[0]).collect();
        for (slot, out) in out.chunks_exact_mut(weight.len()).enumerate().filter(|(s, _)| slots[*s] == expert)
        {
            out.iter_mut().zip(&weight).for_each(|(out, w)| *out = dot(x[slot / slots_per_row], w));
        }
        out
    }
}
