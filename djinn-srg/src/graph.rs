//! The graph: nodes in execution order, and the builder that checks shapes as it goes.

mod builder;
#[cfg(test)]
pub(crate) mod tests;

pub use builder::{GraphBuilder, GraphError, Heads, Routing};

use crate::{Lifecycle, Op, Value, ValueId};
use serde::Serialize;
use std::collections::HashMap;
use std::ops::Range;

/// Index of a [`Node`] in its graph; also its place in the execution order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct NodeId(pub u32);

/// One operation with its operands.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Node {
    /// The place in the model, e.g. `blocks.3.attn.qkv`.
    pub name: String,
    /// What it computes.
    #[serde(flatten)]
    pub op: Op,
    /// Stack and data values read, in the operation's order.
    pub inputs: Vec<ValueId>,
    /// Weights read, in the operation's order.
    pub weights: Vec<ValueId>,
    /// Values written, in the operation's order. An operation in place lists an input here.
    pub outputs: Vec<ValueId>,
    /// The decoder block that the node belongs to.
    pub layer: Option<u32>,
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
    /// Step input: rows with wanted logits, `[logit_rows]` u32.
    pub logit_rows: ValueId,
    /// Step output: `[logit_rows, vocab]` f32.
    pub logits: ValueId,
    /// Hook points in order of execution. A value may have several; its first is the canonical one.
    pub hooks: Vec<Hook>,
}

/// A name for an activation: where it is read, and where a change reaches all later readers of this name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hook {
    /// The name in TransformerLens 3 (`blocks.3.hook_out`) or its earlier versions (`blocks.3.hook_resid_post`), or
    /// the checkpoint's module that computes it (`model.layers.3`).
    pub name: String,
    /// The activation.
    pub value: ValueId,
    /// The node after which the value has the named contents; later nodes may change it in place.
    pub after: NodeId,
    /// The first column, and how many.
    pub columns: (u64, u64),
}

impl Hook {
    /// Some columns of the values at this point, counted from its first one; `None` if it does not have them all.
    pub fn part(&self, columns: Range<u64>) -> Option<Self> {
        let (first, count) = self.columns;
        let is_within = columns.start < columns.end && columns.end <= count;
        is_within
            .then(|| Hook { columns: (first + columns.start, columns.end - columns.start), ..self.clone() })
    }

    /// Whether this is the whole of another hook, or [part](Self::part) of it.
    pub fn is_part_of(&self, other: &Self) -> bool {
        let (first, end) = (self.columns.0, self.columns.0 + self.columns.1);
        let is_within = first >= other.columns.0 && first < end && end <= other.columns.0 + other.columns.1;
        is_within && *other == Hook { columns: other.columns, ..self.clone() }
    }
}

impl Graph {
    /// The largest vocabulary of a model: devices choose tokens from rows of up to this many logits.
    pub const MOST_VOCAB: u32 = 1 << 22;

    /// The value with this id.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// The node with this id.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// The hook point with this name.
    pub fn hook(&self, name: &str) -> Option<&Hook> {
        self.hooks.iter().find(|hook| hook.name == name)
    }

    /// Hook points in order of execution, each with all of its names; the first is the canonical one.
    pub fn hook_points(&self) -> Vec<Vec<&Hook>> {
        let mut points: Vec<Vec<&Hook>> = Vec::new();
        let mut places = HashMap::new();
        for hook in &self.hooks {
            let place = *places.entry((hook.value, hook.after, hook.columns)).or_insert(points.len());
            if place == points.len() {
                points.push(Vec::new());
            }
            points[place].push(hook);
        }
        points
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
        self.weights().map(|(_, v)| v.text_bytes()).sum()
    }
}
