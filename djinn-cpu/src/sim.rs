//! The simulated device: the CPU's arithmetic in the worst order that the events allow.
//!
//! Commands are queued and run on the host's thread, when the host syncs or at seeded moments before; each
//! step takes the head of any stream that can go on, chosen by a seeded adversary. A program that is right
//! gives the same bits under every seed; one that lacks a wait gives NaN, old data or a panic under some.

mod clock;
mod faults;
mod order;
mod queue;
mod read_next;
mod rng;
mod runs;
mod tape;
#[cfg(test)]
mod tests;

use crate::CpuConfig;
use crate::device::queue_operations;
use crate::event::{Completion, Events};
use crate::kernels::{self, Kernels, Math};
use crate::memory::{self, Memory};
use clock::Clock;
use djinn_device::args::{Add, CopyExpert, ExpertLinear, Linear, RmsNorm, SiluMul};
use djinn_device::{
    Access, Buffer, Capture, Device, DeviceInfo, Encoding, Error, Event, Operation, Result, Space, Span,
    Stream, Usage,
};
pub use faults::{SimFault, SimFaults};
use order::Order;
pub use queue::SimCopy;
use queue::{Command, Machine, POISON, Streams};
use read_next::ReadNext;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;
use tape::{Call, Tape, Tapes};

/// What a [`SimDevice`] does. Planted faults count calls from 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimConfig {
    /// Chooses the order; the same seed and calls give the same order.
    pub seed: u64,
    /// Whether fresh allocations and the destinations of copies under way are filled with 0xFF: NaN as
    /// f32, f16 and bf16. (A freed buffer needs no poison: its handle panics.)
    pub poison: bool,
    /// Cap on [`Space::Device`], in bytes. `None`: no cap.
    pub vram: Option<u64>,
    /// Cap on [`Space::Host`], in bytes. `None`: no cap.
    pub ram: Option<u64>,
    /// The `alloc` that is refused.
    pub fail_alloc_at: Option<u64>,
    /// The `copy` that fails, or the `copy_expert` if it moves anything: its destination is left poisoned, work after
    /// it is skipped.
    pub fail_copy_at: Option<u64>,
    /// The `copy` that is refused at the call, with [`Error::Resource`](djinn_device::Error::Resource): nothing is enqueued,
    /// and the device stays sound.
    pub refuse_copy_at: Option<u64>,
    /// A stream, by its number, and how many of its copies are accepted before each that is refused.
    pub refuse_copies_on: Option<(u32, u64)>,
    /// The `wait` that is ignored.
    pub drop_wait_at: Option<u64>,
    /// The `capture` that is refused, after its work.
    pub fail_capture_at: Option<u64>,
    /// Speed of copies between host and device, each way, in virtual time.
    pub link_bytes_per_second: f64,
    /// Speed of everything else: bytes that it moves in virtual time.
    pub memory_bytes_per_second: f64,
    /// Virtual time that everything but a copy across the link takes on top.
    pub launch_overhead: Duration,
    /// What [`DeviceInfo`] says of batch-invariant rows and runs. The low bits of a product of more rows depend on their number,
    /// and those of attention are others in longer runs; all other results are those of the CPU device.
    pub batch_invariant_rows: u32,
    /// What [`DeviceInfo`] says of wide products: these do not depend on the number of rows.
    pub wide_products: bool,
    /// What [`DeviceInfo`] says of encodings, which must be among the CPU device's.
    pub encodings: &'static [Encoding],
    /// What [`DeviceInfo`] says of int8 keys and values.
    pub int8_cache: bool,
    /// What [`DeviceInfo`] says of the largest heads.
    pub most_head_dim: u32,
    /// What [`DeviceInfo`] says of products where weights lie.
    pub cpu_products: bool,
    /// Which arithmetic.
    pub math: Math,
}

impl Default for SimConfig {
    /// Seed 0, poison, no caps, no faults, and about the speeds of a data-centre GPU on PCIe 4.
    fn default() -> Self {
        SimConfig {
            seed: 0,
            poison: true,
            vram: None,
            ram: None,
            fail_alloc_at: None,
            fail_copy_at: None,
            refuse_copy_at: None,
            refuse_copies_on: None,
            drop_wait_at: None,
            fail_capture_at: None,
            link_bytes_per_second: 25e9,
            memory_bytes_per_second: 2e12,
            launch_overhead: Duration::from_micros(2),
            batch_invariant_rows: u32::MAX,
            wide_products: false,
            encodings: crate::ENCODINGS,
            int8_cache: true,
            most_head_dim: u32::MAX,
            cpu_products: true,
            math: Math::Reference,
        }
    }
}

