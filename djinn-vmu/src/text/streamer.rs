//! Streams chunks through the ring: one copy stream beside the compute stream, ordered only by events.
//!
//! Two ablations measure what the mechanism is worth: copies that begin only when they are needed
//! (`Budget::blocking_copies`), and chunks that straddle the ring's wrap (`Budget::straddle`).

use crate::{ChunkId, Error, Result};
use djinn_device::args::Checksum;
use djinn_device::{Buffer, Device, Event, Ops, Space, Span, Stream};
use djinn_ringbuf::{Blocker, BlockerPass};
use std::time::Duration;

/// Device bytes of each chunk for `--stream-check`: a checksum, aligned.
pub(crate) const CHECK_BYTES: u64 = 16;

/// A wait for a copy counts as a stall if it is longer: less is the cost of an event.
pub const STALL: Duration = Duration::from_micros(10);

/// One streamed chunk's place in the ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) chunk: ChunkId,
    pub(crate) host: Span,
    pub(crate) ring: Span,
    /// Where the chunk goes on if it straddles the wrap, and where it is joined before its use.
    pub(crate) wrapped: Option<Wrapped>,
    pub(crate) blocker: Blocker,
    pub(crate) checksum: u64,
}

/// The second part of a chunk that straddles the wrap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wrapped {
    /// In the ring, from offset 0.
    pub(crate) ring: Span,
    /// The whole chunk, contiguous, in the bounce buffer that all such chunks share.
    pub(crate) joined: Span,
}

impl Slot {
    /// Each part in host memory, in the ring, and where it is joined if there are two.
    fn parts(&self) -> impl Iterator<Item = (Span, Span, Option<Span>)> {
        let (host, before) = (self.host, self.ring.len());
        let joined = self.wrapped.map(|w| w.joined);
        let part = move |at, ring: Span| {
            (host.slice(at, ring.len()), ring, joined.map(|joined| joined.slice(at, ring.len())))
        };
        let second = self.wrapped.map(|w| part(before, w.ring));
        [part(0, self.ring)].into_iter().chain(second)
    }

    /// Where operations read the chunk.
    fn contiguous(&self) -> Span {
        self.wrapped.map_or(self.ring, |w| w.joined)
    }
}

/// How a pass's chunks are moved.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mode {
    /// Verify every chunk and poison freed ring space.
    pub(crate) check: bool,
    /// Begin a copy only when it is needed.
    pub(crate) blocking: bool,
}

/// When one streamed chunk was copied and first used in a pass, by the device's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkTimes {
    /// The chunk.
    pub chunk: ChunkId,
    /// Bytes copied.
    pub bytes: u64,
    /// The copy began.
    pub begin: Duration,
    /// The copy was done.
    pub ready: Duration,
    /// The first operation could run but for the copy.
    pub need: Duration,
    /// The first operation (or the joining of a chunk in two parts) could run.
    pub go: Duration,
    /// The last operation that uses it was done.
    pub done: Duration,
}

/// What streaming did in one pass, by the device's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PassStats {
    /// Bytes copied to the ring for this pass.
    pub streamed_bytes: u64,
    /// Time in which those copies ran.
    pub copy: Duration,
    /// Time in which operations waited for a copy.
    pub stall: Duration,
    /// How often they waited for more than 10 µs.
    pub stalls: u32,
}

impl PassStats {
    /// Share of the copy time that computation, sampling or prefetch hid: 1 if nothing ever waited.
    pub fn hidden(&self) -> f64 {
        if self.copy.is_zero() {
            return 1.0;
        }
        (1.0 - self.stall.as_secs_f64() / self.copy.as_secs_f64()).max(0.0)
    }

    /// Adds another pass.
    pub fn add(&mut self, other: &PassStats) {
        self.streamed_bytes += other.streamed_bytes;
        self.copy += other.copy;
        self.stall += other.stall;
        self.stalls += other.stalls;
    }
}

/// Where streaming stands between two passes: passes that begin alike enqueue alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Copies enqueued for uses to come.
    ahead: u64,
    /// Past uses that the copy stream has not waited for.
    unwaited: u64,
    /// Which of the two sets of events is next.
    odd: bool,
}

/// Events of one slot in passes of one parity: prefetch runs into the next pass while the statistics of
/// this one are still wanted.
#[derive(Clone, Copy, Debug)]
struct Marks {
    /// The copy begins.
    begin: Event,
    /// The copy is done.
    ready: Event,
    /// The first operation could run but for the copy.
    need: Event,
    /// The first operation runs.
    go: Event,
}

/// Checksums of the pass, on the device and read back.
#[derive(Debug)]
struct Check {
    device: Buffer,
    host: Buffer,
}

