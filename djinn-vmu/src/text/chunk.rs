//! Packs tiles into chunks, the unit of residency and transfer.

use djinn_srg::{Condition, Graph, NodeId, Tile};
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
    /// All of its bytes, in order: one section, or one for each run of tiles of an expert.
    pub sections: Vec<Section>,
}

/// Bytes of a chunk that a pass uses all, or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Offset of the first in the chunk.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
    /// When a pass uses them. `None`: in every pass.
    pub condition: Option<Condition>,
}

impl Chunk {
    /// The [`Op::Group`](djinn_srg::Op::Group) of the router that chooses among its experts; `None` if every pass uses all of
    /// it.
    pub fn router(&self) -> Option<NodeId> {
        self.sections[0].condition.map(|condition| condition.group)
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

/// Packs tiles, in order, into chunks of at most `cap(condition)` bytes. A larger tile is a chunk of its own. A chunk's
/// tiles belong to one decoder block, so that equal blocks have equal chunks, and to experts of one router or to none.
pub(crate) fn pack(
    graph: &Graph,
    tiles: Vec<Tile>,
    cap: impl Fn(Option<Condition>) -> u64,
) -> (Vec<PlacedTile>, Vec<Chunk>) {
    let mut placed = Vec::with_capacity(tiles.len());
    let mut chunks: Vec<Chunk> = Vec::new();
    let mut last_layer = None;
    for (index, tile) in tiles.into_iter().enumerate() {
        let padded: u64 = tile.parts.iter().map(|p| p.bytes.next_multiple_of(ALIGN)).sum();
        let (condition, layer) = (tile.condition, graph.node(tile.node).layer);
        let router = condition.map(|condition| condition.group);
        let fits =
            |c: &Chunk| c.bytes + padded <= cap(condition) && c.router() == router && last_layer == layer;
        if !chunks.last().is_some_and(fits) {
            let sections = vec![Section { offset: 0, bytes: 0, condition }];
            chunks.push(Chunk { tiles: index..index, bytes: 0, sections });
        }
        last_layer = layer;
        let chunk = ChunkId(chunks.len() as u32 - 1);
        let last = chunks.last_mut().expect("one was just pushed");
        let first = last.bytes;
        let mut offsets = Vec::with_capacity(tile.parts.len());
        for part in &tile.parts {
            offsets.push(last.bytes);
            last.bytes += part.bytes.next_multiple_of(ALIGN);
        }
        last.tiles.end = index + 1;
        match last.sections.last_mut() {
            Some(section) if section.condition == condition => section.bytes = last.bytes - section.offset,
            _ => last.sections.push(Section { offset: first, bytes: last.bytes - first, condition }),
        }
        placed.push(PlacedTile { tile, chunk, offsets });
    }
    (placed, chunks)
}