/// How often the calls were made in which faults can be planted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimCalls {
    /// Calls of `alloc`.
    pub allocs: u64,
    /// Calls of `copy` and `copy_expert`.
    pub copies: u64,
    /// Copies on the stream of [`SimConfig::refuse_copies_on`].
    pub copies_on_stream: u64,
    /// Calls of `wait`.
    pub waits: u64,
    /// Calls of `capture`.
    pub captures: u64,
}

/// A device that obeys the letter of [`Device`] and nothing more.
///
/// Panics, naming buffers and streams, if the host frees a buffer that queued work uses or a capture whose replay is
/// queued, writes host bytes that it uses, or reads host bytes that it writes. Work that panics loses the device, as on
/// [`CpuDevice`](crate::CpuDevice).
pub struct SimDevice {
    config: SimConfig,
    faults: SimFaults,
    memory: Memory,
    kernels: Kernels,
    events: Events,
    streams: RefCell<Streams>,
    calls: Cell<SimCalls>,
    tapes: RefCell<Tapes>,
    read_next: ReadNext,
    experts: RefCell<Vec<Vec<ExpertLinear>>>,
}

impl SimDevice {
    /// A device without streams or buffers.
    ///
    /// # Errors
    /// [`Error::Resource`](djinn_device::Error::Resource) if the system refuses what the kernels need.
    ///
    /// # Panics
    /// If a bandwidth is not positive.
    pub fn new(config: SimConfig) -> Result<Self> {
        Self::with_faults(config, SimFaults::default())
    }