/// Copies are counted over all passes: copy `n` fills slot `n % slots` in pass `n / slots`. Copies are
/// enqueued in order, each once the last use of its blocker is *recorded*; the device then makes it wait
/// until that use is *done*. So the host never blocks, and no wait ever refers to a use not yet recorded.
#[derive(Debug)]
pub(crate) struct Streamer {
    stream: Stream,
    slots: Vec<Slot>,
    marks: [Vec<Marks>; 2],
    done: Vec<Event>,
    check: Option<Check>,
    blocking: bool,
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
}

impl Streamer {
    /// A streamer without slots, on its own copy stream.
    pub(crate) fn new(stream: Stream) -> Self {
        let marks = [Vec::new(), Vec::new()];
        let (slots, done) = (Vec::new(), Vec::new());
        let (copied, acquired, released, waited, passes) = (0, 0, 0, 0, 0);
        let (check, blocking) = (None, false);
        Streamer { stream, slots, marks, done, check, blocking, copied, acquired, released, waited, passes }
    }

    pub(crate) fn stream(&self) -> Stream {
        self.stream
    }

    /// Takes the slots of a pass and begins to prefetch.
    pub(crate) fn start<D: Device>(&mut self, device: &D, slots: Vec<Slot>, mode: Mode) -> Result<()> {
        let bytes = CHECK_BYTES * slots.len() as u64;
        self.blocking = mode.blocking;
        if mode.check {
            let buffer = device.alloc(Space::Device, bytes)?;
            match device.alloc(Space::Host, bytes) {
                Ok(host) => self.check = Some(Check { device: buffer, host }),
                Err(error) => {
                    device.free(buffer);
                    return Err(error.into());
                }
            }
        }
        for marks in &mut self.marks {
            for _ in &slots {
                let [begin, ready, need, go] =
                    [device.event()?, device.event()?, device.event()?, device.event()?];
                marks.push(Marks { begin, ready, need, go });
            }
        }
        for _ in &slots {
            self.done.push(device.event()?);
        }
        self.slots = slots;
        self.prefetch(device)
    }

    pub(crate) fn acquire<D: Ops>(&mut self, device: &D, compute: Stream, slot: usize) -> Result<Span> {
        self.expect_next(slot, self.acquired);
        assert!(self.acquired == self.released, "slot {slot} is acquired while another is held");
        let marks = self.marks(self.acquired);
        device.record(compute, marks.need)?;
        if self.blocking {
            // All earlier uses come before the need, the blocker's among them.
            device.wait(self.stream, marks.need)?;
            self.waited = self.released;
            self.enqueue_copy(device)?;
        }
        assert!(self.acquired < self.copied, "slot {slot} is acquired before its copy is enqueued");
        device.wait(compute, marks.ready)?;
        device.record(compute, marks.go)?;
        self.acquired += 1;
        // The bounce buffer's last user was enqueued on the compute stream before.
        for (_, ring, joined) in self.slots[slot].parts() {
            if let Some(joined) = joined {
                device.copy(compute, ring, joined)?;
            }
        }
        let chunk = self.slots[slot].contiguous();
        if let Some(check) = &self.check {
            let args = Checksum { src: chunk, out: check.device.slice(CHECK_BYTES * slot as u64, 8) };
            args.check();
            device.checksum(compute, &args)?;
            if slot + 1 == self.slots.len() {
                device.copy(compute, check.device.span(), check.host.span())?;
            }
        }
        Ok(chunk)
    }

    pub(crate) fn release<D: Device>(&mut self, device: &D, compute: Stream, slot: usize) -> Result<()> {
        self.expect_next(slot, self.released);
        assert!(self.released < self.acquired, "slot {slot} is released but not acquired");
        device.record(compute, self.done[slot])?;
        self.released += 1;
        if self.check.is_some() {
            // Whoever still reads the slot from now on reads NaN.
            device.wait(self.stream, self.done[slot])?;
            self.waited = self.released;
            for (_, ring, _) in self.slots[slot].parts() {
                device.fill(self.stream, ring, 0xFF)?;
            }
        }
        self.prefetch(device)
    }

    /// Where streaming stands, before or after a pass's work is enqueued.
    pub(crate) fn phase(&self) -> Phase {
        Phase {
            ahead: self.copied - self.acquired,
            unwaited: self.released - self.waited,
            odd: !self.slots.is_empty() && self.passes % 2 == 1,
        }
    }

    /// A replay enqueued what a pass would have that left streaming at `end`.
    pub(crate) fn replayed(&mut self, end: Phase) {
        let slots = self.slots.len() as u64;
        self.acquired += slots;
        self.released += slots;
        self.copied = self.acquired + end.ahead;
        self.waited = self.released - end.unwaited;
    }

    /// A pass from `start` was told to the streamer but never enqueued.
    pub(crate) fn withdrawn(&mut self, start: Phase) {
        let slots = self.slots.len() as u64;
        self.acquired -= slots;
        self.released -= slots;
        self.copied = self.acquired + start.ahead;
        self.waited = self.released - start.unwaited;
    }

