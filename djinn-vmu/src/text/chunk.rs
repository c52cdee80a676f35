//! Packs tiles into chunks, the unit of residency and transfer.

use djinn_srg::Tile;
use std::ops::Range;

/// Every part of a tile starts at a multiple of this within its chunk.
const ALIGN: u64 = 256;

/// Index of a [`Chunk`], in order of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkId(pub u32);

/// One contiguous blob of whole tiles that are used one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Its tiles, as indices into the model's tiles.
    pub tiles: Range<usize>,
    /// Bytes, padding between parts included.
    pub bytes: u64,
}

/// A tile with its place in a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedTile {
    /// What it holds.
    pub tile: Tile,
    /// The chunk.
    pub chunk: ChunkId,
    /// Offset of each part in the chunk, in bytes.
    pub offsets: Vec<u64>,
}

/// Packs tiles, in order, into chunks of at most `cap` bytes. A tile larger than `cap` is a chunk of its
/// own.
pub(crate) fn pack(tiles: Vec<Tile>, cap: u64) -> (Vec<PlacedTile>, Vec<Chunk>) {
    let mut placed = Vec::with_capacity(tiles.len());
    let mut chunks: Vec<Chunk> = Vec::new();
    for (index, tile) in tiles.into_iter().enumerate() {
        let padded: u64 = tile.parts.iter().map(|p| p.bytes.next_multiple_of(ALIGN)).sum();
        if chunks.last().is_none_or(|c| c.bytes + padded > cap) {
            chunks.push(Chunk { tiles: index..index, bytes: 0 });
        }
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
