//! Streams chunks through the ring: one copy stream beside the compute stream, ordered only by events.
//!
//! Two ablations measure what the mechanism is worth: copies that begin only when they are needed
//! (`Budget::blocking_copies`), and chunks that straddle the ring's wrap (`Budget::straddle`).

mod choices;

use crate::text::ChunkId;
use crate::text::mirror::Mirror;
use crate::text::pass::{ChunkTimes, PassStats, STALL};
use crate::text::slot::Slot;
use crate::{Allocations, Error, Placement, Result};
use choices::Choices;
pub(crate) use choices::FLAG_BYTES;
use djinn_device::args::Checksum;
use djinn_device::{Device, Event, Ops, Span, Stream};
use djinn_ringbuf::BlockerPass;
use djinn_srg::NodeId;
use std::time::Duration;

/// Device bytes of each section for the stream check: a checksum, aligned.
pub(crate) const CHECK_BYTES: u64 = 16;

/// The state of streaming between two passes. From the same state, passes enqueue the same calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPosition {
    /// Copies enqueued for future uses.
    ahead: u64,
    /// Past uses that the copy stream has not waited for.
    unwaited: u64,
    /// Which of the two sets of events is next.
    odd: bool,
}

impl StreamPosition {
    /// Streamed chunks that are in the ring or on their way, and not used yet.
    pub fn chunks_ahead(&self) -> u64 {
        self.ahead
    }
}

/// Events of one slot. There are two sets, for passes in turn: prefetch runs into the next pass while the statistics
/// of this one are still read.
#[derive(Clone, Copy, Debug)]
struct Marks {
    /// The copy begins.
    begin: Event,
    /// The copy is done.
    ready: Event,
    /// The first operation could run, but for the copy.
    need: Event,
    /// The first operation runs.
    go: Event,
}

impl Marks {
    fn new<D: Device>(device: &D, held: &mut Allocations) -> Result<Self> {
        let mut event = || held.event(device);
        Ok(Marks { begin: event()?, ready: event()?, need: event()?, go: event()? })
    }
}

/// Copies are counted over all passes: copy `n` fills slot `n % slots` in pass `n / slots`. They are enqueued in
/// order. Each is enqueued once the last use of its blocker is *recorded*; the device then waits until that use is
/// *done*. So the host never blocks, and every wait refers to a recorded event.
///
/// A chunk of experts is copied by an operation that moves only what its router chose. It is enqueued once that choice is, in
/// the pass that uses it; prefetch stops before it until then. Errors are the device's, and of copies in check mode.
#[derive(Debug)]
pub struct Streamer {
    stream: Stream,
    slots: Vec<Slot>,
    marks: [Vec<Marks>; 2],
    done: Vec<Event>,
    /// Checksums of the pass.
    check: Option<Mirror>,
    choices: Choices,
    /// By router that leaves slots to the CPU: where those of each expert that it can compute begin, u32 in host memory,
    /// and the bytes of each.
    cpu_routers: Vec<(Span, Vec<u64>)>,
    /// Copies enqueued.
    copied: u64,
    /// Slots acquired.
    acquired: u64,
    /// Slots released.
    released: u64,
    /// Uses that the copy stream has waited for.
    waited: u64,
    /// Passes ended.
    passes: u64,
    /// Whether the pass under way leaves weights to the CPU; `None` between passes.
    uses_cpu: Option<bool>,
    /// The same of the latest ended pass.
    used_cpu: bool,
}

impl Streamer {
    /// Takes the slots of a pass, and begins to prefetch on `stream`. With `check`, every chunk is verified in every
    /// pass, and freed ring space is poisoned.
    pub(crate) fn start<D: Ops>(
        device: &D,
        stream: Stream,
        slots: Vec<Slot>,
        cpu_routers: Vec<(Span, Vec<u64>)>,
        check: bool,
        held: &mut Allocations,
    ) -> Result<Self> {
        let sections: u64 = slots.iter().map(|slot| slot.sections.len() as u64).sum();
        let check = check.then(|| Mirror::new(device, held, CHECK_BYTES * sections)).transpose()?;
        let choices = Choices::new(device, held, &slots)?;
        let mut marks = || slots.iter().map(|_| Marks::new(device, held)).collect::<Result<Vec<_>>>();
        let marks = [marks()?, marks()?];
        let done = slots.iter().map(|_| held.event(device)).collect::<Result<_>>()?;
        let (copied, acquired, released, waited, passes) = (0, 0, 0, 0, 0);
        let mut streamer = Streamer {
            stream,
            slots,
            marks,
            done,
            check,
            choices,
            cpu_routers,
            copied,
            acquired,
            released,
            waited,
            passes,
            uses_cpu: None,
            used_cpu: false,
        };
        streamer.prefetch(device)?;
        Ok(streamer)
    }

