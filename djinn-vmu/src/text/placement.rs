//! Chooses the resident chunks, and places the others in the ring.

use crate::text::{Chunk, ChunkId, PlacedTile};
use crate::{Error, Result};
use djinn_ringbuf::CyclicLayout;
use djinn_srg::ValueId;
use std::collections::HashMap;

/// Alignment of chunks in the ring, in bytes.
const RING_ALIGN: u64 = 256;

/// The place of every weight.
#[derive(Clone, Debug)]
pub struct Placement {
    /// Tiles in order of use.
    pub tiles: Vec<PlacedTile>,
    /// Chunks in order of use.
    pub chunks: Vec<Chunk>,
    /// By chunk: its slot in the ring, or `None` if it is resident.
    pub slots: Vec<Option<u32>>,
    /// By chunk: an earlier one with the same weights and the same kind of place, if layers share weights. The host
    /// keeps such chunks once; on the device each layer has its own.
    pub twins: Vec<Option<ChunkId>>,
    /// The ring: one slot for each streamed chunk, in order of use.
    pub ring: CyclicLayout,
    /// Whether a copy begins only when its chunk is needed.
    pub blocking_copies: bool,
    /// Gathered tables that belong to no tile. They stay in host memory, and single rows are read from there.
    pub host_tables: Vec<ValueId>,
    /// By chunk: whether it is streamed in passes of many rows only. In others the processor computes its products, and
    /// other operations read it, where it lies in host memory.
    pub on_cpu: Vec<bool>,
}

impl Placement {
    /// The most rows of a pass in which the processor computes: its time grows with the rows, that of copies does not.
    pub const CPU_ROWS: u64 = 8;

    /// Whether a pass of `rows` rows uses a chunk in host memory.
    pub fn is_on_cpu(&self, chunk: ChunkId, rows: u64) -> bool {
        rows <= Self::CPU_ROWS && self.on_cpu[chunk.0 as usize]
    }

    /// Bytes of the chunks that passes of few rows use in host memory.
    pub fn cpu_bytes(&self) -> u64 {
        self.chunks
            .iter()
            .zip(&self.on_cpu)
            .filter(|(_, on_cpu)| **on_cpu)
            .map(|(chunk, _)| chunk.bytes)
            .sum()
    }

    /// Bytes of resident chunks.
    pub fn resident_bytes(&self) -> u64 {
        self.sum(|slot| slot.is_none())
    }

    /// Bytes of streamed chunks: the most that a pass moves over the link. Without experts, every pass moves all.
    pub fn streamed_bytes(&self) -> u64 {
        self.sum(|slot| slot.is_some())
    }

    /// Mean bytes that a pass of `rows` rows moves over the link, if all experts are equally likely.
    pub fn expected_streamed_bytes(&self, rows: u64) -> u64 {
        let copied = self.streamed().filter(|&chunk| !self.is_on_cpu(chunk, rows));
        let bytes = copied.map(|chunk| self.chunks[chunk.0 as usize].expected_bytes(rows));
        bytes.sum::<f64>().round() as u64
    }

    /// Bytes that streamed chunks take on the host.
    pub fn host_bytes(&self) -> u64 {
        let own = self.streamed().filter(|chunk| self.twins[chunk.0 as usize].is_none());
        own.map(|chunk| self.chunks[chunk.0 as usize].bytes).sum()
    }

    /// Streamed chunks in order of use.
    pub fn streamed(&self) -> impl Iterator<Item = ChunkId> + '_ {
        let streamed = self.slots.iter().enumerate().filter(|(_, slot)| slot.is_some());
        streamed.map(|(i, _)| ChunkId(i as u32))
    }

    /// Whether a streamed chunk crosses the ring's end, in two parts.
    pub fn straddles(&self, chunk: ChunkId) -> bool {
        self.slots[chunk.0 as usize].is_some_and(|slot| !self.ring.parts(slot as usize)[1].is_empty())
    }

    fn sum(&self, of: impl Fn(&Option<u32>) -> bool) -> u64 {
        self.chunks.iter().zip(&self.slots).filter(|(_, s)| of(s)).map(|(c, _)| c.bytes).sum()
    }
}

