//! The loaded text segment.

use crate::text::load::{Loader, Meter};
use crate::text::slot::{Mode, Slot, Wrapped};
use crate::text::store::{Hash, TextStore};
use crate::text::streamer::{Phase, Streamer};
use crate::{ChunkId, ChunkTimes, MemoryPlan, PassStats, Placement, Result, WeightSource};
use djinn_device::{Buffer, Device, Ops, Space, Span, Stream};
use djinn_srg::{Graph, NodeId, ValueId};
use std::ops::{ControlFlow, Range};

/// Where a chunk's bytes are kept: on the device if it is resident, else on the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home {
    pub(crate) buffer: Buffer,
    /// In the store; none if the buffer is the segment's own.
    pub(crate) hash: Option<Hash>,
}

/// A model's weights on one device: resident chunks, and the ring through which the others stream.
#[derive(Debug)]
pub struct TextSegment {
    placement: Placement,
    homes: Vec<Home>,
    tables: Vec<(ValueId, Buffer)>,
    ring: Option<Buffer>,
    /// Where chunks that straddle the ring's wrap are joined.
    bounce: Option<Buffer>,
    streamer: Streamer,
}

impl TextSegment {
    /// Loads the weights of `plan` from `source` and begins to prefetch. `progress` is told the bytes read
    /// so far, every few MiB, and may end the work. With `check`, every streamed chunk is verified in every pass and freed ring space is
    /// poisoned.
    ///
    /// # Errors
    /// A weight that cannot be read, a device that is out of memory, or [`Error::Cancelled`](crate::Error::Cancelled);
    /// nothing stays allocated then.
    pub fn load<D: Ops>(
        device: &D,
        graph: &Graph,
        plan: &MemoryPlan,
        source: &dyn WeightSource,
        store: &mut TextStore,
        check: bool,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Self> {
        let copy = device.stream()?;
        let placement = plan.placement.clone();
        let mut text = TextSegment {
            placement,
            homes: vec![],
            tables: vec![],
            ring: None,
            bounce: None,
            streamer: Streamer::new(copy),
        };
        match text.fill(device, graph, plan, source, store, check, progress) {
            Ok(()) => Ok(text),
            Err(error) => {
                text.free(device, store);
                Err(error)
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the arguments of `load`")]
    fn fill<D: Ops>(
        &mut self,
        device: &D,
        graph: &Graph,
        plan: &MemoryPlan,
        source: &dyn WeightSource,
        store: &mut TextStore,
        check: bool,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<()> {
        let placement = &plan.placement;
        if !placement.ring.slots().is_empty() {
            self.ring = Some(device.alloc(Space::Device, plan.segments.ring)?);
        }
        if plan.segments.bounce > 0 {
            self.bounce = Some(device.alloc(Space::Device, plan.segments.bounce)?);
        }
        let (copy, meter) = (self.streamer.stream(), Meter::new(progress));
        let mut loader = Loader::new(device, graph, placement, source, copy, check, meter)?;
        let mut sums = Vec::new();
        let loaded = (|| -> Result<()> {
            for &value in &placement.host_tables {
                self.tables.push((value, loader.table(value)?));
            }
            for index in 0..placement.chunks.len() {
                let (home, sum) = match placement.twins[index] {
                    Some(ChunkId(twin)) => {
                        let twin = twin as usize;
                        (loader.again(store, &self.homes[twin])?, sums[twin])
                    }
                    None => loader.chunk(store, ChunkId(index as u32))?,
                };
                self.homes.push(home);
                sums.push(sum);
            }
            Ok(())
        })();
        let finished = loader.finish();
        loaded?;
        finished?;
        let Some(ring) = self.ring else { return Ok(()) };
        let slot = |(index, chunk): (usize, ChunkId)| {
            let slot = placement.ring.slots()[index];
            let [before, after] = placement.ring.parts(index);
            let in_ring = |part: &Range<u64>| ring.slice(part.start, part.end - part.start);
            Slot {
                chunk,
                host: self.homes[chunk.0 as usize].buffer.span(),
                ring: in_ring(&before),
                wrapped: (!after.is_empty()).then(|| Wrapped {
                    ring: in_ring(&after),
                    joined: self.bounce.expect("planned for chunks that straddle").slice(0, slot.len),
                }),
                blocker: slot.blocker,
                checksum: sums[chunk.0 as usize],
                condition: placement.chunks[chunk.0 as usize].condition,
            }
        };
        let slots = placement.streamed().enumerate().map(slot).collect();
        self.streamer.start(device, slots, Mode { check, blocking: placement.blocking_copies })
    }

    /// Where every weight lies.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The bytes of a chunk for work enqueued on `compute` from now until [`release`](Self::release).
    /// Streamed chunks must be acquired in order of use, once in each pass, one at a time.
    pub fn acquire<D: Ops>(&mut self, device: &D, compute: Stream, chunk: ChunkId) -> Result<Span> {
        match self.placement.slots[chunk.0 as usize] {
            None => Ok(self.homes[chunk.0 as usize].buffer.span()),
            Some(slot) => self.streamer.acquire(device, compute, slot as usize),
        }
    }

    /// The router's choice of node `group` is enqueued on `compute`, with `starts`, u32 `[experts + 1]`: where each
    /// expert's slots begin, kept until the last of them is used. The copies of those experts' chunks wait for it on
    /// the device, and move only what it needs. To be called once for each such node in each pass, before any chunk
    /// of its experts is acquired.
    pub fn routed<D: Ops>(&mut self, device: &D, compute: Stream, group: NodeId, starts: Span) -> Result<()> {
        self.streamer.routed(device, compute, group, starts)
    }

    /// All work that uses the chunk is enqueued on `compute`: its bytes may be overwritten after it.
    pub fn release<D: Ops>(&mut self, device: &D, compute: Stream, chunk: ChunkId) -> Result<()> {
        match self.placement.slots[chunk.0 as usize] {
            None => Ok(()),
            Some(slot) => self.streamer.release(device, compute, slot as usize),
        }
    }

    /// A gathered table as `(first row, rows, bytes)`, in order of rows: where a tied output projection
    /// keeps it, or in host memory.
    pub fn table(&self, graph: &Graph, value: ValueId) -> Vec<(u64, u64, Span)> {
        if let Some((_, buffer)) = self.tables.iter().find(|(v, _)| *v == value) {
            return vec![(0, graph.value(value).matrix()[0], buffer.span())];
        }
        let mut runs = Vec::new();
        for placed in &self.placement.tiles {
            let at = placed.tile.parts.iter().position(|p| p.value == value);
            if let Some(at) = at {
                let home = self.homes[placed.chunk.0 as usize].buffer;
                let rows = &placed.tile.rows;
                let span = home.slice(placed.offsets[at], placed.tile.parts[at].bytes);
                runs.push((rows.start, rows.end - rows.start, span));
            }
        }
        runs
    }

    /// The stream that copies run on.
    pub fn copy_stream(&self) -> Stream {
        self.streamer.stream()
    }

    /// Where streaming stands, before or after a pass's work is enqueued: passes that begin in the same phase
    /// enqueue the same, and may be replayed.
    pub fn phase(&self) -> Phase {
        self.streamer.phase()
    }

    /// The work of a pass that began at `start` was captured but will not run.
    pub fn withdrawn(&mut self, start: Phase) {
        self.streamer.withdrawn(start);
    }

    /// A replay enqueued what a pass from the present phase to `end` would have.
    pub fn replayed(&mut self, end: Phase) {
        self.streamer.replayed(end);
    }

    /// Ends a pass whose work on `compute` is done (synced): verifies checksums and gives its statistics.
    pub fn end_pass<D: Device>(&mut self, device: &D) -> Result<PassStats> {
        self.streamer.end_pass(device)
    }

    /// When each streamed chunk of the pass that ended last was copied and first used, in order of use. Ask
    /// before the next pass begins; none before the first pass ended.
    pub fn times<D: Device>(&self, device: &D) -> impl Iterator<Item = ChunkTimes> {
        self.streamer.times(device)
    }

    /// Waits for the prefetch, frees the ring and gives the chunks back to the store. Failures of the
    /// device that surface here were or will be returned by its next sync.
    pub fn free<D: Device>(self, device: &D, store: &mut TextStore) {
        self.streamer.free(device);
        for (home, slot) in self.homes.iter().zip(&self.placement.slots) {
            let space = if slot.is_some() { Space::Host } else { Space::Device };
            match &home.hash {
                Some(hash) => store.release(device, space, hash),
                None => device.free(home.buffer),
            }
        }
        for (_, buffer) in self.tables {
            device.free(buffer);
        }
        for buffer in [self.ring, self.bounce].into_iter().flatten() {
            device.free(buffer);
        }
    }
}