    /// Copies the ring's chunks for future uses again, after its bytes were lost between two passes.
    pub(crate) fn refill<D: Ops>(&mut self, device: &D) -> Result<()> {
        let ahead = std::mem::replace(&mut self.copied, self.acquired);
        while self.copied < ahead {
            self.enqueue_copy(device)?;
        }
        Ok(())
    }

    /// The stream that copies run on.
    pub fn stream(&self) -> Stream {
        self.stream
    }

    /// Begins a pass of `rows` rows, before it is enqueued, captured or replayed: which weights it copies depends on them, and
    /// on whether the device alone computes.
    pub fn begin_pass(&mut self, rows: u64, device_alone: bool) {
        self.uses_cpu = Some(rows <= Placement::CPU_ROWS && !device_alone);
    }

    /// Whether the pass under way leaves weights to the CPU, if the plan does.
    pub(crate) fn uses_cpu(&self) -> bool {
        self.uses_cpu == Some(true)
    }

    /// Goes on with copies that had to wait for the pass to begin. Call it before the pass's first use.
    pub fn resume<D: Ops>(&mut self, device: &D) -> Result<()> {
        self.prefetch(device)
    }

    /// Lets work on `compute` between this call and [`release`](Self::release) read a streamed chunk. Chunks must be
    /// acquired in order of use, once in each pass, one at a time.
    ///
    /// # Panics
    /// If `chunk` is not the next one, if another is held, or if its router was not [announced](Self::routed).
    pub fn acquire<D: Ops>(&mut self, device: &D, compute: Stream, chunk: ChunkId) -> Result<()> {
        let slot = self.expect_next(chunk, self.acquired);
        assert!(self.acquired == self.released, "slot {slot} is acquired while another is held");
        let marks = self.marks(self.acquired);
        device.record(compute, marks.need)?;
        if self.slots[slot].copy.when_needed {
            // All earlier uses come before the need, the blocker's among them.
            device.wait(self.stream, marks.need)?;
            self.waited = self.released;
            self.enqueue_copy(device)?;
        }
        assert!(self.acquired < self.copied, "slot {slot} is acquired before its copy is enqueued");
        if !self.stays(&self.slots[slot]) {
            device.wait(compute, marks.ready)?;
        }
        device.record(compute, marks.go)?;
        self.acquired += 1;
        // The bounce buffer's last user is earlier on the compute stream.
        let Slot { copy, sections, first_section, .. } = &self.slots[slot];
        copy.join(device, compute)?;
        if slot + 1 == self.slots.len() {
            self.choices.read_back(device, compute)?;
        }
        if let Some(check) = &self.check {
            let copied = if self.stays(&self.slots[slot]) { &[][..] } else { sections };
            for (index, section) in (*first_section..).zip(copied) {
                let out = check.device.slice(CHECK_BYTES * index as u64, 8);
                let args = Checksum { src: section.span, out };
                args.check();
                device.checksum(compute, &args)?;
            }
            if slot + 1 == self.slots.len() {
                check.enqueue(device, compute)?;
            }
        }
        Ok(())
    }

    /// Ends the use of the chunk: its bytes may be overwritten after the work enqueued on `compute` so far.
    ///
    /// # Panics
    /// If `chunk` is not the one that is acquired.
    pub fn release<D: Ops>(&mut self, device: &D, compute: Stream, chunk: ChunkId) -> Result<()> {
        let slot = self.expect_next(chunk, self.released);
        assert!(self.released < self.acquired, "slot {slot} is released but not acquired");
        device.record(compute, self.done[slot])?;
        self.released += 1;
        if self.check.is_some() {
            // From now on a reader of the slot reads NaN, even if the pass skipped its copy.
            device.wait(self.stream, self.done[slot])?;
            self.waited = self.released;
            for (_, ring) in &self.slots[slot].copy.parts {
                device.fill(self.stream, *ring, 0xFF)?;
            }
        }
        self.prefetch(device)
    }

