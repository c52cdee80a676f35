//! FLOPs and bytes of operations.

use crate::order::share_used;
use crate::{DType, Dim, Graph, Node, NodeId, Op, Rows};
use serde::Serialize;

#[cfg(test)]
mod tests;

/// The size of a step, for its costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Work {
    /// Rows of the step.
    pub rows: Rows,
    /// Mean number of positions that a row attends to.
    pub context: u64,
    /// Sequences of the rows: keys and values are read once for each.
    pub sequences: u64,
    /// Element type of the KV cache.
    pub kv_dtype: DType,
}

impl Work {
    /// Prefill of one prompt of `tokens`: the logits of its last row.
    pub fn prefill(tokens: u64, kv_dtype: DType) -> Self {
        let rows = Rows { rows: tokens, logit_rows: 1 };
        Work { rows, context: tokens.div_ceil(2), sequences: 1, kv_dtype }
    }

    /// One decode step of `batch` sequences, each `context` tokens long.
    pub fn decode(batch: u64, context: u64, kv_dtype: DType) -> Self {
        let rows = Rows { rows: batch, logit_rows: batch };
        Work { rows, context, sequences: batch, kv_dtype }
    }
}

/// Operations and device-memory traffic. Bytes count once if they must move at least once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cost {
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes of weights read.
    pub text_bytes: f64,
    /// Bytes of KV cache read and written.
    pub data_bytes: f64,
    /// Bytes of activations read and written.
    pub stack_bytes: f64,
}

impl Cost {
    /// Bytes of all segments.
    pub fn bytes(&self) -> f64 {
        self.text_bytes + self.data_bytes + self.stack_bytes
    }
}

impl std::iter::Sum for Cost {
    fn sum<I: Iterator<Item = Cost>>(costs: I) -> Cost {
        costs.fold(Cost::default(), |a, b| Cost {
            flops: a.flops + b.flops,
            text_bytes: a.text_bytes + b.text_bytes,
            data_bytes: a.data_bytes + b.data_bytes,
            stack_bytes: a.stack_bytes + b.stack_bytes,
        })
    }
}

/// The cost of one node. Experts are assumed to be equally likely: a node of one counts by the share of steps that use
/// it, and by its share of slots.
pub fn node(graph: &Graph, id: NodeId, work: &Work) -> Cost {
    let node = graph.node(id);
    let rows = graph.value(node.outputs[0]).rows(work.rows) as f64;
    let flops = flops(graph, node, rows, work.context as f64);
    let (data_bytes, text_bytes) = match node.op {
        Op::KvWrite { kv_heads, head_dim, .. } => (rows * token_bytes(work, kv_heads, head_dim), 0.0),
        Op::Attention { kv_heads, head_dim, window, .. } => {
            // Rows of one sequence share its keys and values. Its last row reads all of them, except those that even
            // the first row's window hides.
            let per_sequence = rows / work.sequences.max(1) as f64;
            let span = if per_sequence > 1.0 { work.context as f64 * 2.0 } else { work.context as f64 };
            let seen =
                window.map_or(f64::INFINITY, |window| f64::from(window) + (per_sequence - 1.0).max(0.0));
            let span = span.min(seen);
            (work.sequences as f64 * span * token_bytes(work, kv_heads, head_dim), 0.0)
        }
        Op::Embed => {
            let table = graph.value(node.weights[0]);
            (0.0, rows * (table.text_bytes() as f64 / table.matrix()[0] as f64))
        }
        Op::ExpertLinear { experts, .. } => {
            (0.0, text_bytes(graph, node) * expert_share(node, graph, work, experts))
        }
        _ => (0.0, text_bytes(graph, node)),
    };
    let stack_bytes = match node.op {
        Op::ExpertLinear { experts, .. } => {
            let [n, k] = graph.value(node.weights[0]).matrix();
            rows / f64::from(experts) * 4.0 * (n + k + 1) as f64
        }
        _ => {
            let touched =
                node.inputs.iter().copied().chain(node.outputs.iter().copied()).map(|v| graph.value(v));
            let stack = touched.filter(|v| v.lifecycle == crate::Lifecycle::Stack);
            stack.map(|v| v.bytes(work.rows) as f64).sum()
        }
    };
    Cost { flops, text_bytes, data_bytes, stack_bytes }
}

/// Bytes of a token's keys and values in one layer.
fn token_bytes(work: &Work, kv_heads: u32, head_dim: u32) -> f64 {
    2.0 * f64::from(kv_heads) * work.kv_dtype.vector_bytes(head_dim.into()) as f64
}

fn text_bytes(graph: &Graph, node: &Node) -> f64 {
    node.weights.iter().map(|&w| graph.value(w).text_bytes() as f64).sum()
}

/// The share of steps in which some row chooses the node's expert.
fn expert_share(node: &Node, graph: &Graph, work: &Work, experts: u32) -> f64 {
    let top_k = match graph.value(node.outputs[0]).shape.first() {
        Some(&Dim::Slots(top_k)) => top_k,
        _ => experts,
    };
    share_used(experts, top_k, work.rows.rows)
}

/// The cost of a whole pass.
pub fn pass(graph: &Graph, work: &Work) -> Cost {
    (0..graph.nodes.len()).map(|i| node(graph, NodeId(i as u32), work)).sum()
}

fn flops(graph: &Graph, node: &Node, rows: f64, context: f64) -> f64 {
    let width = match graph.value(node.outputs[0]).shape.as_slice() {
        [.., Dim::Fixed(width)] => *width as f64,
        _ => 0.0,
    };
    match node.op {
        Op::Linear => {
            let [n, k] = graph.value(node.weights[0]).matrix();
            2.0 * rows * n as f64 * k as f64
        }
        Op::Attention { heads, head_dim, window, .. } => {
            let seen = window.map_or(context, |window| context.min(window.into()));
            4.0 * rows * (heads * head_dim) as f64 * seen
        }
        Op::RmsNorm { .. } | Op::SiluMul => 4.0 * rows * width,
        Op::LayerNorm { .. } | Op::Gelu { .. } => 8.0 * rows * width,
        Op::HeadNorm { heads, kv_heads, head_dim, .. } => 4.0 * rows * ((heads + kv_heads) * head_dim) as f64,
        Op::RopeTable { .. } | Op::Add => rows * width,
        Op::Rope { heads, kv_heads, rotary_dim, .. } => 3.0 * rows * ((heads + kv_heads) * rotary_dim) as f64,
        Op::Route { experts, .. } => 4.0 * rows * f64::from(experts),
        Op::ExpertLinear { experts, .. } => {
            let [n, k] = graph.value(node.weights[0]).matrix();
            2.0 * rows / f64::from(experts) * n as f64 * k as f64
        }
        Op::Combine { top_k } => 2.0 * rows * f64::from(top_k) * width,
        Op::Embed | Op::KvWrite { .. } | Op::SelectRows | Op::Group { .. } => 0.0,
    }
}