    /// A device that meets `faults`, beside those of the configuration.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn with_faults(config: SimConfig, faults: SimFaults) -> Result<Self> {
        let cpu = CpuConfig { math: config.math, threads: 1, ..CpuConfig::default() };
        Ok(SimDevice::with(config, faults, kernels::kernels(&cpu)?))
    }

    fn with(config: SimConfig, faults: SimFaults, kernels: Kernels) -> Self {
        let (link, local) = (config.link_bytes_per_second, config.memory_bytes_per_second);
        assert!(link > 0.0 && local > 0.0, "bandwidths of {link} and {local} bytes per second");
        let clock = Clock::new(link, local, config.launch_overhead);
        SimDevice {
            config,
            faults,
            memory: Memory::new(config.vram.unwrap_or(u64::MAX), config.ram.unwrap_or(u64::MAX)),
            kernels,
            events: Events::default(),
            streams: RefCell::new(Streams::new(Order::new(config.seed), clock, config.poison)),
            calls: Cell::default(),
            tapes: RefCell::default(),
            read_next: ReadNext::default(),
            experts: RefCell::default(),
        }
    }

    /// The calls so far.
    pub fn calls(&self) -> SimCalls {
        self.calls.get()
    }

    /// Streams and events that are not freed.
    pub fn handles(&self) -> [usize; 2] {
        [self.streams.borrow().live(), self.events.live()]
    }

    /// The plain copies carried out so far, in the order in which they ended.
    pub fn copies(&self) -> Vec<SimCopy> {
        self.streams.borrow().copies.clone()
    }

    /// The products of each call of `expert_linears` so far, without replays.
    pub fn experts_at_once(&self) -> Vec<Vec<ExpertLinear>> {
        self.experts.borrow().clone()
    }

    fn launch(&self, stream: Stream, operation: Operation) -> Result<()> {
        operation.each_access(|access| self.memory.check(access.span()));
        if self.captured(stream, Call::Operation(operation)) {
            return self.may_fail();
        }
        let Operation::CopyExpert(args) = operation else {
            return self.enqueue_work(stream, Command::Operation(operation));
        };
        let fails = self.count(|calls| &mut calls.copies, self.config.fail_copy_at);
        self.enqueue_work(stream, Command::CopyExpert { args, fails })
    }

    /// Whether the call was kept in a capture.
    fn captured(&self, stream: Stream, call: Call) -> bool {
        self.read_next.follow(stream, &call);
        self.tapes.borrow_mut().keep(stream, call)
    }

    /// Makes every stream of a capture wait for what is enqueued on the others.
    fn join(&self, tape: &Tape) -> Result<()> {
        for (&stream, &joint) in tape.streams.iter().zip(&tape.joints) {
            self.record(stream, joint)?;
        }
        for (i, &stream) in tape.streams.iter().enumerate() {
            for (j, &end) in tape.joints.iter().enumerate() {
                if i != j {
                    self.wait(stream, end)?;
                }
            }
        }
        Ok(())
    }

    fn enqueue(&self, stream: Stream, command: Command) -> Result<()> {
        self.streams.borrow_mut().enqueue(stream, command, self.machine())
    }

    /// Enqueues work that a planted fault may spoil.
    fn enqueue_work(&self, stream: Stream, command: Command) -> Result<()> {
        let command = if self.is_spoilt()? { Command::Spoilt(Box::new(command)) } else { command };
        self.enqueue(stream, command)
    }

    /// Counts a call; whether a planted fault spoils its work.
    fn is_spoilt(&self) -> Result<bool> {
        match self.faults.meet() {
            None => Ok(false),
            Some(SimFault::Work) => Ok(true),
            Some(SimFault::Call) => Err(self.streams.borrow_mut().lose()),
            Some(SimFault::Panic) => panic!("a planted panic"),
        }
    }

    /// Counts a call that enqueues nothing to spoil.
    fn may_fail(&self) -> Result<()> {
        if self.is_spoilt()? { Err(self.streams.borrow_mut().lose()) } else { Ok(()) }
    }

    /// Poisons the bytes of `lost` that are not in `kept`.
    fn poison_beside(&self, stream: Stream, lost: Span, kept: Span) -> Result<()> {
        if !self.config.poison {
            return Ok(());
        }
        let (begin, end) = (lost.offset(), lost.offset() + lost.len());
        let (from, to) = match lost.overlaps(kept) {
            true => (kept.offset().max(begin), (kept.offset() + kept.len()).min(end)),
            false => (end, end),
        };
        for (first, last) in [(begin, from), (to, end)] {
            if first < last {
                self.poison(stream, lost.buffer().slice(first, last - first))?;
            }
        }
        Ok(())
    }

    fn poison(&self, stream: Stream, dst: Span) -> Result<()> {
        if self.captured(stream, Call::Poison(dst)) {
            return self.may_fail();
        }
        self.enqueue(stream, Command::Poison(dst))
    }

    fn machine(&self) -> Machine<'_> {
        Machine { memory: &self.memory, kernels: &*self.kernels, config: &self.config }
    }

    /// Adds one to a count of calls; whether this is the call with the planted fault.
    fn count(&self, which: fn(&mut SimCalls) -> &mut u64, fault: Option<u64>) -> bool {
        let mut calls = self.calls.get();
        let count = which(&mut calls);
        *count += 1;
        let planted = fault == Some(*count);
        self.calls.set(calls);
        planted
    }

    /// Counts the copies of the stream on which some are refused; whether this is one of them.
    fn refuses_on(&self, stream: Stream) -> bool {
        let Some((_, accepted)) = self.config.refuse_copies_on.filter(|(on, _)| *on == stream.id()) else {
            return false;
        };
        self.count(|calls| &mut calls.copies_on_stream, None);
        self.calls().copies_on_stream.is_multiple_of(accepted + 1)
    }

    /// # Panics
    /// If queued work clashes with the host's use of a span.
    fn host_uses(&self, what: &str, access: Access) {
        if let Some((stream, queued)) = self.streams.borrow().clash(access) {
            panic!("the host {what} {:?} while stream {} has queued {queued:?}", access.span(), stream.id());
        }
    }
}

