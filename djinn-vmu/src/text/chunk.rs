//! Packs tiles into chunks, the unit of residency and transfer.

use djinn_srg::{Condition, Graph, Tile};
use serde::Serialize;
use std::ops::Range;

/// Every part of a tile starts at a multiple of this within its chunk.
const ALIGN: u64 = 256;

/// Index of a [`Chunk`], in order of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct ChunkId(pub u32);

/// Whole tiles that are used one after the other, in one contiguous blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Its tiles, as indices into the model's tiles.
    pub tiles: Range<usize>,
    /// Bytes, padding between parts included.
    pub bytes: u64,
    /// When a pass uses it: the condition of each of its tiles. `None`: in every pass.
    pub condition: Option<Condition>,
}

impl Chunk {
    /// Mean bytes that a pass of `rows` rows uses, if all experts are equally likely.
    pub(crate) fn expected_bytes(&self, rows: u64) -> f64 {
        self.bytes as f64 * self.condition.map_or(1.0, |condition| condition.probability(rows))
    }
}

/// A tile with its place in a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedTile {
    /// The tile.
    pub tile: Tile,
    /// The chunk.
    pub chunk: ChunkId,
    /// Offset of each part in the chunk, in bytes.
    pub offsets: Vec<u64>,
}

/// Packs tiles, in order, into chunks of at most `cap` bytes. A larger tile is a chunk of its own. A chunk's tiles
/// have one condition and belong to one decoder block. So a pass uses all of a chunk or nothing, and equal blocks have
/// equal chunks.
pub(crate) fn pack(graph: &Graph, tiles: Vec<Tile>, cap: u64) -> (Vec<PlacedTile>, Vec<Chunk>) {
    let mut placed = Vec::with_capacity(tiles.len());
    let mut chunks: Vec<Chunk> = Vec::new();
    let mut last_layer = None;
    for (index, tile) in tiles.into_iter().enumerate() {
        let padded: u64 = tile.parts.iter().map(|p| p.bytes.next_multiple_of(ALIGN)).sum();
        let (condition, layer) = (tile.condition, graph.node(tile.node).layer);
        let fits = |c: &Chunk| c.bytes + padded <= cap && c.condition == condition && last_layer == layer;
        if !chunks.last().is_some_and(fits) {
            chunks.push(Chunk { tiles: index..index, bytes: 0, condition });
        }
        last_layer = layer;
        let chunk = ChunkId(chunks.len() as u32 - 1);
        let last = chunks.last_mut().expect("one was just pushed");
        let mut offsets = Vec::with_capacity(tile.parts.len());
        for part in &tile.parts {
            offsets.push(last.bytes);
            last.bytes += part.bytes.next_multiple_of(ALIGN);
        }
        last.tiles.end = index + 1;
        placed.push(PlacedTile { tile, chunk, offsets });
    }
    (placed, chunks)
}
