//! Divides a budget between the segments, to the byte, before anything is allocated.

#[cfg(test)]
pub(crate) mod tests;

use crate::text::{
    CHECK_BYTES, Chunk, CpuExchange, FLAG_BYTES, PlacedTile, choose_on_cpu, choose_resident, choose_routers,
    layout, pack, same_chunks,
};
use crate::{Error, KvLayout, Placement, Result, size};
use djinn_srg::{Condition, Graph, KvPlan, Rows, StackPlan, gathered_tables, tile_bytes, tiles};
use serde::Serialize;

/// The user's memory limits, in bytes. `None` leaves the choice to the plan.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Budget {
    /// Cap over everything on the device.
    pub vram: Option<u64>,
    /// Cap over host memory: weights, and the pages of swapped sequences.
    pub ram: Option<u64>,
    /// Share of the weights that is resident, 0 to 1.
    pub resident_fraction: Option<f64>,
    /// Cap of a chunk. By default the model's tile size, and up to four times that for small shares of experts.
    pub chunk: Option<u64>,
    /// Bytes of the ring. By default three chunks, five with a `cpu_share`, or fewer if those do not fit.
    pub ring: Option<u64>,
    /// Share of the streamed weights, 0 to 1, whose products the CPU computes in passes of few rows
    /// ([`Placement::CPU_ROWS`]). Of experts, it is the share of each row's choices, to the nearest whole number. On a GPU it
    /// changes results in the last bits.
    pub cpu_share: f64,
    /// Reserve what the stream check needs.
    pub stream_check: bool,
    /// Ablation: no pipelining. A chunk's copy begins only when the operation that needs it is reached, on the
    /// device's clock, and that operation waits for it.
    pub blocking_copies: bool,
    /// Ablation: no skip-end. Streamed chunks lie end to end in the ring and may cross its end. Such a chunk is copied
    /// in two parts, which are joined in a bounce buffer of the largest chunk.
    pub straddle: bool,
}

/// The engine's demand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// The largest step.
    pub rows: Rows,
    /// The KV cache.
    pub kv: KvLayout,
    /// Bytes that the device takes under the cap: code, workspaces.
    pub reserved_bytes: u64,
}

/// Bytes by segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Segments {
    /// Text: chunks that stay on the device.
    pub resident: u64,
    /// Text: the ring through which the others stream.
    pub ring: u64,
    /// Text: the buffer in which chunks that cross the ring's end are joined; 0 if none may.
    #[serde(skip_serializing_if = "is_zero")]
    pub bounce: u64,
    /// Data: KV pages, their table, their checksums in check mode.
    pub data: u64,
    /// Stack: activations and step inputs.
    pub stack: u64,
    /// Checksums of the stream check.
    pub check: u64,
    /// Flags that say whether a pass moved each section of the streamed chunks; 0 if every pass moves all.
    #[serde(skip_serializing_if = "is_zero")]
    pub flags: u64,
    /// The device's own code and workspaces.
    pub reserved: u64,
}

impl Segments {
    /// Everything on the device.
    pub fn total(&self) -> u64 {
        [self.ring, self.bounce, self.data, self.stack, self.check, self.flags, self.reserved]
            .iter()
            .fold(self.resident, |a, &b| a.saturating_add(b))
    }

    /// Everything but resident weights and the ring.
    fn fixed(&self) -> u64 {
        self.total() - self.resident - self.ring
    }
}

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// Where every byte of a model lies.
#[derive(Clone, Debug)]
pub struct MemoryPlan {
    /// Weights.
    pub placement: Placement,
    /// Activations.
    pub stack: StackPlan,
    /// KV cache.
    pub kv: KvLayout,
    /// The places of its values in a page.
    pub kv_places: KvPlan,
    /// Device bytes by segment.
    pub segments: Segments,
    /// Bytes in host memory: weights (streamed chunks and gathered tables) and the pages of swapped sequences.
    pub host_bytes: u64,
}

impl MemoryPlan {
    /// Bytes of host memory through which the CPU gets its inputs, and gives its results.
    pub fn cpu_exchange(&self, graph: &Graph) -> CpuExchange<u64> {
        CpuExchange::new(graph, &self.placement, self.stack.rows.rows)
    }

    /// Bytes of weights in host memory: the part of [`host_bytes`](Self::host_bytes) that is read from files.
    pub fn host_weight_bytes(&self) -> u64 {
        self.host_bytes - self.kv.host_bytes()
    }