djinn_device::for_each_op!(queue_operations SimDevice {
    fn linear_tiles(&self, stream: Stream, tiles: &[Linear]) -> Result<()> {
        self.read_next.read(stream, tiles);
        tiles.iter().try_for_each(|tile| self.linear(stream, tile))
    }

    /// A GPU computes them at once, so that none may need another: here they come in any order.
    fn expert_linears(&self, stream: Stream, products: &[ExpertLinear]) -> Result<()> {
        ExpertLinear::check_all(products);
        self.experts.borrow_mut().push(products.to_vec());
        let order = self.streams.borrow_mut().any_order(products.len());
        order.into_iter().try_for_each(|at| self.expert_linear(stream, &products[at]))
    }

    /// As above.
    fn copy_experts(&self, stream: Stream, copies: &[CopyExpert]) -> Result<()> {
        CopyExpert::check_all(copies);
        let order = self.streams.borrow_mut().any_order(copies.len());
        order.into_iter().try_for_each(|at| self.copy_expert(stream, &copies[at]))
    }

    fn add_rms_norm(&self, stream: Stream, add: &Add, norm: &RmsNorm) -> Result<()> {
        assert_eq!(norm.x, add.out, "the norm reads the sum");
        for out in [add.out, norm.out] {
            let apart = |term: Span| term == out || !term.overlaps(out);
            assert!(apart(add.a) && apart(add.b), "{out:?} is written while a part of it is read");
        }
        self.add(stream, add)?;
        self.rms_norm(stream, norm)
    }

    /// On a GPU the products' output may stay unwritten, so what the addition leaves of it is poisoned here.
    fn linear_add(&self, stream: Stream, tiles: &[Linear], add: &Add) -> Result<bool> {
        let x = tiles[0].x;
        assert!(!add.a.overlaps(x) && !add.b.overlaps(x), "{x:?} is read while a term of {add:?} is written");
        self.linear_tiles(stream, tiles)?;
        self.add(stream, add)?;
        self.poison_beside(stream, tiles[0].out, add.out)?;
        Ok(true)
    }

    /// As in `linear_add`.
    fn linear_silu_mul(&self, stream: Stream, tiles: &[Linear], act: &SiluMul) -> Result<()> {
        self.linear_tiles(stream, tiles)?;
        self.silu_mul(stream, act)?;
        self.poison_beside(stream, act.x, act.out)
    }
}:);

