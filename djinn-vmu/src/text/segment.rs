//! The loaded text segment.

use crate::text::load::{Home, Loader};
use crate::text::slot::{CopyPlan, Slot};
use crate::text::store::TextStore;
use crate::text::streamer::Streamer;
use crate::text::{ChunkId, CpuExchange, CpuRouter, PlacedTile, Placement};
use crate::{Allocations, MemoryPlan, Result, WeightSource};
use djinn_device::args::{CpuSlots, Weight};
use djinn_device::{Ops, Space, Span};
use djinn_srg::{Graph, NodeId, Part, ValueId, gathered_tables};
use std::ops::{ControlFlow, Range};

/// Output rows of a node's weights, as operations read them.
#[derive(Clone, Debug)]
pub struct LoadedTile {
    /// The rows.
    pub rows: Range<u64>,
    /// The rows of each of the node's weights, in the operation's order.
    pub parts: Vec<Weight>,
}

/// A model's weights on one device: resident chunks, and the ring through which the others stream.
#[derive(Debug)]
pub struct TextSegment {
    /// Moves the streamed chunks.
    pub streamer: Streamer,
    /// In order of use, streamed ones in the ring.
    tiles: Vec<LoadedTile>,
    /// The same for passes that leave some chunks to the CPU, if any do.
    tiles_beside_cpu: Option<Vec<LoadedTile>>,
    /// The same in host memory, as the CPU reads experts, if it computes any.
    tiles_of_cpu: Vec<LoadedTile>,
    /// Through which the CPU gets its inputs, and gives its results, if it computes anything.
    cpu_exchange: Option<CpuExchange<Span>>,
    /// Routers that leave slots to the CPU, each with its part of the exchange.
    cpu_routers: Vec<(CpuRouter, CpuExchange<Span>)>,
    /// Gathered tables, with the places of their rows.
    tables: Vec<(ValueId, Vec<LoadedTile>)>,
    /// The place of every chunk.
    homes: Vec<Home>,
}

impl TextSegment {
    /// Loads the weights of `plan` from `source` and begins to prefetch. `progress` gets the bytes read so far, every
    /// few MiB, and may cancel. If the plan has room for checksums, every streamed chunk is verified in every pass,
    /// and freed ring space is poisoned. `held` owns all allocations.
    ///
    /// # Errors
    /// A weight that cannot be read, a device out of memory, or [`Error::Cancelled`](crate::Error::Cancelled).
    pub fn load<D: Ops>(
        device: &D,
        graph: &Graph,
        plan: &MemoryPlan,
        source: &dyn WeightSource,
        store: &mut TextStore,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
        held: &mut Allocations,
    ) -> Result<Self> {
        let stream = held.stream(device)?;
        let mut loader = Loader::new((device, stream), graph, plan, source, store, progress, held);
        let (placement, segments) = (&plan.placement, &plan.segments);
        let mut on_device = |bytes| match bytes {
            0 => Ok(None),
            _ => loader.held.alloc(device, Space::Device, bytes).map(Some),
        };
        let ring = on_device(if placement.ring.slots().is_empty() { 0 } else { segments.ring })?;
        let bounce = on_device(segments.bounce)?;
        let tables = loader.tables()?;
        let homes = loader.chunks()?;
        let mut all_sections = 0;
        let slot = |(index, chunk): (usize, ChunkId)| {
            let home = &homes[chunk.0 as usize];
            let ring = ring.expect("planned for streamed chunks");
            let copy = CopyPlan::new(home.span, ring, placement, index, bounce);
            let sections = Slot::sections(&placement.chunks[chunk.0 as usize], &copy);
            let on_cpu = placement.on_cpu[chunk.0 as usize];
            let (blocker, first_section) = (placement.ring.slots()[index].blocker, all_sections);
            all_sections += sections.len();
            Slot { chunk, on_cpu, copy, blocker, sections, first_section, checksums: home.checksums.clone() }
        };
        let slots: Vec<Slot> = placement.streamed().enumerate().map(slot).collect();
        let place = |chunk: ChunkId, on_cpu: bool| match placement.slots[chunk.0 as usize] {
            Some(slot) if !on_cpu => slots[slot as usize].copy.destination(),
            _ => homes[chunk.0 as usize].span,
        };
        let tiles_beside_cpu = placement
            .on_cpu
            .contains(&true)
            .then(|| tiles(graph, placement, |chunk| place(chunk, placement.on_cpu[chunk.0 as usize])));
        let tiles = tiles(graph, placement, |chunk| place(chunk, false));
        let tiles_of_cpu = match placement.cpu_routers.as_slice() {
            [] => Vec::new(),
            _ => self::tiles(graph, placement, |chunk| homes[chunk.0 as usize].span),
        };
        let exchange = plan.cpu_exchange(graph);
        let cpu_exchange = match exchange.total() {
            0 => None,
            bytes => Some(exchange.within(loader.held.alloc(device, Space::Host, bytes)?)),
        };
        let routers = placement.cpu_routers.iter().cloned();
        let cpu_routers: Vec<_> = cpu_exchange.map_or_else(Vec::new, |exchange| {
            let starts = CpuRouter::starts(&placement.cpu_routers, exchange.starts);
            routers.zip(starts).map(|(router, starts)| (router, CpuExchange { starts, ..exchange })).collect()
        });
        let bytes_of = |(router, exchange): &(CpuRouter, CpuExchange<Span>)| {
            let CpuSlots { begin, end, .. } = router.slots;
            let starts = exchange.starts.slice(4 * u64::from(begin), 4 * u64::from(end - begin + 1));
            (starts, router.bytes.clone())
        };
        let bytes_of_cpu = cpu_routers.iter().map(bytes_of).collect();
        let tables = gathered(graph, placement, &tables, &homes);
        let streamer = Streamer::start(device, stream, slots, bytes_of_cpu, segments.check > 0, loader.held)?;
        Ok(TextSegment {
            streamer,
            tiles,
            tiles_beside_cpu,
            tiles_of_cpu,
            cpu_exchange,
            cpu_routers,
            tables,
            homes,
        })
    }