    /// Plans `graph` within `budget`. Results of the model do not depend on the plan, except for the last bits on a GPU
    /// with a [`cpu_share`](Budget::cpu_share).
    ///
    /// # Errors
    /// If the budget is too small, with the smallest that would do.
    pub fn new(graph: &Graph, budget: &Budget, demand: &Demand) -> Result<Self> {
        if let Some(f) = budget.resident_fraction.filter(|f| !(0.0..=1.0).contains(f)) {
            return Err(Error::Fraction("resident_fraction", f));
        }
        if !(0.0..=1.0).contains(&budget.cpu_share) {
            return Err(Error::Fraction("cpu_share", budget.cpu_share));
        }
        let (tiles, chunks) = cut(graph, budget.chunk)?;
        let stack = StackPlan::new(graph, demand.rows);
        let mut segments = Segments {
            data: demand.kv.device_bytes(),
            stack: stack.bytes,
            reserved: demand.reserved_bytes,
            check: if budget.stream_check { CHECK_BYTES * sections(&chunks, |_| true) } else { 0 },
            flags: flags(&chunks, |_| true),
            ..Segments::default()
        };
        let resident = divide(&chunks, budget, &mut segments)?;
        let ring = layout(&chunks, &resident, segments.ring, budget.straddle)?;
        let mut slots = 0..;
        let slots = resident.iter().map(|r| if *r { None } else { slots.next() }).collect();
        let mut host_tables = gathered_tables(graph);
        host_tables.retain(|t| !tiles.iter().any(|p| p.tile.parts.iter().any(|part| part.value == *t)));
        let table_bytes: u64 = host_tables.iter().map(|&t| graph.value(t).text_bytes()).sum();
        let blocking_copies = budget.blocking_copies;
        let same_as = same_chunks(&tiles, &chunks, &resident);
        let on_cpu = choose_on_cpu(&chunks, &resident, budget.cpu_share);
        let cpu_routers = choose_routers(graph, &tiles, &resident, budget.cpu_share);
        let placement = Placement {
            tiles,
            chunks,
            slots,
            same_as,
            ring,
            blocking_copies,
            host_tables,
            on_cpu,
            cpu_routers,
        };
        let kv_bytes = demand.kv.host_bytes();
        let host_bytes = (placement.host_bytes() + table_bytes)
            .checked_add(kv_bytes)
            .ok_or(Error::Overflow("host pages of the KV cache"))?;
        if let Some(ram_bytes) = budget.ram.filter(|&ram| host_bytes > ram) {
            // With a chosen fraction, a larger device budget keeps no more weights off the host.
            let remedy = match budget.resident_fraction.filter(|&fraction| fraction < 1.0) {
                Some(_) => "raise `ram` or `resident_fraction`",
                None => "raise `ram` or `vram`",
            };
            return Err(Error::HostBudgetTooSmall { ram_bytes, needed_bytes: host_bytes, kv_bytes, remedy });
        }
        let (kv, kv_places) = (demand.kv, KvPlan::new(graph));
        Ok(MemoryPlan { placement, stack, kv, kv_places, segments, host_bytes })
    }
}

/// Cuts the weights into tiles and packs them into chunks.
fn cut(graph: &Graph, chunk: Option<u64>) -> Result<(Vec<PlacedTile>, Vec<Chunk>)> {
    let tile_bytes = tile_bytes(graph);
    let default = |condition: Option<Condition>| tile_bytes * condition.map_or(1, expert_tiles);
    let (tiles, chunks) =
        pack(graph, tiles(graph, tile_bytes), |condition| chunk.unwrap_or_else(|| default(condition)));
    let largest = chunks.iter().map(|c| c.bytes).max().unwrap_or(0);
    match chunk {
        Some(chunk_bytes) if chunk_bytes < largest => {
            Err(Error::ChunkTooSmall { chunk_bytes, least_bytes: largest })
        }
        _ => Ok((tiles, chunks)),
    }
}

/// Tile sizes in a chunk of experts: as many as let one row use an eighth of a tile size, within 1 to 4.
fn expert_tiles(Condition { experts, top_k, .. }: Condition) -> u64 {
    u64::from(experts / top_k / 8).clamp(1, 4)
}

/// Sections of streamed chunks.
fn sections(chunks: &[Chunk], streamed: impl Fn(usize) -> bool) -> u64 {
    let streamed = (0..chunks.len()).filter(|&i| streamed(i));
    streamed.map(|i| chunks[i].sections.len() as u64).sum()
}

