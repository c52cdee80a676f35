//! Chooses the resident chunks, and places the others in the ring.

use crate::text::{Chunk, ChunkId, CpuRouter, PlacedTile};
use crate::{Error, Result};
use djinn_ringbuf::CyclicLayout;
use djinn_srg::{Condition, NodeId, ValueId};
use std::collections::{BTreeMap, HashMap};

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
    pub same_as: Vec<Option<ChunkId>>,
    /// The ring: one slot for each streamed chunk, in order of use.
    pub ring: CyclicLayout,
    /// Whether a copy begins only when its chunk is needed.
    pub blocking_copies: bool,
    /// Gathered tables that belong to no tile. They stay in host memory, and single rows are read from there.
    pub host_tables: Vec<ValueId>,
    /// By chunk: whether it is streamed in passes of many rows only. In others the CPU computes its products, and
    /// other operations read it, where it lies in host memory.
    pub on_cpu: Vec<bool>,
    /// Routers that leave slots of their experts to the CPU in such passes, in order of use.
    pub cpu_routers: Vec<CpuRouter>,
}

impl Placement {
    /// The most rows of a pass in which the CPU computes: its time grows with the rows, that of copies does not.
    pub const CPU_ROWS: u64 = 8;

    /// Whether a pass of `rows` rows uses a chunk in host memory.
    pub fn is_on_cpu(&self, chunk: ChunkId, rows: u64) -> bool {
        rows <= Self::CPU_ROWS && self.on_cpu[chunk.0 as usize]
    }

    /// Whether the CPU computes in passes of few rows.
    pub fn uses_cpu(&self) -> bool {
        self.on_cpu.contains(&true) || !self.cpu_routers.is_empty()
    }

    /// Mean bytes that a pass of `rows` rows uses in host memory, if all experts are equally likely.
    pub fn expected_cpu_bytes(&self, rows: u64) -> u64 {
        if rows > Self::CPU_ROWS {
            return 0;
        }
        let of_experts: f64 = self.cpu_routers.iter().map(|router| router.expected_bytes(rows)).sum();
        self.cpu_bytes() + of_experts.round() as u64
    }

    /// Bytes of the chunks that passes of few rows use in host memory; without experts.
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
        self.streamed().map(|chunk| self.expected_copy(chunk, rows)).sum::<f64>().round() as u64
    }

    /// The same of one streamed chunk.
    pub(crate) fn expected_copy(&self, chunk: ChunkId, rows: u64) -> f64 {
        if self.is_on_cpu(chunk, rows) {
            return 0.0;
        }
        let of_router = |group: NodeId| {
            let routers = self.cpu_routers.iter().filter(|_| rows <= Self::CPU_ROWS);
            routers.map(|router| (router.group, &router.slots)).find(|(of, _)| *of == group)
        };
        let share = |condition: Condition| match of_router(condition.group) {
            // Only the first choices are the device's.
            Some((_, slots)) if (slots.begin..slots.end).contains(&condition.expert) => {
                Condition { top_k: slots.first, ..condition }.probability(rows)
            }
            _ => condition.probability(rows),
        };
        let sections = self.chunks[chunk.0 as usize].sections.iter();
        sections.map(|section| section.bytes as f64 * section.condition.map_or(1.0, share)).sum()
    }

    /// Bytes that streamed chunks take on the host.
    pub fn host_bytes(&self) -> u64 {
        let own = self.streamed().filter(|chunk| self.same_as[chunk.0 as usize].is_none());
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
/// experts' chunks. Streamed chunks are spread evenly between them, so that each copy has computation to hide behind. With
/// `whole_routers` all experts of a router stay together, as far as the budget goes, since the CPU computes an expert
/// only if no part of it is resident.
pub(crate) fn choose_resident(chunks: &[Chunk], budget: u64, whole_routers: bool) -> Vec<bool> {
    let (mut always, mut perhaps) = (Vec::new(), BTreeMap::<(NodeId, usize), Vec<usize>>::new());
    for (i, chunk) in chunks.iter().enumerate() {
        match chunk.router() {
            None => always.push(vec![i]),
            Some(router) => perhaps.entry((router, if whole_routers { 0 } else { i })).or_default().push(i),
        }
    }
    let perhaps: Vec<Vec<usize>> = perhaps.into_values().collect();
    let mut resident = vec![false; chunks.len()];
    let spent = spread(chunks, &always, budget, &mut resident);
    spread(chunks, &perhaps, budget - spent, &mut resident);
    resident
}

/// Makes sets of chunks of `among` resident within `budget` bytes, and then single ones. Returns their bytes.
fn spread(chunks: &[Chunk], among: &[Vec<usize>], budget: u64, resident: &mut [bool]) -> u64 {
    let bytes_of = |set: &[usize]| set.iter().map(|&i| chunks[i].bytes).sum::<u64>();
    let total: u128 = among.iter().map(|set| u128::from(bytes_of(set))).sum();
    // Error diffusion: a set is resident if the resident share so far is below the goal.
    let (mut seen, mut spent) = (0u128, 0u64);
    for set in among {
        let bytes = bytes_of(set);
        seen += u128::from(bytes);
        let goal = seen * u128::from(budget).min(total) / total;
        if u128::from(spent + bytes) <= goal {
            set.iter().for_each(|&i| resident[i] = true);
            spent += bytes;
        }
    }
    // The rest of the budget holds the largest chunks that still fit, from the middle of the pass first.
    let mut rest: Vec<usize> = among.iter().flatten().copied().filter(|&i| !resident[i]).collect();
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

/// By chunk: the first one with the same weights and the same kind of place, if that is another one.
pub(crate) fn same_chunks(tiles: &[PlacedTile], chunks: &[Chunk], resident: &[bool]) -> Vec<Option<ChunkId>> {
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
