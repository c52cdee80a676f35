//! Reads weights from their source into host memory, and copies resident chunks to the device.

use crate::text::store::{Hash, TextStore};
use crate::text::{PlacedTile, Section};
use crate::{Allocations, ChunkId, Error, MemoryPlan, Placement, Result, WeightSource};
use djinn_device::{Buffer, Device, Event, Space, Span, Stream};
use djinn_srg::{Graph, ValueId};
use std::collections::HashSet;
use std::ops::{ControlFlow, Range};
use std::sync::Mutex;
use std::thread::Builder;

/// Reader threads take rows in pieces of about this many bytes.
const PIECE: u64 = 2 << 20;

/// A run of rows of one weight, and its destination.
struct Piece<'a> {
    value: ValueId,
    rows: Range<u64>,
    out: &'a mut [u8],
}

/// Reports the bytes loaded, and stops the load on request.
struct Meter<'a> {
    loaded: u64,
    progress: &'a mut dyn FnMut(u64) -> ControlFlow<()>,
}

impl Meter<'_> {
    /// Counts `bytes` more.
    fn add(&mut self, bytes: u64) -> Result<()> {
        self.loaded += bytes;
        self.tell(0)
    }

    /// Reports the bytes loaded, with `part` bytes of the present piece.
    fn tell(&mut self, part: u64) -> Result<()> {
        match (self.progress)(self.loaded + part) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Cancelled),
        }
    }
}

/// A chunk's memory: on the device if it is resident, else on the host.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    pub(crate) span: Span,
    /// The checksums of its sections, in check mode.
    pub(crate) checksums: Vec<u64>,
    /// Its hash in the store; `None` if the segment owns the memory.
    hash: Option<Hash>,
}

/// Loads a model's weights.
pub(crate) struct Loader<'a, D: Device> {
    device: &'a D,
    graph: &'a Graph,
    placement: &'a Placement,
    source: &'a dyn WeightSource,
    store: &'a mut TextStore,
    /// Whether checksums are wanted.
    check: bool,
    /// Bytes of host memory that streamed chunks will still take. Copies of resident ones leave room for them.
    to_come: u64,
    meter: Meter<'a>,
    pub(crate) stream: Stream,
    pub(crate) held: &'a mut Allocations,
}

