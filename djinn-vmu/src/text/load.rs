//! Reads weights from their source into host memory and, for resident chunks, on to the device.

use crate::text::PlacedTile;
use crate::text::segment::Home;
use crate::text::store::{Hash, TextStore};
use crate::{ChunkId, Error, Placement, Result, WeightSource};
use djinn_device::{Buffer, Device, Event, Space, Span, Stream};
use djinn_srg::{Graph, ValueId};
use std::ops::ControlFlow;
use std::sync::Mutex;

/// Rows are handed to reader threads in pieces of about this many bytes.
const PIECE: u64 = 2 << 20;

/// A run of rows of one weight and where it goes.
struct Piece<'a> {
    value: ValueId,
    rows: std::ops::Range<u64>,
    out: &'a mut [u8],
}

/// Tells how many bytes are loaded, and hears that no more are wanted.
pub(crate) struct Meter<'a> {
    loaded: u64,
    progress: &'a mut dyn FnMut(u64) -> ControlFlow<()>,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(progress: &'a mut dyn FnMut(u64) -> ControlFlow<()>) -> Self {
        Meter { loaded: 0, progress }
    }

    /// `bytes` more are loaded.
    fn add(&mut self, bytes: u64) -> Result<()> {
        self.loaded += bytes;
        self.tell(0)
    }

    /// Tells what is loaded, with `part` bytes of what is being loaded.
    fn tell(&mut self, part: u64) -> Result<()> {
        match (self.progress)(self.loaded + part) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Cancelled),
        }
    }
}

/// Loads chunks one after the other; resident ones pass through two staging buffers, so that reading
/// overlaps copying.
pub(crate) struct Loader<'a, D: Device> {
    pub(crate) device: &'a D,
    pub(crate) graph: &'a Graph,
    pub(crate) placement: &'a Placement,
    pub(crate) source: &'a dyn WeightSource,
    stream: Stream,
    /// Whether checksums are wanted.
    check: bool,
    staging: Vec<(Buffer, Event)>,
    turn: usize,
    meter: Meter<'a>,
}

impl<'a, D: Device> Loader<'a, D> {
    pub(crate) fn new(
        device: &'a D,
        graph: &'a Graph,
        placement: &'a Placement,
        source: &'a dyn WeightSource,
        stream: Stream,
        check: bool,
        meter: Meter<'a>,
    ) -> Result<Self> {
        let staging = Vec::new();
        let mut loader = Loader { device, graph, placement, source, stream, check, staging, turn: 0, meter };
        let resident = placement.chunks.iter().zip(&placement.slots).filter(|(_, slot)| slot.is_none());
        if let Some(len) = resident.map(|(c, _)| c.bytes).max() {
            for _ in 0..2 {
                match device.alloc(Space::Host, len) {
                    Ok(buffer) => loader.staging.push((buffer, device.event()?)),
                    Err(error) => {
                        loader.finish()?;
                        return Err(error.into());
                    }
                }
            }
        }
        Ok(loader)
    }

    /// Loads one chunk to where the placement wants it. Returns its home and, if wanted, its checksum.
    pub(crate) fn chunk(&mut self, store: &mut TextStore, id: ChunkId) -> Result<(Home, u64)> {
        match self.placement.slots[id.0 as usize] {
            None => self.resident(store, id),
            Some(_) => self.streamed(store, id),
        }
    }

    /// One more home for the weights of a chunk that is at `twin`: the same bytes on the host, a copy on the device.
    pub(crate) fn again(&mut self, store: &mut TextStore, twin: &Home) -> Result<Home> {
        let shared = twin.hash.filter(|_| twin.buffer.space() == Space::Host);
        if let Some(buffer) = shared.and_then(|hash| store.share(Space::Host, &hash)) {
            return Ok(Home { buffer, ..*twin });
        }
        self.meter.add(twin.buffer.len())?;
        let buffer = self.device.alloc(twin.buffer.space(), twin.buffer.len())?;
        let home = Home { buffer, hash: None };
        match self.device.copy(self.stream, twin.buffer.span(), buffer.span()) {
            Ok(()) => Ok(home),
            Err(error) => {
                self.device.free(buffer);
                Err(error.into())
            }
        }
    }

    fn resident(&mut self, store: &mut TextStore, id: ChunkId) -> Result<(Home, u64)> {
        let (staging, free) = self.staging[self.turn % 2];
        self.turn += 1;
        self.device.sync_event(free)?;
        let len = self.placement.chunks[id.0 as usize].bytes;
        let (hash, sum) = self.read(id, staging.slice(0, len))?;
        if let Some(buffer) = store.share(Space::Device, &hash) {
            return Ok((Home { buffer, hash: Some(hash) }, sum));
        }
        let buffer = self.device.alloc(Space::Device, len)?;
        store.insert(hash, buffer);
        self.device.copy(self.stream, staging.slice(0, len), buffer.span())?;
        self.device.record(self.stream, free)?;
        Ok((Home { buffer, hash: Some(hash) }, sum))
    }

