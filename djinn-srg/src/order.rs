//! The order in which a pass uses its weights, cut into tiles.

use crate::{Graph, NodeId, Op, ValueId};
use std::ops::Range;

/// A run of output rows of one node's weights: what one launch of the node's operation reads. Weights are
/// cut once, as a function of the model alone, so that results never depend on where a weight is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tile {
    /// The node that reads the tile.
    pub node: NodeId,
    /// Output rows; every part has these rows of its weight.
    pub rows: Range<u64>,
    /// The node's weights, in the operation's order.
    pub parts: Vec<Part>,
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

/// The size above which weights are cut: a 64th of the model, as a power of two from 64 KiB to 64 MiB. A
/// constant of the model, never of the budget.
pub fn tile_bytes(graph: &Graph) -> u64 {
    (graph.text_bytes() / 64).clamp(MIN_TILE, MAX_TILE).next_power_of_two()
}

/// The weights that a pass reads in full, in order of use, cut along their output rows so that no tile
/// exceeds `tile_bytes` (unless a single row does).
pub fn tiles(graph: &Graph, tile_bytes: u64) -> Vec<Tile> {
    let mut tiles = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        if node.weights.is_empty() || matches!(node.op, Op::Embed) {
            continue;
        }
        let row_bytes: Vec<u64> =
            node.weights.iter().map(|&w| graph.value(w).matrix()[1] * graph.value(w).dtype.bytes()).collect();
        let total: u64 = row_bytes.iter().sum();
        let rows = graph.value(node.weights[0]).matrix()[0];
        // Only the rows of a product are independent; every other operation reads its weights whole.
        let step = if matches!(node.op, Op::Linear) { tile_rows(rows, tile_bytes / total) } else { rows };
        let mut start = 0;
        while start < rows {
            let end = rows.min(start + step);
            let parts = node.weights.iter().zip(&row_bytes);
            let parts = parts.map(|(&value, b)| Part { value, bytes: b * (end - start) }).collect();
            tiles.push(Tile { node: NodeId(index as u32), rows: start..end, parts });
            start = end;
        }
    }
    tiles
}

/// Rows of a tile: as equal as possible and at most `limit`, in multiples of 32 where that fits, so that
/// kernels see few ragged edges.
fn tile_rows(rows: u64, limit: u64) -> u64 {
    let unit = if limit >= 32 { 32 } else { 1 };
    let limit = (limit / unit * unit).max(1);
    rows.div_ceil(rows.div_ceil(limit)).next_multiple_of(unit).min(rows)
}

/// Weights of which a pass reads single rows (embedding tables). They are gathered from host memory, or
/// from the device where a tied output projection keeps them there.
pub fn gathered_tables(graph: &Graph) -> Vec<ValueId> {
    let nodes = graph.nodes.iter().filter(|n| matches!(n.op, Op::Embed));
    nodes.flat_map(|n| n.weights.iter().copied()).collect()
}
