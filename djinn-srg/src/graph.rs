//! The graph: nodes in execution order, and the builder that checks shapes as it goes.

mod builder;
#[cfg(test)]
pub(crate) mod tests;

pub use builder::{GraphBuilder, GraphError, Routing};

use crate::{DType, Lifecycle, Op, Value, ValueId};
use serde::Serialize;

/// Index of a [`Node`] in its graph; also its place in the execution order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct NodeId(pub u32);

/// One operation with its operands.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Node {
    /// Unique in the graph, e.g. `blocks.3.attn.qkv`.
    pub name: String,
    /// What it computes.
    #[serde(flatten)]
    pub op: Op,
    /// Stack and data values read, in the operation's order.
    pub inputs: Vec<ValueId>,
    /// Weights read, in the operation's order.
    pub weights: Vec<ValueId>,
    /// The value written; an input where the operation works in place.
    pub output: ValueId,
    /// Further values written, in the operation's order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<ValueId>,
    /// The decoder block that the node belongs to.
    pub layer: Option<u32>,
}

impl Node {
    /// Every value written.
    pub fn outputs(&self) -> impl Iterator<Item = ValueId> + '_ {
        std::iter::once(self.output).chain(self.also.iter().copied())
    }
}

/// Shape of the KV cache of one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KvShape {
    /// Decoder blocks.
    pub layers: u32,
    /// Key and value heads of each.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
}

impl KvShape {
    /// Elements of one token's keys and values over all layers.
    pub const fn elements_per_token(self) -> u64 {
        self.layers as u64 * 2 * self.kv_heads as u64 * self.head_dim as u64
    }

    /// Bytes of one token's keys and values over all layers, stored as `dtype`.
    pub const fn bytes_per_token(self, dtype: DType) -> u64 {
        self.elements_per_token() * dtype.bytes()
    }
}

/// A decoder: values, and operations over them in execution order.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Graph {
    /// The model's name, for people.
    pub model: String,
    /// Every value, indexed by [`ValueId`].
    pub values: Vec<Value>,
    /// Every operation, in execution order, indexed by [`NodeId`].
    pub nodes: Vec<Node>,
    /// Shape of the KV cache.
    pub kv: KvShape,
    /// Size of the vocabulary: columns of the logits.
    pub vocab: u64,
    /// Longest sequence that the model was made for, in tokens.
    pub max_context: u64,
    /// Step input: token ids, `[rows]` u32.
    pub tokens: ValueId,
    /// Step input: each row's position in its sequence, `[rows]` u32.
    pub positions: ValueId,
    /// Step input: each row's sequence (a row of the page table), `[rows]` u32.
    pub row_seq: ValueId,
    /// Step input: rows whose logits are wanted, `[logit_rows]` u32.
    pub logit_rows: ValueId,
    /// Step output: `[logit_rows, vocab]` f32.
    pub logits: ValueId,
}

impl Graph {
    /// The value with this id.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// The node with this id.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// Weights, in order of declaration.
    pub fn weights(&self) -> impl Iterator<Item = (ValueId, &Value)> {
        self.ids().filter(|(_, v)| v.lifecycle == Lifecycle::Text)
    }

    /// Every value with its id.
    pub fn ids(&self) -> impl Iterator<Item = (ValueId, &Value)> {
        self.values.iter().enumerate().map(|(i, v)| (ValueId(i as u32), v))
    }

    /// Parameters: elements of all weights.
    pub fn parameters(&self) -> u64 {
        self.weights().map(|(_, v)| v.matrix().iter().product::<u64>()).sum()
    }

    /// Bytes of all weights.
    pub fn text_bytes(&self) -> u64 {
        self.weights().map(|(_, v)| v.matrix().iter().product::<u64>() * v.dtype.bytes()).sum()
    }
}
