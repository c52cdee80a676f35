//! The order in which a pass uses its weights, cut into tiles.

use crate::{Encoding, Graph, Node, NodeId, Op, ValueId};
use std::ops::Range;

/// A run of output rows of one node's weights, with one [`Encoding`](crate::Encoding): the weights of one launch. The
/// cut depends on the model only, so results never depend on where a weight is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tile {
    /// The node that reads the tile.
    pub node: NodeId,
    /// Output rows; every part has these rows of its weight.
    pub rows: Range<u64>,
    /// The node's weights, in the operation's order.
    pub parts: Vec<Part>,
    /// When a step reads the tile. `None`: always.
    pub condition: Option<Condition>,
}

/// A step reads a weight if some row of it chose the expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Condition {
    /// The [`Op::Group`] that lists the expert's slots.
    pub group: NodeId,
    /// The expert.
    pub expert: u32,
    /// Experts to choose from.
    pub experts: u32,
    /// Experts of a row.
    pub top_k: u32,
}

impl Condition {
    /// The share of steps of `rows` rows in which it holds, if rows choose independently and all experts are equally
    /// likely: `1 - (1 - top_k / experts)^rows`.
    pub fn probability(self, rows: u64) -> f64 {
        share_used(self.experts, self.top_k, rows)
    }
}

/// The share of experts that a step of `rows` rows uses, if all are equally likely.
pub(crate) fn share_used(experts: u32, top_k: u32, rows: u64) -> f64 {
    1.0 - (1.0 - f64::from(top_k) / f64::from(experts)).powf(rows as f64)
}

/// One weight's share of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The weight.
    pub value: ValueId,
    /// Bytes of the tile's rows.
    pub bytes: u64,
}

impl Tile {
    /// Bytes of all parts, without padding.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|p| p.bytes).sum()
    }
}

#[cfg(test)]
mod tests;

const MAX_TILE: u64 = 64 << 20;
const MIN_TILE: u64 = 64 << 10;

/// The size above which weights are cut: a 64th of the model, as a power of two from 64 KiB to 64 MiB. It depends on
/// the model only, never on the budget.
pub fn tile_bytes(graph: &Graph) -> u64 {
    let bytes: u64 = graph.weights().map(|(_, value)| value.cut_bytes(0..value.matrix()[0])).sum();
    (bytes / 64).clamp(MIN_TILE, MAX_TILE).next_power_of_two()
}

/// The most bytes of an encoded tile's rows as 16-bit elements, for devices that decode a tile before they compute
/// from it. At most 64 MiB, since a larger tile is decoded in pieces. 0 if no weight is encoded.
pub fn decoded_bytes(graph: &Graph) -> u64 {
    let decoded = |tile: &Tile| {
        let encoded = tile
            .parts
            .iter()
            .filter(|part| graph.value(part.value).encodings.at(tile.rows.start) != Encoding::Plain);
        let columns = encoded.map(|part| graph.value(part.value).matrix()[1]).max();
        columns.map_or(0, |columns| (tile.rows.end - tile.rows.start) * columns * 2)
    };
    tiles(graph, tile_bytes(graph)).iter().map(decoded).max().unwrap_or(0).min(MAX_TILE)
}

/// The weights that a pass reads in full, in order of use, cut along their output rows so that no tile
/// exceeds `tile_bytes` (unless a single row does; [`Value::cut_bytes`](crate::Value::cut_bytes) counts) and none has
/// rows of two encodings.
pub fn tiles(graph: &Graph, tile_bytes: u64) -> Vec<Tile> {
    let mut tiles = Vec::new();
    let mut groups = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        if let Some(top_k) = node.op.announces_choice() {
            groups.push((node.outputs[1], NodeId(index as u32), top_k));
        }
        if node.weights.is_empty() || node.op.reads_rows() {
            continue;
        }
        let bytes = |value: ValueId, rows: Range<u64>| graph.value(value).stored_bytes(rows);
        let condition = condition(node, &groups);
        let matrix = graph.value(node.weights[0]);
        for (run, _) in matrix.encodings.runs(0..matrix.matrix()[0]) {
            let first = run.start..run.start + 1;
            let row_bytes: u64 = node.weights.iter().map(|&w| graph.value(w).cut_bytes(first.clone())).sum();
            let rows = run.end - run.start;
            // Rows without elements are one tile.
            let limit = tile_bytes.checked_div(row_bytes).filter(|_| node.op.splits_by_rows());
            let step = limit.map_or(rows, |limit| tile_rows(rows, limit));
            for start in run.clone().step_by(step as usize) {
                let rows = start..run.end.min(start + step);
                let part = |&value: &ValueId| Part { value, bytes: bytes(value, rows.clone()) };
                let parts = node.weights.iter().map(part).collect();
                tiles.push(Tile { node: NodeId(index as u32), rows, parts, condition });
            }
        }
    }
    tiles
}

/// `groups` are the starts, the node and the experts of a row of each grouping so far.
fn condition(node: &Node, groups: &[(ValueId, NodeId, u32)]) -> Option<Condition> {
    let Op::ExpertLinear { expert, experts, .. } = node.op else { return None };
    let &(_, group, top_k) = groups.iter().find(|(starts, ..)| node.inputs[2] == *starts)?;
    Some(Condition { group, expert, experts, top_k })
}

/// Rows of a tile: as equal as possible and at most `limit`, in multiples of 32 where that fits, so that
/// kernels see few ragged edges.
fn tile_rows(rows: u64, limit: u64) -> u64 {
    let unit = if limit >= 32 { 32 } else { 1 };
    let limit = (limit / unit * unit).max(1);
    rows.div_ceil(rows.div_ceil(limit)).next_multiple_of(unit).min(rows)
}

/// Weights whose single rows a pass reads (embedding tables). They are gathered from host memory, or from the
/// device if a tied output projection keeps them there.
pub fn gathered_tables(graph: &Graph) -> Vec<ValueId> {
    let nodes = graph.nodes.iter().filter(|n| n.op.reads_rows());
    nodes.flat_map(|n| n.weights.iter().copied()).collect()
}
