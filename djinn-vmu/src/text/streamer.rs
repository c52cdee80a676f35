//! Streams chunks through the ring: one copy stream beside the compute stream, ordered only by events.
//!
//! Two ablations measure what the mechanism is worth: copies that begin only when they are needed
//! (`Budget::blocking_copies`), and chunks that straddle the ring's wrap (`Budget::straddle`).

mod choices;

use crate::text::mirror::Mirror;
use crate::text::slot::{Mode, Slot};
use crate::{ChunkTimes, Error, PassStats, Result, STALL};
use choices::Choices;
use djinn_device::args::Checksum;
use djinn_device::{Device, Event, Ops, Span, Stream};
use djinn_ringbuf::{Blocker, BlockerPass};
use djinn_srg::NodeId;
use std::time::Duration;

/// Device bytes of each chunk for `--stream-check`: a checksum, aligned.
pub(crate) const CHECK_BYTES: u64 = 16;

/// Device bytes of each streamed chunk where a pass may skip some: whether it was moved.
pub(crate) const FLAG_BYTES: u64 = 4;

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

/// Copies are counted over all passes: copy `n` fills slot `n % slots` in pass `n / slots`. Copies are
/// enqueued in order, each once the last use of its blocker is *recorded*; the device then makes it wait
/// until that use is *done*. So the host never blocks, and no wait ever refers to a use not yet recorded.
///
/// A chunk with a condition is copied by an operation that the device carries out or skips. It is enqueued once its
/// router's choice is, in the pass that uses it: prefetch stops before it until then.
#[derive(Debug)]
pub(crate) struct Streamer {
    stream: Stream,
    slots: Vec<Slot>,
    marks: [Vec<Marks>; 2],
    done: Vec<Event>,
    /// Checksums of the pass.
    check: Option<Mirror>,
    choices: Choices,
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
        let (check, choices, blocking) = (None, Choices::default(), false);
        Streamer {
            stream,
            slots,
            marks,
            done,
            check,
            choices,
            blocking,
            copied,
            acquired,
            released,
            waited,
            passes,
        }
    }

    pub(crate) fn stream(&self) -> Stream {
        self.stream
    }

    /// Takes the slots of a pass and begins to prefetch.
    pub(crate) fn start<D: Ops>(&mut self, device: &D, slots: Vec<Slot>, mode: Mode) -> Result<()> {
        let bytes = CHECK_BYTES * slots.len() as u64;
        self.blocking = mode.blocking;
        if mode.check {
            self.check = Some(Mirror::new(device, bytes)?);
        }
        self.choices = Choices::new(device, &slots)?;
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
        // The bounce buffer's last user was enqueued on the compute stream before. A chunk that the pass skipped is
        // joined as well, and nobody reads it.
        for (_, ring, joined) in self.slots[slot].parts() {
            if let Some(joined) = joined {
                device.copy(compute, ring, joined)?;
            }
        }
        if slot + 1 == self.slots.len() {
            self.choices.read_back(device, compute)?;
        }
        let chunk = self.slots[slot].contiguous();
        if let Some(check) = &self.check {
            let args = Checksum { src: chunk, out: check.device.slice(CHECK_BYTES * slot as u64, 8) };
            args.check();
            device.checksum(compute, &args)?;
            if slot + 1 == self.slots.len() {
                check.enqueue(device, compute)?;
            }
        }
        Ok(chunk)
    }

    pub(crate) fn release<D: Ops>(&mut self, device: &D, compute: Stream, slot: usize) -> Result<()> {
        self.expect_next(slot, self.released);
        assert!(self.released < self.acquired, "slot {slot} is released but not acquired");
        device.record(compute, self.done[slot])?;
        self.released += 1;
        if self.check.is_some() {
            // Whoever still reads the slot from now on reads NaN, also if the pass skipped its copy.
            device.wait(self.stream, self.done[slot])?;
            self.waited = self.released;
            for (_, ring, _) in self.slots[slot].parts() {
                device.fill(self.stream, ring, 0xFF)?;
            }
        }
        self.prefetch(device)
    }

    /// The choice of `group` is enqueued on `compute`, and with it where each expert's slots begin.
    pub(crate) fn routed<D: Ops>(
        &mut self,
        device: &D,
        compute: Stream,
        group: NodeId,
        starts: Span,
    ) -> Result<()> {
        self.choices.announce(device, compute, group, starts, self.released, self.blocking)?;
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
        self.choices.forget();
    }

    pub(crate) fn end_pass<D: Device>(&mut self, device: &D) -> Result<PassStats> {
        let slots = self.slots.len() as u64;
        let pass = self.passes;
        self.passes += 1;
        assert!(self.released == slots * self.passes, "pass {pass} ended after {} uses", self.released);
        self.choices.end_pass(device, &self.slots);
        if let Some(check) = &self.check {
            check.read(device, |sums| self.verify(sums, pass))?;
        }
        let mut stats = PassStats::default();
        for (_, bytes, marks, _) in self.ended() {
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

    /// The times of the pass that ended last, in order of use; none before the first ended. They are known
    /// until the next pass begins.
    pub(crate) fn times<D: Device>(&self, device: &D) -> impl Iterator<Item = ChunkTimes> {
        self.ended().map(|(slot, bytes, marks, done)| {
            // A pass that ended has passed its events.
            let at = |event| device.timestamp(event).unwrap_or_default();
            let [begin, ready, need, go] = [marks.begin, marks.ready, marks.need, marks.go].map(at);
            let (chunk, done) = (slot.chunk, at(done));
            ChunkTimes { chunk, bytes, begin, ready, need, go, done }
        })
    }

    /// The slots of the pass that ended last, with the bytes that were moved and their events.
    fn ended(&self) -> impl Iterator<Item = (&Slot, u64, &Marks, Event)> {
        let marks = self.passes.checked_sub(1).map_or(&[][..], |pass| &self.marks[(pass % 2) as usize]);
        let slots = self.slots.iter().zip(self.choices.moved()).zip(marks).zip(&self.done);
        slots.map(|(((slot, moved), marks), &done)| {
            (slot, if *moved { slot.host.len() } else { 0 }, marks, done)
        })
    }

    pub(crate) fn free<D: Device>(self, device: &D) {
        // A failure is sticky: the next sync of the device returns it.
        let _ = device.sync(self.stream);
        if let Some(check) = self.check {
            check.free(device);
        }
        self.choices.free(device);
    }

    /// Enqueues every copy whose blocker's use is recorded, up to the first whose choice is not announced yet; none
    /// where copies wait until they are needed.
    fn prefetch<D: Ops>(&mut self, device: &D) -> Result<()> {
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
            let condition = self.slots[slot].condition;
            if condition.is_some_and(|condition| pass > self.passes || !self.choices.announced(condition)) {
                return Ok(());
            }
            // Uses are done in order, so a later one that was waited for covers this one.
            let blocker = blocker.filter(|&use_| use_ >= self.waited);
            let unknown = condition.and_then(|condition| self.choices.unknown(condition, self.waited));
            match (blocker, unknown) {
                // Of the two, the later on the compute stream covers the other.
                (Some(use_), unknown) if unknown.is_none_or(|choice| use_ >= choice.released) => {
                    device.wait(self.stream, self.done[index])?;
                    self.waited = use_ + 1;
                }
                (_, Some(choice)) => {
                    device.wait(self.stream, choice.known)?;
                    self.waited = self.waited.max(choice.released);
                    condition.into_iter().for_each(|condition| self.choices.waited(condition));
                }
                (_, None) => {}
            }
            self.enqueue_copy(device)?;
        }
    }

    /// Enqueues the next copy, as one or two, once its waits are.
    fn enqueue_copy<D: Ops>(&mut self, device: &D) -> Result<()> {
        let marks = self.marks(self.copied);
        let index = (self.copied % self.slots.len() as u64) as usize;
        let slot = &self.slots[index];
        device.record(self.stream, marks.begin)?;
        for (host, ring, _) in slot.parts() {
            self.choices.copy(device, self.stream, (index, slot), [host, ring])?;
        }
        device.record(self.stream, marks.ready)?;
        self.copied += 1;
        Ok(())
    }

    fn verify(&self, sums: &[u8], pass: u64) -> Result<()> {
        let sums = sums.chunks_exact(CHECK_BYTES as usize);
        for ((slot, sum), &moved) in self.slots.iter().zip(sums).zip(self.choices.moved()) {
            let found = u64::from_le_bytes(sum[..8].try_into().expect("eight bytes"));
            if moved && found != slot.checksum {
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