impl Device for SimDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: format!("sim (seed {})", self.config.seed),
            host_memory: false,
            reserved_bytes: 0,
            captures: true,
            batch_invariant_rows: self.config.batch_invariant_rows,
            wide_products: self.config.wide_products,
            batch_invariant_run: self.config.batch_invariant_rows,
            encodings: self.config.encodings,
            int8_cache: self.config.int8_cache,
            most_head_dim: self.config.most_head_dim,
            cpu_products: self.config.cpu_products,
        }
    }

    fn alloc(&self, space: Space, len: u64) -> Result<Buffer> {
        self.tapes.borrow().refuse("allocates");
        self.may_fail()?;
        if self.count(|calls| &mut calls.allocs, self.config.fail_alloc_at) {
            return Err(memory::out_of_memory(space, len, self.memory.usage(space)));
        }
        let buffer = self.memory.alloc(space, len)?;
        if self.config.poison {
            self.memory.fill(buffer.span(), POISON);
        }
        Ok(buffer)
    }

    fn restore(&self, buffer: Buffer) -> Result<()> {
        self.tapes.borrow().refuse("allocates");
        self.may_fail()?;
        if self.count(|calls| &mut calls.allocs, self.config.fail_alloc_at) {
            return Err(memory::out_of_memory(
                buffer.space(),
                buffer.len(),
                self.memory.usage(buffer.space()),
            ));
        }
        self.memory.restore(buffer)?;
        if self.config.poison {
            self.memory.fill(buffer.span(), POISON);
        }
        Ok(())
    }

    fn free(&self, buffer: Buffer) {
        self.tapes.borrow().refuse("frees memory");
        self.host_uses("frees", Access::Write(buffer.span()));
        self.memory.free(buffer);
    }

    fn usage(&self, space: Space) -> Usage {
        self.memory.usage(space)
    }

    fn stream(&self) -> Result<Stream> {
        self.tapes.borrow().refuse("makes a stream");
        self.may_fail()?;
        Ok(self.streams.borrow_mut().create())
    }

    fn free_stream(&self, stream: Stream) {
        self.tapes.borrow().refuse_stream(stream);
        self.streams.borrow_mut().free(stream);
    }

    fn event(&self) -> Result<Event> {
        self.may_fail()?;
        Ok(self.events.create())
    }

    fn free_event(&self, event: Event) {
        self.tapes.borrow().refuse_event(event);
        self.events.free(event);
    }

    fn copy(&self, stream: Stream, src: Span, dst: Span) -> Result<()> {
        memory::check_copy(src, dst);
        self.memory.check(src);
        self.memory.check(dst);
        if self.captured(stream, Call::Copy { src, dst }) {
            return self.may_fail();
        }
        let fails = self.count(|calls| &mut calls.copies, self.config.fail_copy_at);
        if self.config.refuse_copy_at == Some(self.calls().copies) || self.refuses_on(stream) {
            return Err(Error::Resource { what: "a copy", reason: "as planned".to_owned() });
        }
        self.enqueue_work(stream, Command::Copy { src, dst, fails })
    }

    fn fill(&self, stream: Stream, dst: Span, byte: u8) -> Result<()> {
        self.memory.check(dst);
        if self.captured(stream, Call::Fill { dst, byte }) {
            return self.may_fail();
        }
        self.enqueue_work(stream, Command::Fill { dst, byte })
    }

    fn record(&self, stream: Stream, event: Event) -> Result<()> {
        self.may_fail()?;
        if self.captured(stream, Call::Record(event)) {
            return Ok(());
        }
        let completion = Arc::new(Completion::default());
        self.events.record(event, Arc::clone(&completion));
        self.enqueue(stream, Command::Record(completion))
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<()> {
        self.may_fail()?;
        if self.captured(stream, Call::Wait(event)) {
            return Ok(());
        }
        let dropped = self.count(|calls| &mut calls.waits, self.config.drop_wait_at);
        match self.events.latest(event) {
            Some(completion) if !dropped => self.enqueue(stream, Command::Wait(completion)),
            _ => self.streams.borrow().check(),
        }
    }

    fn is_done(&self, event: Event) -> Result<bool> {
        self.tapes.borrow().refuse("asks for an event");
        let mut streams = self.streams.borrow_mut();
        streams.poll(self.machine());
        let latest = self.events.latest(event);
        let done = latest.as_ref().is_none_or(|completion| completion.is_done());
        if let Some(at) = latest.and_then(|completion| completion.at()) {
            streams.clock.host_saw(at);
        }
        streams.check().map(|()| done)
    }

    fn sync(&self, stream: Stream) -> Result<()> {
        self.tapes.borrow().refuse("waits for a stream");
        self.may_fail()?;
        let mut streams = self.streams.borrow_mut();
        streams.drain(stream, self.machine());
        streams.check()
    }

    fn sync_event(&self, event: Event) -> Result<()> {
        self.tapes.borrow().refuse("waits for an event");
        self.may_fail()?;
        let mut streams = self.streams.borrow_mut();
        if let Some(completion) = self.events.latest(event) {
            streams.drain_to(&completion, self.machine());
        }
        streams.check()
    }

    fn timestamp(&self, event: Event) -> Option<Duration> {
        self.events.latest(event)?.at()
    }

    fn capture<E: From<Error>>(
        &self,
        streams: &[Stream],
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<Capture, E> {
        self.may_fail()?;
        let joints = streams.iter().map(|_| self.events.create()).collect();
        self.tapes.borrow_mut().begin(streams, joints);
        let outcome = work();
        let tape = self.tapes.borrow_mut().end();
        let outcome = outcome.and_then(|()| {
            match self.count(|calls| &mut calls.captures, self.config.fail_capture_at) {
                true => Err(Error::Resource { what: "a capture", reason: "as planned".to_owned() }.into()),
                false => Ok(()),
            }
        });
        if let Err(error) = outcome {
            tape.joints.iter().for_each(|&joint| self.events.free(joint));
            return Err(error);
        }
        Ok(self.tapes.borrow_mut().store(tape))
    }

    fn replay(&self, capture: Capture) -> Result<()> {
        let tape = self.tapes.borrow().get(capture);
        self.join(&tape)?;
        for &(stream, call) in &tape.calls {
            match call {
                Call::Copy { src, dst } => self.copy(stream, src, dst),
                Call::Fill { dst, byte } => self.fill(stream, dst, byte),
                Call::Poison(dst) => self.poison(stream, dst),
                Call::Operation(operation) => self.launch(stream, operation),
                Call::Record(event) => self.record(stream, event),
                Call::Wait(event) => self.wait(stream, event),
            }?;
        }
        self.join(&tape)
    }

    fn free_capture(&self, capture: Capture) {
        let tape = self.tapes.borrow_mut().free(capture);
        let is_done = |joint: &Event| self.events.latest(*joint).is_none_or(|latest| latest.is_done());
        assert!(tape.joints.iter().all(is_done), "the host frees {capture:?} while a replay of it is queued");
        tape.joints.iter().for_each(|&joint| self.events.free(joint));
    }

    fn read_host<R>(&self, span: Span, read: impl FnOnce(&[u8]) -> R) -> R {
        self.host_uses("reads", Access::Read(span));
        read(&self.memory.host_bytes(span))
    }

    fn write_host<R>(&self, span: Span, write: impl FnOnce(&mut [u8]) -> R) -> R {
        self.host_uses("writes", Access::Write(span));
        self.memory.write_host(span, write)
    }
}