    pub(crate) fn end_pass<D: Device>(&mut self, device: &D) -> Result<PassStats> {
        let slots = self.slots.len() as u64;
        let pass = self.passes;
        self.passes += 1;
        assert!(self.released == slots * self.passes, "pass {pass} ended after {} uses", self.released);
        if let Some(check) = &self.check {
            device.read_host(check.host.span(), |sums| self.verify(sums, pass))?;
        }
        let mut stats = PassStats::default();
        for (slot, marks, _) in self.ended() {
            let between = |from, to| match (device.timestamp(from), device.timestamp(to)) {
                (Some(from), Some(to)) => to.saturating_sub(from),
                _ => Duration::ZERO,
            };
            let stall = between(marks.need, marks.go);
            stats.streamed_bytes += slot.host.len();
            stats.copy += between(marks.begin, marks.ready);
            stats.stall += stall;
            stats.stalls += (stall > STALL) as u32;
        }
        Ok(stats)
    }

    /// The times of the pass that ended last, in order of use; none before the first ended. They are known
    /// until the next pass begins.
    pub(crate) fn times<D: Device>(&self, device: &D) -> impl Iterator<Item = ChunkTimes> {
        self.ended().map(|(slot, marks, done)| {
            // A pass that ended has passed its events.
            let at = |event| device.timestamp(event).unwrap_or_default();
            let [begin, ready, need, go] = [marks.begin, marks.ready, marks.need, marks.go].map(at);
            let (chunk, bytes, done) = (slot.chunk, slot.host.len(), at(done));
            ChunkTimes { chunk, bytes, begin, ready, need, go, done }
        })
    }

    /// The slots of the pass that ended last, with their events.
    fn ended(&self) -> impl Iterator<Item = (&Slot, &Marks, Event)> {
        let marks = self.passes.checked_sub(1).map_or(&[][..], |pass| &self.marks[(pass % 2) as usize]);
        self.slots.iter().zip(marks).zip(&self.done).map(|((slot, marks), &done)| (slot, marks, done))
    }

    pub(crate) fn free<D: Device>(self, device: &D) {
        // A failure is sticky: the next sync of the device returns it.
        let _ = device.sync(self.stream);
        if let Some(check) = self.check {
            device.free(check.device);
            device.free(check.host);
        }
    }

    /// Enqueues every copy whose blocker's use is recorded; none where copies wait until they are needed.
    fn prefetch<D: Device>(&mut self, device: &D) -> Result<()> {
        let slots = self.slots.len() as u64;
        if slots == 0 || self.blocking {
            return Ok(());
        }
        loop {
            let (pass, slot) = (self.copied / slots, (self.copied % slots) as usize);
            let Blocker { index, pass: of } = self.slots[slot].blocker;
            let blocker = match of {
                BlockerPass::Same => Some(pass * slots + index as u64),
                BlockerPass::Previous => pass.checked_sub(1).map(|pass| pass * slots + index as u64),
            };
            if blocker.is_some_and(|use_| use_ >= self.released) {
                return Ok(());
            }
            // Uses are done in order, so a later one that was waited for covers this one.
            if let Some(use_) = blocker.filter(|&use_| use_ >= self.waited) {
                device.wait(self.stream, self.done[index])?;
                self.waited = use_ + 1;
            }
            self.enqueue_copy(device)?;
        }
    }

    /// Enqueues the next copy, as one or two, once its waits are.
    fn enqueue_copy<D: Device>(&mut self, device: &D) -> Result<()> {
        let marks = self.marks(self.copied);
        let slot = &self.slots[(self.copied % self.slots.len() as u64) as usize];
        device.record(self.stream, marks.begin)?;
        for (host, ring, _) in slot.parts() {
            device.copy(self.stream, host, ring)?;
        }
        device.record(self.stream, marks.ready)?;
        self.copied += 1;
        Ok(())
    }

    fn verify(&self, sums: &[u8], pass: u64) -> Result<()> {
        for (slot, sum) in self.slots.iter().zip(sums.chunks_exact(CHECK_BYTES as usize)) {
            let found = u64::from_le_bytes(sum[..8].try_into().expect("eight bytes"));
            if found != slot.checksum {
                let (chunk, expected) = (slot.chunk.0, slot.checksum);
                return Err(Error::StreamCorrupt { chunk, pass, expected, found });
            }
        }
        Ok(())
    }

    fn marks(&self, count: u64) -> Marks {
        let slots = self.slots.len() as u64;
        self.marks[(count / slots % 2) as usize][(count % slots) as usize]
    }

    fn expect_next(&self, slot: usize, count: u64) {
        let next = count % self.slots.len() as u64;
        assert!(next == slot as u64, "slot {slot} is used out of order; the next is {next}");
    }
}