/// Bytes of flags for streamed chunks: one flag for each section if a pass may skip some.
fn flags(chunks: &[Chunk], streamed: impl Fn(usize) -> bool) -> u64 {
    let some = (0..chunks.len()).any(|i| streamed(i) && chunks[i].router().is_some());
    if some { FLAG_BYTES * sections(chunks, streamed) } else { 0 }
}

/// Divides what the fixed segments leave between resident chunks and the ring, and fills in `segments`. Returns which
/// chunks are resident.
fn divide(chunks: &[Chunk], budget: &Budget, segments: &mut Segments) -> Result<Vec<bool>> {
    let total: u64 = chunks.iter().map(|c| c.bytes).sum();
    let largest = chunks.iter().map(|c| c.bytes).max().unwrap_or(0);
    let vram = budget.vram.unwrap_or(u64::MAX);
    let wanted = match budget.resident_fraction {
        Some(f) if f < 1.0 => (total as f64 * f) as u64,
        _ => total,
    };
    // A chosen fraction must fit. Otherwise any part of the weights may be resident.
    let least = if budget.resident_fraction.is_some() { wanted } else { 0 };
    let available = vram.saturating_sub(segments.fixed());
    if wanted == total && available >= total && vram >= segments.fixed() {
        segments.resident = total;
        (segments.check, segments.flags) = (0, 0);
        return Ok(vec![true; chunks.len()]);
    }
    if least == total {
        return Err(too_small(budget, segments, (total, "all weights"), largest, least));
    }
    segments.bounce = if budget.straddle { largest } else { 0 };
    let available = vram.saturating_sub(segments.fixed());
    let most = if least > 0 { available.saturating_sub(least) } else { available / 2 };
    // Chunks that passes of few rows use in host memory leave holes in the ring then.
    let chunks_of_ring = if budget.cpu_share > 0.0 { [5, 3, 2].as_slice() } else { &[3, 2] };
    let default = || chunks_of_ring.iter().map(|n| n * largest).find(|&r| r <= most).unwrap_or(largest);
    let ring = budget.ring.unwrap_or_else(default);
    let needed = ring.saturating_add(least);
    if vram < segments.fixed() || available < needed {
        return Err(too_small(
            budget,
            segments,
            (needed, "the ring and the resident weights"),
            largest,
            least,
        ));
    }
    let room = available - ring;
    let resident = choose_resident(chunks, wanted.min(room), budget.cpu_share > 0.0);
    let sum = |of: bool| chunks.iter().zip(&resident).filter(|(_, r)| **r == of).map(|(c, _)| c.bytes).sum();
    segments.resident = sum(true);
    segments.check = segments.check.min(CHECK_BYTES * sections(chunks, |i| !resident[i]));
    segments.flags = flags(chunks, |i| !resident[i]);
    segments.ring = if budget.ring.is_some() { ring } else { ring.min(sum(false)) };
    Ok(resident)
}

/// The error for a device budget that is too small for the fixed segments and `weights` bytes together. The smallest
/// ring takes `largest` bytes, and `least` bytes of weights have to be resident.
fn too_small(
    budget: &Budget,
    segments: &Segments,
    (weights, what): (u64, &str),
    largest: u64,
    least: u64,
) -> Error {
    let Segments { data, stack, reserved, bounce, check, flags, .. } = *segments;
    let parts = [
        (data, "KV cache"),
        (stack, "activations"),
        (reserved, "the device itself"),
        (bounce + check + flags, "streaming"),
        (weights, what),
    ];
    let parts = parts.iter().filter(|(bytes, _)| *bytes > 0);
    let parts: Vec<String> =
        parts.map(|(bytes, what)| format!("{} for {what}", size::human(*bytes))).collect();
    let vram_bytes = budget.vram.unwrap_or(u64::MAX);
    let available = vram_bytes.saturating_sub(segments.fixed());
    Error::BudgetTooSmall {
        vram_bytes,
        least_bytes: segments.fixed().saturating_add(weights),
        reason: parts.join(", "),
        remedy: if budget.resident_fraction.is_some() && available >= budget.ring.unwrap_or(largest) {
            "lower `resident_fraction` or raise `vram`"
        } else if budget.ring.is_some() && available >= largest.saturating_add(least) {
            "lower `ring` or raise `vram`"
        } else {
            "raise `vram` or lower `context`"
        },
    }
}
