//! Attention patterns of stopped sessions, computed on the host from queries and keys on request.

use super::{KvValues, Looked};
use djinn_device::reference::alibi;
use djinn_srg::{Graph, Hook, Op};
use std::ops::Range;

/// A block's queries and keys. Its attention pattern follows from them; no operation of a pass writes it.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionScores {
    /// The queries' positions. Each has keys of all positions up to its own.
    pub queries: Range<u64>,
    /// Query heads.
    pub heads: u32,
    shape: Attending,
    /// f32 `[queries, heads, head_dim]`.
    query_values: Vec<f32>,
    keys: KvValues,
}

/// A block with a readable attention pattern. It is listed with the hook points, but can be read only from a paused
/// session, and not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionPattern {
    /// The block.
    pub layer: u32,
    /// Query heads: a pattern is `[heads, tokens, keys]`.
    pub heads: u32,
}

impl AttentionPattern {
    /// Those of a model, one for each attention block.
    pub fn all(graph: &Graph) -> impl Iterator<Item = Self> {
        graph.nodes.iter().filter_map(|node| match node.op {
            Op::Attention { heads, .. } => Some(AttentionPattern { layer: node.layer?, heads }),
            _ => None,
        })
    }

    /// The one with a name, if the model has it.
    pub fn named(graph: &Graph, name: &str) -> Option<Self> {
        Self::all(graph).find(|pattern| pattern.name() == name)
    }

    /// Its TransformerLens name.
    pub fn name(&self) -> String {
        pattern_name(self.layer)
    }
}

pub(crate) fn pattern_name(layer: u32) -> String {
    format!("blocks.{layer}.attn.hook_pattern")
}

/// A block's attention parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Attending {
    heads: u32,
    scale: f32,
    window: Option<u32>,
    alibi: bool,
}

impl Attending {
    /// A block's attention, and the hook whose values are its queries.
    pub(crate) fn of(graph: &Graph, layer: u32) -> Option<(Self, &Hook)> {
        let attends =
            graph.nodes.iter().filter(|node| node.layer == Some(layer)).find_map(|node| match node.op {
                Op::Attention { heads, scale, window, alibi, .. } => {
                    Some(Attending { heads, scale, window, alibi })
                }
                _ => None,
            })?;
        let hook = |name: &str| graph.hook(&format!("blocks.{layer}.attn.{name}"));
        Some((attends, hook("hook_rot_q").or_else(|| hook("hook_q"))?))
    }

    pub(crate) fn bytes(&self, queries: &Range<u64>) -> u64 {
        u64::from(self.heads) * (queries.end - queries.start) * queries.end * 4
    }

    /// The queries and keys from a look's result.
    pub(crate) fn scores(self, looked: Looked) -> Option<AttentionScores> {
        let Looked { positions, mut values, mut caches, .. } = looked;
        let ((_, query_values), keys) = (values.pop()?, caches.pop()?);
        Some(AttentionScores { queries: positions, heads: self.heads, shape: self, query_values, keys })
    }
}

impl AttentionScores {
    /// The pattern, f32 `[heads, queries, keys]`. Each row sums to 1, and is computed in double precision. Keys
    /// after their query, and keys before the block's window, have 0.
    pub fn pattern(&self) -> Vec<f32> {
        let Attending { heads, scale, window, alibi } = self.shape;
        let (heads, dim) = (heads as usize, self.keys.head_dim as usize);
        let (kv_heads, count) = (self.keys.kv_heads as usize, self.queries.end as usize);
        let rows = self.query_values.len() / (heads * dim);
        let mut pattern = vec![0.0; heads * rows * count];
        for (at, row) in pattern.chunks_exact_mut(count).enumerate() {
            let (head, query) = (at / rows, at % rows);
            let slope = if alibi { alibi::slope(head, heads) } else { 0.0 };
            let values = &self.query_values[(query * heads + head) * dim..][..dim];
            let position = self.queries.start as usize + query;
            let first = window.map_or(0, |window| (position + 1).saturating_sub(window as usize));
            let score = |key: usize| -> f64 {
                let at = (key * kv_heads + head * kv_heads / heads) * dim;
                let products = values.iter().zip(&self.keys.keys[at..][..dim]);
                let product: f64 = products.map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
                (product + f64::from(alibi::bias(slope, key))) * f64::from(scale)
            };
            let scores: Vec<f64> = (first..=position).map(score).collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
            let weights = scores.iter().map(|score| ((score - largest).exp() / total) as f32);
            row[first..=position].iter_mut().zip(weights).for_each(|(out, weight)| *out = weight);
        }
        pattern
    }
}