impl<'a, D: Device> Loader<'a, D> {
    /// `stream` is for copies.
    pub(crate) fn new(
        (device, stream): (&'a D, Stream),
        graph: &'a Graph,
        plan: &'a MemoryPlan,
        source: &'a dyn WeightSource,
        store: &'a mut TextStore,
        progress: &'a mut dyn FnMut(u64) -> ControlFlow<()>,
        held: &'a mut Allocations,
    ) -> Self {
        let (placement, check) = (&plan.placement, plan.segments.check > 0);
        let meter = Meter { loaded: 0, progress };
        Loader { device, graph, placement, source, store, check, to_come: 0, meter, stream, held }
    }

    /// Loads gathered tables that belong to no tile into host memory.
    pub(crate) fn tables(&mut self) -> Result<Vec<Span>> {
        self.placement.host_tables.iter().map(|&table| self.table(table)).collect()
    }

    fn table(&mut self, value: ValueId) -> Result<Span> {
        let Loader { device, graph, source, meter, held, .. } = self;
        let (rows, bytes) = (graph.value(value).matrix()[0], graph.value(value).text_bytes());
        let table = held.alloc(*device, Space::Host, bytes)?.span();
        device.write_host(table, |bytes| {
            let mut pieces = Vec::new();
            split(&mut pieces, graph, value, 0..rows, bytes);
            read_all(graph, *source, pieces, meter)
        })?;
        meter.add(table.len())?;
        Ok(table)
    }

    /// Loads every chunk to its place, in order. Resident ones pass through two staging buffers in turn, so that
    /// reading overlaps copying.
    pub(crate) fn chunks(&mut self) -> Result<Vec<Home>> {
        let Placement { chunks, slots, same_as, .. } = self.placement;
        let resident = chunks.iter().zip(slots).filter(|(_, slot)| slot.is_none());
        let mut staging = Vec::new();
        if let Some(largest) = resident.map(|(chunk, _)| chunk.bytes).max() {
            for _ in 0..2 {
                staging.push((
                    self.held.alloc(self.device, Space::Host, largest)?,
                    self.held.event(self.device)?,
                ));
            }
        }
        let streamed = (0..chunks.len()).filter(|&at| slots[at].is_some() && same_as[at].is_none());
        self.to_come = streamed.map(|at| chunks[at].bytes).sum();
        let mut homes: Vec<Home> = Vec::with_capacity(chunks.len());
        for (index, slot) in slots.iter().enumerate() {
            let chunk = ChunkId(index as u32);
            let home = match (same_as[index], slot) {
                (Some(same), _) => self.copy_of(&homes[same.0 as usize])?,
                (None, Some(_)) => self.streamed(chunk)?,
                (None, None) => {
                    staging.rotate_left(1);
                    self.resident(chunk, staging[0])?
                }
            };
            homes.push(home);
        }
        self.device.sync(self.stream)?;
        for (buffer, free) in staging {
            self.held.free_buffer(self.device, buffer);
            self.held.free_event(self.device, free);
        }
        Ok(homes)
    }

    /// The memory of a chunk with the same weights as `same`: the same on the host, a copy on the device.
    fn copy_of(&mut self, same: &Home) -> Result<Home> {
        let space = same.span.buffer().space();
        if let (Space::Host, Some(hash)) = (space, same.hash)
            && self.share(Space::Host, &hash)?.is_some()
        {
            return Ok(same.clone());
        }
        self.meter.add(same.span.len())?;
        let copy = self.held.alloc(self.device, space, same.span.len())?;
        self.device.copy(self.stream, same.span, copy.span())?;
        Ok(Home { span: copy.span(), hash: None, ..same.clone() })
    }

    fn resident(&mut self, id: ChunkId, (staging, free): (Buffer, Event)) -> Result<Home> {
        let bytes = self.placement.chunks[id.0 as usize].bytes;
        let own = self.store.room_for_copy(self.device, bytes, self.to_come);
        if own.is_none() {
            self.device.sync_event(free)?;
        }
        let staged = own.map_or_else(|| staging.slice(0, bytes), Buffer::span);
        let read = self.read(id, staged);
        let copy = match (&read, own) {
            (Ok((hash, _)), own) if self.store.keeps_copies() => self.copy(hash, own)?,
            (_, own) => {
                own.iter().for_each(|&buffer| self.device.free(buffer));
                None
            }
        };
        let (hash, checksums) = read?;
        let (span, is_empty) = match self.share(Space::Device, &hash)? {
            Some(shared) => shared,
            None => {
                let buffer = self.device.alloc(Space::Device, bytes)?;
                self.keep(hash, buffer);
                (buffer.span(), true)
            }
        };
        if is_empty {
            self.device.copy(self.stream, copy.unwrap_or(staged), span)?;
            if copy.is_none() {
                self.device.record(self.stream, free)?;
            }
        }
        Ok(Home { span, checksums, hash: Some(hash) })
    }

    /// The store's host copy of these bytes: an existing one, or `own`, which is freed if it is not needed.
    fn copy(&mut self, hash: &Hash, own: Option<Buffer>) -> Result<Option<Span>> {
        let known = self.store.share(self.device, Space::Host, hash)?.map(|(buffer, _)| buffer);
        match (known, own) {
            (None, None) => return Ok(None),
            (None, Some(own)) => self.store.insert(*hash, own),
            (Some(_), own) => own.iter().for_each(|&buffer| self.device.free(buffer)),
        }
        self.held.share_copy(*hash);
        Ok(known.or(own).map(Buffer::span))
    }

    /// Fills resident chunks again, after the device's memory was used by others: the `empty` ones, from their host
    /// copies or else from the source.
    pub(crate) fn refill(&mut self, homes: &[Home], mut empty: HashSet<Hash>) -> Result<()> {
        let mut staging: Option<Buffer> = None;
        let mut fill = |loader: &mut Self, index: usize| -> Result<()> {
            let (id, home) = (ChunkId(index as u32), &homes[index]);
            let from = match home.hash {
                _ if home.span.buffer().space() == Space::Host => return Ok(()),
                Some(hash) if !empty.remove(&hash) => return Ok(()),
                Some(hash) => loader.store.find(Space::Host, &hash).map(Buffer::span),
                None => loader.placement.same_as[index].map(|same| homes[same.0 as usize].span),
            };
            if let Some(from) = from {
                loader.device.copy(loader.stream, from, home.span)?;
                return loader.meter.add(home.span.len());
            }
            let largest = || loader.placement.chunks.iter().map(|chunk| chunk.bytes).max().unwrap_or(0);
            let buffer = match staging {
                Some(buffer) => buffer,
                None => *staging.insert(loader.held.alloc(loader.device, Space::Host, largest())?),
            };
            // The previous copy from this buffer.
            loader.device.sync(loader.stream)?;
            let staged = buffer.slice(0, home.span.len());
            let (hash, _) = loader.read(id, staged)?;
            if home.hash != Some(hash) {
                return Err(Error::SourceChanged { chunk: id.0 });
            }
            Ok(loader.device.copy(loader.stream, staged, home.span)?)
        };
        let filled = (0..homes.len()).try_for_each(|index| fill(self, index));
        let synced = self.device.sync(self.stream);
        if let Some(buffer) = staging {
            self.held.free_buffer(self.device, buffer);
        }
        filled.and(Ok(synced?))
    }

    fn streamed(&mut self, id: ChunkId) -> Result<Home> {
        let bytes = self.placement.chunks[id.0 as usize].bytes;
        let buffer = self.device.alloc(Space::Host, bytes)?;
        self.to_come -= bytes;
        let read = self.read(id, buffer.span());
        let shared = match &read {
            Ok((hash, _)) => self.share(Space::Host, hash)?.map(|(span, _)| span),
            Err(_) => None,
        };
        if read.is_err() || shared.is_some() {
            self.device.free(buffer);
        }
        let (hash, checksums) = read?;
        if shared.is_none() {
            self.keep(hash, buffer);
        }
        Ok(Home { span: shared.unwrap_or(buffer.span()), checksums, hash: Some(hash) })
    }

    /// The store's memory for this content, if it has some, and whether that must be filled.
    fn share(&mut self, space: Space, hash: &Hash) -> Result<Option<(Span, bool)>> {
        let shared = self.store.share(self.device, space, hash)?;
        if shared.is_some() {
            self.held.share(space, *hash);
        }
        Ok(shared.map(|(buffer, is_empty)| (buffer.span(), is_empty)))
    }

    /// Adds new bytes to the store.
    fn keep(&mut self, hash: Hash, buffer: Buffer) {
        self.store.insert(hash, buffer);
        self.held.share(buffer.space(), hash);
    }

    /// Reads a chunk. Returns its hash, and the checksums of its sections in check mode.
    fn read(&mut self, id: ChunkId, span: Span) -> Result<(Hash, Vec<u64>)> {
        let Loader { device, graph, placement, source, check, meter, .. } = self;
        let chunk = &placement.chunks[id.0 as usize];
        let tiles = &placement.tiles[chunk.tiles.clone()];
        let read = device.write_host(span, |bytes| {
            read_all(graph, *source, pieces(graph, tiles, bytes), meter)?;
            let checked = if *check { &chunk.sections[..] } else { &[] };
            let sum = |section: &Section| {
                djinn_device::checksum(&bytes[section.offset as usize..][..section.bytes as usize])
            };
            Ok((*blake3::hash(bytes).as_bytes(), checked.iter().map(sum).collect()))
        });
        read.and_then(|read| meter.add(chunk.bytes).map(|()| read))
    }
}

/// The runs of rows that make up a chunk. Padding is zeroed.
fn pieces<'a>(graph: &Graph, tiles: &[PlacedTile], mut bytes: &'a mut [u8]) -> Vec<Piece<'a>> {
    let (mut pieces, mut at) = (Vec::new(), 0);
    for placed in tiles {
        for (part, &offset) in placed.tile.parts.iter().zip(&placed.offsets) {
            let (padding, rest) = bytes.split_at_mut((offset - at) as usize);
            padding.fill(0);
            let (out, rest) = rest.split_at_mut(part.bytes as usize);
            split(&mut pieces, graph, part.value, placed.tile.rows.clone(), out);
            bytes = rest;
            at = offset + part.bytes;
        }
    }
    bytes.fill(0);
    pieces
}