    fn streamed(&mut self, store: &mut TextStore, id: ChunkId) -> Result<(Home, u64)> {
        let buffer = self.device.alloc(Space::Host, self.placement.chunks[id.0 as usize].bytes)?;
        let read = self.read(id, buffer.span());
        let shared = read.as_ref().ok().and_then(|(hash, _)| store.share(Space::Host, hash));
        if read.is_err() || shared.is_some() {
            self.device.free(buffer);
        }
        let (hash, sum) = read?;
        if shared.is_none() {
            store.insert(hash, buffer);
        }
        Ok((Home { buffer: shared.unwrap_or(buffer), hash: Some(hash) }, sum))
    }

    fn read(&mut self, id: ChunkId, span: Span) -> Result<(Hash, u64)> {
        let Loader { device, graph, placement, source, check, meter, .. } = self;
        let chunk = &placement.chunks[id.0 as usize];
        let tiles = &placement.tiles[chunk.tiles.clone()];
        let read = device.write_host(span, |bytes| {
            read_all(graph, *source, pieces(graph, tiles, bytes), meter)?;
            let sum = if *check { djinn_device::checksum(bytes) } else { 0 };
            Ok((*blake3::hash(bytes).as_bytes(), sum))
        });
        read.and_then(|read| meter.add(chunk.bytes).map(|()| read))
    }

    /// Loads a gathered table whole into host memory.
    pub(crate) fn table(&mut self, value: ValueId) -> Result<Buffer> {
        let Loader { device, graph, source, meter, .. } = self;
        let [rows, columns] = graph.value(value).matrix();
        let row_bytes = columns * graph.value(value).dtype.bytes();
        let buffer = device.alloc(Space::Host, rows * row_bytes)?;
        let read = device.write_host(buffer.span(), |bytes| {
            let mut pieces = Vec::new();
            split(&mut pieces, value, 0..rows, row_bytes, bytes);
            read_all(graph, *source, pieces, meter)
        });
        match read.and_then(|()| meter.add(buffer.len())) {
            Ok(()) => Ok(buffer),
            Err(error) => {
                device.free(buffer);
                Err(error)
            }
        }
    }

    /// Waits for the copies and frees the staging buffers.
    pub(crate) fn finish(self) -> Result<()> {
        let synced = self.device.sync(self.stream);
        for (buffer, _) in self.staging {
            self.device.free(buffer);
        }
        Ok(synced?)
    }
}

/// The runs of rows that make up a chunk's bytes; padding is zeroed.
fn pieces<'a>(graph: &Graph, tiles: &[PlacedTile], mut bytes: &'a mut [u8]) -> Vec<Piece<'a>> {
    let (mut pieces, mut at) = (Vec::new(), 0);
    for placed in tiles {
        for (part, &offset) in placed.tile.parts.iter().zip(&placed.offsets) {
            let (padding, rest) = bytes.split_at_mut((offset - at) as usize);
            padding.fill(0);
            let (out, rest) = rest.split_at_mut(part.bytes as usize);
            let value = graph.value(part.value);
            let row_bytes = value.matrix()[1] * value.dtype.bytes();
            split(&mut pieces, part.value, placed.tile.rows.clone(), row_bytes, out);
            bytes = rest;
            at = offset + part.bytes;
        }
    }
    bytes.fill(0);
    pieces
}

fn split<'a>(
    pieces: &mut Vec<Piece<'a>>,
    value: ValueId,
    rows: std::ops::Range<u64>,
    row_bytes: u64,
    out: &'a mut [u8],
) {
    let step = (PIECE / row_bytes).max(1);
    for (start, out) in rows.clone().step_by(step as usize).zip(out.chunks_mut((step * row_bytes) as usize)) {
        pieces.push(Piece { value, rows: start..rows.end.min(start + step), out });
    }
}

/// Reads pieces on as many threads as the machine has cores, this one included: it tells the progress. The first error
/// ends the work of all.
fn read_all(
    graph: &Graph,
    source: &dyn WeightSource,
    pieces: Vec<Piece<'_>>,
    meter: &mut Meter<'_>,
) -> Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(pieces.len());
    // What is to be read, and the bytes that were.
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
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(|| work(&mut |_| Ok(())))).collect();
        let own = work(&mut |read| meter.tell(read));
        let mut others = others.into_iter().map(|reader| reader.join().expect("sources do not panic"));
        others.try_for_each(|read| read).and(own)
    })
}