    /// Announces that the choice of router node `group` is enqueued on `compute`, with `starts`, u32 `[experts + 1]`:
    /// the first slot of each expert, kept until its last use. Copies of these experts' chunks wait for it on the
    /// device, and move only what it needs. Call it once for each router in each pass, before a chunk of its experts
    /// is acquired.
    pub fn routed<D: Ops>(&mut self, device: &D, compute: Stream, group: NodeId, starts: Span) -> Result<()> {
        let when_needed = self.slots.iter().any(|slot| slot.copy.when_needed);
        self.choices.announce(device, compute, group, starts, self.released, when_needed)?;
        self.prefetch(device)
    }

    /// The state of streaming, before or after a pass is enqueued. From the same state, passes enqueue the same calls
    /// and may be replayed.
    pub fn position(&self) -> StreamPosition {
        StreamPosition {
            ahead: self.copied - self.acquired,
            unwaited: self.released - self.waited,
            odd: !self.slots.is_empty() && self.passes % 2 == 1,
        }
    }

    /// Records that a replay enqueued a pass from the present state to `end`.
    pub fn replayed(&mut self, end: StreamPosition) {
        self.stand_at(self.passes + 1, end);
    }

    /// Records that a pass from the state `start` was captured and will not run.
    pub fn withdrawn(&mut self, start: StreamPosition) {
        self.stand_at(self.passes, start);
        self.choices.forget();
    }

    fn stand_at(&mut self, passes: u64, position: StreamPosition) {
        self.acquired = passes * self.slots.len() as u64;
        self.released = self.acquired;
        self.copied = self.acquired + position.ahead;
        self.waited = self.released - position.unwaited;
    }

    /// Ends a pass whose work on `compute` is done: verifies checksums and returns its statistics.
    /// Panics if a chunk was not released.
    pub fn end_pass<D: Device>(&mut self, device: &D) -> Result<PassStats> {
        let slots = self.slots.len() as u64;
        let pass = self.passes;
        self.passes += 1;
        self.used_cpu = self.uses_cpu.take().unwrap_or_default();
        assert!(self.released == slots * self.passes, "pass {pass} ended after {} uses", self.released);
        self.choices.end_pass(device, &self.slots);
        if let Some(check) = &self.check {
            check.read(device, |sums| self.verify(sums, pass))?;
        }
        let (cpu_bytes, cpu) = (self.cpu_bytes_of_experts(device), device.take_cpu_time());
        let mut stats = PassStats { cpu_bytes, cpu, ..PassStats::default() };
        for (slot, bytes, marks, _) in self.ended() {
            if self.stayed(slot) {
                stats.cpu_bytes += slot.copy.destination().len();
            }
            let between = |from, to| match (device.timestamp(from), device.timestamp(to)) {
                (Some(from), Some(to)) => to.saturating_sub(from),
                _ => Duration::ZERO,
            };
            let stall = between(marks.need, marks.go);
            stats.streamed_bytes += bytes;
            if bytes > 0 {
                stats.copy += between(marks.begin, marks.ready);
            }
            stats.stall += stall;
            stats.stalls += (stall > STALL) as u32;
        }
        Ok(stats)
    }

    /// Bytes of the experts that the CPU computed in the latest ended pass.
    fn cpu_bytes_of_experts<D: Device>(&self, device: &D) -> u64 {
        let routers = self.cpu_routers.iter().filter(|_| self.used_cpu);
        let bytes = routers.map(|(starts, bytes)| {
            device.read_host(*starts, |starts| {
                let starts: Vec<&[u8]> = starts.chunks_exact(4).collect();
                let used = starts.windows(2).map(|pair| pair[0] != pair[1]);
                bytes.iter().zip(used).filter(|(_, used)| *used).map(|(bytes, _)| bytes).sum::<u64>()
            })
        });
        bytes.sum()
    }

    /// When each streamed chunk of the latest ended pass was copied and used, in order of use; empty before the first.
    /// Valid until the next pass begins.
    pub fn times<D: Device>(&self, device: &D) -> impl Iterator<Item = ChunkTimes> {
        self.ended().map(|(slot, bytes, marks, done)| {
            // A pass that ended has passed its events.
            let at = |event| device.timestamp(event).unwrap_or_default();
            let [begin, ready, need, go] = [marks.begin, marks.ready, marks.need, marks.go].map(at);
            let (chunk, done) = (slot.chunk, at(done));
            ChunkTimes { chunk, bytes, begin, ready, need, go, done }
        })
    }