fn split<'a>(
    pieces: &mut Vec<Piece<'a>>,
    graph: &Graph,
    value: ValueId,
    rows: Range<u64>,
    mut out: &'a mut [u8],
) {
    let bytes = |rows: Range<u64>| graph.value(value).stored_bytes(rows);
    let mut start = rows.start;
    while start < rows.end {
        let step = (PIECE / bytes(start..start + 1)).max(1);
        let end = rows.end.min(start + step);
        let (piece, rest) = out.split_at_mut(bytes(start..end) as usize);
        pieces.push(Piece { value, rows: start..end, out: piece });
        (start, out) = (end, rest);
    }
}

/// Reads pieces on as many threads as the machine has cores. The calling thread is one of them and reports the
/// progress. The first error stops all.
fn read_all(
    graph: &Graph,
    source: &dyn WeightSource,
    pieces: Vec<Piece<'_>>,
    meter: &mut Meter<'_>,
) -> Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(pieces.len());
    // The remaining pieces, and the bytes read.
    let queue = Mutex::new((pieces.into_iter(), 0));
    let lock = || queue.lock().expect("readers do not panic");
    let work = |tell: &mut dyn FnMut(u64) -> Result<()>| -> Result<()> {
        loop {
            let Some(Piece { value, rows, out }) = lock().0.next() else { return Ok(()) };
            let done = source.read_rows(&graph.value(value).name, rows, out).map_err(Error::from);
            let read = {
                let mut queue = lock();
                queue.1 += out.len() as u64;
                queue.1
            };
            if let Err(error) = done.and_then(|()| tell(read)) {
                lock().0 = Vec::new().into_iter();
                return Err(error);
            }
        }
    };
    std::thread::scope(|scope| {
        // Where the system refuses a thread, those that there are read its part.
        let spawn = |_| Builder::new().spawn_scoped(scope, || work(&mut |_| Ok(()))).ok();
        let others: Vec<_> = (1..threads).filter_map(spawn).collect();
        let own = work(&mut |read| meter.tell(read));
        let mut others = others.into_iter().map(|reader| reader.join().expect("sources do not panic"));
        others.try_for_each(|read| read).and(own)
    })
}