    /// Brings the weights back to a device that they have [left](Allocations::evict), all or nothing. Copies resident
    /// chunks from their host copies ([`TextStore::keep_copies`]) or reads them from `source`, then fills the ring.
    /// All else that is `held` comes back with undefined contents. No pass may be under way. `progress` is as in
    /// [`load`](Self::load).
    ///
    /// # Errors
    /// A device out of memory, a weight that cannot be read or has changed, or
    /// [`Error::Cancelled`](crate::Error::Cancelled).
    pub fn restore<D: Ops>(
        &mut self,
        device: &D,
        (graph, plan): (&Graph, &MemoryPlan),
        source: &dyn WeightSource,
        store: &mut TextStore,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
        held: &mut Allocations,
    ) -> Result<()> {
        let empty = held.restore(device, store)?;
        let mut loader =
            Loader::new((device, self.streamer.stream()), graph, plan, source, store, progress, held);
        let filled = loader.refill(&self.homes, empty).and_then(|()| self.streamer.refill(device));
        if filled.is_err() {
            held.evict(device, store);
        }
        filled
    }

    /// Every tile in order of use, as the pass under way reads it. Those of a streamed chunk may be read between its
    /// [`acquire`](Streamer::acquire) and its [`release`](Streamer::release), by work on the stream named there. Products
    /// with tiles in host memory are for the CPU.
    pub fn tiles(&self) -> &[LoadedTile] {
        match &self.tiles_beside_cpu {
            Some(tiles) if self.streamer.uses_cpu() => tiles,
            _ => &self.tiles,
        }
    }

    /// Host memory for the inputs and for the results of products on the CPU, each large enough for any one of them.
    ///
    /// # Panics
    /// If no pass has such products.
    pub fn cpu_exchange(&self) -> [Span; 2] {
        let CpuExchange { x, out, .. } = self.cpu_exchange.expect("planned with products on the CPU");
        [x, out]
    }

    /// The router whose [`Op::Group`](djinn_srg::Op::Group) or [`Op::Combine`](djinn_srg::Op::Combine) is `node`, with its host
    /// memory, if the pass under way leaves slots of it to the CPU.
    pub fn cpu_router(&self, node: NodeId) -> Option<(&CpuRouter, CpuExchange<Span>)> {
        let of_node = |(router, _): &&(CpuRouter, _)| router.group == node || router.combine == node;
        let found = self.cpu_routers.iter().find(of_node).filter(|_| self.streamer.uses_cpu());
        found.map(|(router, exchange)| (router, *exchange))
    }

    /// Every tile in order of use, where the CPU reads it. Those of its experts lie in host memory.
    ///
    /// # Panics
    /// If no router leaves slots to the CPU.
    pub fn tiles_of_cpu(&self) -> &[LoadedTile] {
        assert!(!self.cpu_routers.is_empty(), "the CPU computes no experts");
        &self.tiles_of_cpu
    }

    /// The rows of a gathered table, in order: those of a tied output projection, or a copy in host memory.
    pub fn table(&self, value: ValueId) -> &[LoadedTile] {
        self.tables.iter().find(|(table, _)| *table == value).map_or(&[], |(_, tiles)| tiles)
    }
}

/// The weights of each tile, in chunks that are where `place` says.
fn tiles(graph: &Graph, placement: &Placement, place: impl Fn(ChunkId) -> Span) -> Vec<LoadedTile> {
    let tile = |placed: &PlacedTile| {
        let chunk = place(placed.chunk);
        let parts = placed.tile.parts.iter().zip(&placed.offsets);
        let weight = |(part, &offset): (&Part, &u64)| {
            let value = graph.value(part.value);
            let encoding = value.encodings.at(placed.tile.rows.start);
            Weight { span: chunk.slice(offset, part.bytes), dtype: value.dtype(), encoding }
        };
        LoadedTile { rows: placed.tile.rows.clone(), parts: parts.map(weight).collect() }
    };
    placement.tiles.iter().map(tile).collect()
}

/// The rows of each gathered table, whole in one of `tables`, or in the tiles of a tied output projection.
fn gathered(
    graph: &Graph,
    placement: &Placement,
    tables: &[Span],
    homes: &[Home],
) -> Vec<(ValueId, Vec<LoadedTile>)> {
    let alone = placement.host_tables.iter().zip(tables).map(|(&table, &span)| {
        let value = graph.value(table);
        let parts = vec![Weight { span, dtype: value.dtype(), encoding: value.encodings.at(0) }];
        (table, vec![LoadedTile { rows: 0..value.matrix()[0], parts }])
    });
    let kept = tiles(graph, placement, |chunk| homes[chunk.0 as usize].span);
    let tied = gathered_tables(graph).into_iter().filter(|table| !placement.host_tables.contains(table));
    let tied = tied.map(|table| {
        let rows = placement.tiles.iter().zip(&kept).filter_map(|(placed, kept)| {
            let at = placed.tile.parts.iter().position(|part| part.value == table)?;
            Some(LoadedTile { rows: kept.rows.clone(), parts: vec![kept.parts[at]] })
        });
        (table, rows.collect())
    });
    alone.chain(tied).collect()
}