    /// The slots of the latest ended pass, with their copied bytes and events.
    fn ended(&self) -> impl Iterator<Item = (&Slot, u64, &Marks, Event)> {
        let marks = self.passes.checked_sub(1).map_or(&[][..], |pass| &self.marks[(pass % 2) as usize]);
        let slots = self.slots.iter().zip(marks).zip(&self.done);
        slots.map(|((slot, marks), &done)| {
            let moved = slot.sections.iter().zip(&self.choices.moved()[slot.first_section..]);
            let bytes = moved.filter(|(_, moved)| **moved).map(|(section, _)| section.span.len()).sum();
            (slot, if self.stayed(slot) { 0 } else { bytes }, marks, done)
        })
    }

    /// Whether the pass under way leaves a slot's chunk in host memory.
    fn stays(&self, slot: &Slot) -> bool {
        slot.on_cpu && self.uses_cpu == Some(true)
    }

    /// The same of the latest ended pass.
    fn stayed(&self, slot: &Slot) -> bool {
        slot.on_cpu && self.used_cpu
    }

    /// Enqueues every copy whose blocker's use is recorded, up to the first whose choice is not announced, or that depends on
    /// the rows of a pass that has not begun; none if copies wait until they are needed.
    fn prefetch<D: Ops>(&mut self, device: &D) -> Result<()> {
        let slots = self.slots.len() as u64;
        loop {
            let index = self.copied.checked_rem(slots).unwrap_or(0);
            let Some(slot) = self.slots.get(index as usize).filter(|slot| !slot.copy.when_needed) else {
                return Ok(());
            };
            let (pass, blocker, router) = (self.copied / slots, slot.blocker, slot.router());
            let of = match blocker.pass {
                BlockerPass::Same => Some(pass),
                BlockerPass::Previous => pass.checked_sub(1),
            };
            let blocking_use = of.map(|pass| pass * slots + blocker.index as u64);
            let announced = |router| pass <= self.passes && self.choices.announced(router);
            let is_known = !slot.on_cpu || pass <= self.passes && self.uses_cpu.is_some();
            if blocking_use.is_some_and(|of| of >= self.released)
                || !router.is_none_or(announced)
                || !is_known
            {
                return Ok(());
            }
            // Uses end in order: waiting for one, or for a later choice, covers the earlier ones.
            let choice = router.and_then(|router| self.choices.wait_for(router, self.waited));
            if let Some((known, released)) = choice {
                device.wait(self.stream, known)?;
                self.waited = self.waited.max(released);
            }
            if let Some(of) = blocking_use.filter(|&of| of >= self.waited) {
                device.wait(self.stream, self.done[blocker.index])?;
                self.waited = of + 1;
            }
            self.enqueue_copy(device)?;
        }
    }

    /// Enqueues the next copy behind its waits.
    fn enqueue_copy<D: Ops>(&mut self, device: &D) -> Result<()> {
        let marks = self.marks(self.copied);
        let index = (self.copied % self.slots.len() as u64) as usize;
        device.record(self.stream, marks.begin)?;
        if !self.stays(&self.slots[index]) {
            self.choices.copy(device, self.stream, &self.slots[index])?;
        }
        device.record(self.stream, marks.ready)?;
        self.copied += 1;
        Ok(())
    }

    fn verify(&self, sums: &[u8], pass: u64) -> Result<()> {
        let expected = self.slots.iter().flat_map(|slot| slot.checksums.iter().map(move |sum| (slot, *sum)));
        let sums = sums.chunks_exact(CHECK_BYTES as usize);
        for (((slot, expected), sum), &moved) in expected.zip(sums).zip(self.choices.moved()) {
            let found = u64::from_le_bytes(sum[..8].try_into().expect("eight bytes"));
            if moved && !self.stayed(slot) && found != expected {
                return Err(Error::StreamCorrupt { chunk: slot.chunk.0, pass, expected, found });
            }
        }
        Ok(())
    }

    fn marks(&self, count: u64) -> Marks {
        let slots = self.slots.len() as u64;
        self.marks[(count / slots % 2) as usize][(count % slots) as usize]
    }

    /// The slot of `chunk`, which is the next after `count` others.
    fn expect_next(&self, chunk: ChunkId, count: u64) -> usize {
        let next = count.checked_rem(self.slots.len() as u64).expect("a streamed chunk has a slot") as usize;
        let expected = self.slots[next].chunk;
        assert!(chunk == expected, "chunk {} is used out of order; the next is {}", chunk.0, expected.0);
        next
    }
}