/// The resident chunks within `budget` bytes: first as many bytes as possible of those that every pass uses, then
/// experts' chunks. Streamed chunks are spread evenly between them, so that each copy has computation to hide behind.
pub(crate) fn choose_resident(chunks: &[Chunk], budget: u64) -> Vec<bool> {
    let (always, perhaps): (Vec<usize>, Vec<usize>) =
        (0..chunks.len()).partition(|&i| chunks[i].router().is_none());
    let mut resident = vec![false; chunks.len()];
    let spent = spread(chunks, &always, budget, &mut resident);
    spread(chunks, &perhaps, budget - spent, &mut resident);
    resident
}

/// Makes chunks of `among` resident within `budget` bytes. Returns their bytes.
fn spread(chunks: &[Chunk], among: &[usize], budget: u64, resident: &mut [bool]) -> u64 {
    let total: u128 = among.iter().map(|&i| chunks[i].bytes as u128).sum();
    // Error diffusion: a chunk is resident if the resident share so far is below the goal.
    let (mut seen, mut spent) = (0u128, 0u64);
    for &i in among {
        seen += chunks[i].bytes as u128;
        let goal = seen * (budget as u128).min(total) / total;
        if spent as u128 + chunks[i].bytes as u128 <= goal {
            resident[i] = true;
            spent += chunks[i].bytes;
        }
    }
    // The rest of the budget holds the largest chunks that still fit, from the middle of the pass first.
    let mut rest: Vec<usize> = among.iter().copied().filter(|&i| !resident[i]).collect();
    let middle = chunks.len() / 2;
    rest.sort_by_key(|&i| (std::cmp::Reverse(chunks[i].bytes), i.abs_diff(middle)));
    for i in rest {
        if spent + chunks[i].bytes <= budget {
            resident[i] = true;
            spent += chunks[i].bytes;
        }
    }
    spent
}

/// By chunk: whether the processor computes its products in passes of few rows. These are `share` of the bytes that are not
/// resident and that every pass uses, spread evenly.
pub(crate) fn choose_on_cpu(chunks: &[Chunk], resident: &[bool], share: f64) -> Vec<bool> {
    let (mut seen, mut chosen) = (0u64, 0u64);
    let each = chunks.iter().zip(resident).map(|(chunk, resident)| {
        if *resident || chunk.router().is_some() {
            return false;
        }
        seen += chunk.bytes;
        let on_cpu = (chosen + chunk.bytes) as f64 <= seen as f64 * share;
        chosen += if on_cpu { chunk.bytes } else { 0 };
        on_cpu
    });
    each.collect()
}

/// By chunk: the first one with the same weights and the same kind of place, if that is another one.
pub(crate) fn twins(tiles: &[PlacedTile], chunks: &[Chunk], resident: &[bool]) -> Vec<Option<ChunkId>> {
    let mut first = HashMap::new();
    let each = chunks.iter().zip(resident).enumerate();
    each.map(|(index, (chunk, resident))| {
        let parts = tiles[chunk.tiles.clone()].iter().flat_map(|placed| {
            let rows = &placed.tile.rows;
            placed.tile.parts.iter().map(move |part| (part.value, rows.start, rows.end))
        });
        let of = *first.entry((parts.collect::<Vec<_>>(), *resident)).or_insert(index);
        (of != index).then_some(ChunkId(of as u32))
    })
    .collect()
}

/// Places the streamed chunks in a ring of `capacity` bytes. They skip its end, unless they may straddle it.
pub(crate) fn layout(
    chunks: &[Chunk],
    resident: &[bool],
    capacity: u64,
    straddle: bool,
) -> Result<CyclicLayout> {
    let streamed = chunks.iter().zip(resident).filter(|(_, r)| !**r);
    let lens: Vec<u64> = streamed.map(|(c, _)| c.bytes).collect();
    let largest = lens.iter().copied().max().unwrap_or(0);
    let place = if straddle { CyclicLayout::straddling } else { CyclicLayout::new };
    place(capacity, RING_ALIGN, &lens)
        .map_err(|_| Error::RingTooSmall { ring_bytes: capacity, least_bytes: largest })
}

#[cfg(test)]
mod tests;
