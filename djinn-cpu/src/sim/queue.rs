//! The streams' queues and how their commands are carried out, step by step.

use super::SimConfig;
use super::clock::Clock;
use super::order::Order;
use super::runs;
use crate::event::Completion;
use crate::kernels::Arithmetic;
use crate::memory::Memory;
use crate::ops::{bytes_moved, copied};
use djinn_device::args::{Attention, CopyExpert, Linear};
use djinn_device::{Access, DeviceInfo, Error, Operation, Result, Span, Stream, panic_line};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Every byte of memory that holds nothing; a NaN in f32, f16 and bf16.
pub(super) const POISON: u8 = 0xFF;

/// One entry of a stream's queue.
#[derive(Clone)]
pub(super) enum Command {
    Copy {
        src: Span,
        dst: Span,
        fails: bool,
    },
    CopyExpert {
        args: CopyExpert,
        fails: bool,
    },
    Fill {
        dst: Span,
        byte: u8,
    },
    /// What the operation before may leave unwritten. It takes no time.
    Poison(Span),
    Operation(Operation),
    Record(Arc<Completion>),
    Wait(Arc<Completion>),
    /// Leaves poison in place of what the command would write, and the device is lost.
    Spoilt(Box<Command>),
}

impl Command {
    fn each_access(&self, visit: &mut dyn FnMut(Access)) {
        match self {
            Command::Copy { src, dst, .. } => {
                visit(Access::Read(*src));
                visit(Access::Write(*dst));
            }
            Command::CopyExpert { args, .. } => Operation::CopyExpert(*args).each_access(visit),
            Command::Spoilt(command) => command.each_access(visit),
            Command::Fill { dst, .. } | Command::Poison(dst) => visit(Access::Write(*dst)),
            Command::Operation(operation) => operation.each_access(visit),
            Command::Record(_) | Command::Wait(_) => {}
        }
    }
}

#[derive(Default)]
struct Queue {
    /// Each with the host's time when it was enqueued.
    commands: VecDeque<(Command, Duration)>,
    /// The first command is a copy that has begun.
    copying: bool,
    /// When the stream's last command ended.
    now: Duration,
    /// What the last operation gave for the next product alone, until that product has read it.
    alone: Option<Span>,
    is_freed: bool,
}

/// A copy that a [`SimDevice`](crate::SimDevice) carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimCopy {
    /// Where it was enqueued.
    pub stream: Stream,
    /// What was read.
    pub src: Span,
    /// What was written.
    pub dst: Span,
}

/// What an operation gives for the next product alone.
fn given_alone(operation: &Operation) -> Option<Span> {
    let (out, read_by) = match operation {
        Operation::RmsNorm(a) => (a.out, a.read_by),
        Operation::SiluMul(a) => (a.out, a.read_by),
        Operation::Attention(a) => (a.out, a.read_by),
        _ => return None,
    };
    read_by.filter(|next| next.alone).map(|_| out)
}

/// The streams of a device.
pub(super) struct Streams {
    queues: Vec<Queue>,
    /// In the order in which they ended.
    pub(super) copies: Vec<SimCopy>,
    order: Order,
    pub(super) clock: Clock,
    poison: bool,
    failure: Option<Error>,
    ready: Vec<usize>,
}

/// What commands work on.
#[derive(Clone, Copy)]
pub(super) struct Machine<'a> {
    pub(super) memory: &'a Memory,
    pub(super) kernels: &'a dyn Arithmetic,
    pub(super) config: &'a SimConfig,
}

impl Machine<'_> {
    /// Whether each row is in a long run.
    fn long_runs(self, attention: &Attention) -> Vec<bool> {
        let Attention { row_seq, positions, short_runs, .. } = *attention;
        let (sequences, positions) = (self.memory.read_u32(row_seq), self.memory.read_u32(positions));
        runs::long_runs(short_runs, self.config.batch_invariant_rows, &sequences, &positions)
    }

    /// Whether a product's low bits depend on the number of its rows.
    fn varies(self, product: &Linear) -> bool {
        let wide = self.config.wide_products && DeviceInfo::is_wide(product.weight, product.k);
        product.rows > self.config.batch_invariant_rows && !wide
    }
}

/// A number with other low bits.
fn varied(value: f32, low_bits: u32) -> f32 {
    if value.is_finite() { f32::from_bits(value.to_bits() ^ low_bits) } else { value }
}

/// Gives rows in `long` runs other low bits than attention has in short ones.
fn vary_runs(memory: &Memory, attention: &Attention, long: &[bool]) {
    let Attention { out, rows, .. } = *attention;
    let width = (out.len() / 4) as usize / (rows as usize).max(1);
    if long.contains(&true) {
        memory.change_floats(out, |at, value| if long[at / width] { varied(value, 3) } else { value });
    }
}

/// Makes the low bits of a product depend on the number of its rows.
fn vary(memory: &Memory, product: &Linear) {
    let Linear { out, n, out_width, out_column, rows, .. } = *product;
    let low_bits = 1 + (rows.wrapping_mul(0x9E37_79B9) >> 22);
    memory.change_floats(out, |at, value| {
        let column = at as u32 % out_width;
        let written = (out_column..out_column + n).contains(&column);
        if written { varied(value, low_bits) } else { value }
    });
}

impl Streams {
    pub(super) fn new(order: Order, clock: Clock, poison: bool) -> Self {
        Streams {
            queues: Vec::new(),
            copies: Vec::new(),
            order,
            clock,
            poison,
            failure: None,
            ready: Vec::new(),
        }
    }

    pub(super) fn create(&mut self) -> Stream {
        self.queues.push(Queue::default());
        Stream::from_raw(self.queues.len() as u32 - 1)
    }

    pub(super) fn live(&self) -> usize {
        self.queues.iter().filter(|queue| !queue.is_freed).count()
    }

    /// # Panics
    /// If the stream is foreign, was freed, or has queued work that will run.
    pub(super) fn free(&mut self, stream: Stream) {
        let is_lost = self.failure.is_some();
        let queue = self.queue(stream);
        assert!(queue.commands.is_empty() || is_lost, "the host frees {stream:?} while work on it is queued");
        *queue = Queue { is_freed: true, ..Queue::default() };
    }

    /// Loses the device.
    pub(super) fn lose(&mut self) -> Error {
        let lost = Error::DeviceLost { reason: "as planted".to_owned() };
        self.failure.get_or_insert(lost).clone()
    }

    /// The numbers below `count`, in an order of the adversary's choice.
    pub(super) fn any_order(&mut self, count: usize) -> Vec<usize> {
        self.order.any_of(count)
    }

    /// The device's sticky failure.
    pub(super) fn check(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// Enqueues, and now and then runs a few steps of any stream.
    ///
    /// # Panics
    /// If the stream is foreign.
    pub(super) fn enqueue(&mut self, stream: Stream, command: Command, machine: Machine<'_>) -> Result<()> {
        let issued = self.clock.host();
        self.queue(stream).commands.push_back((command, issued));
        let steps = self.order.steps_at_enqueue();
        self.run(steps, machine);
        self.check()
    }

    /// Runs a few steps, or none.
    pub(super) fn poll(&mut self, machine: Machine<'_>) {
        let steps = self.order.steps_at_poll();
        self.run(steps, machine);
    }

    /// Runs until the stream is empty; other streams run along as the order has it.
    ///
    /// # Panics
    /// If the stream is foreign.
    pub(super) fn drain(&mut self, stream: Stream, machine: Machine<'_>) {
        while !self.queue(stream).commands.is_empty() {
            assert!(self.step(machine), "{stream:?} waits for work that was never enqueued");
        }
        let now = self.queue(stream).now;
        self.clock.host_saw(now);
    }

    /// Runs until the recording is complete.
    pub(super) fn drain_to(&mut self, completion: &Completion, machine: Machine<'_>) {
        while !completion.is_done() {
            assert!(self.step(machine), "an event stands for work that was never enqueued");
        }
        self.clock.host_saw(completion.at().unwrap_or_default());
    }

    /// The stream and the use of a queued command that clashes with `access` by the host; a read by both
    /// is none.
    pub(super) fn clash(&self, access: Access) -> Option<(Stream, Access)> {
        let mut found = None;
        for (id, queue) in self.queues.iter().enumerate() {
            for (command, _) in &queue.commands {
                command.each_access(&mut |queued| {
                    let reads = matches!((queued, access), (Access::Read(_), Access::Read(_)));
                    if !reads && queued.span().overlaps(access.span()) {
                        found.get_or_insert((Stream::from_raw(id as u32), queued));
                    }
                });
            }
        }
        found
    }

    fn queue(&mut self, stream: Stream) -> &mut Queue {
        match self.queues.get_mut(stream.id() as usize) {
            Some(queue) if !queue.is_freed => queue,
            _ => panic!("{stream:?} is not a stream of this device, or was freed"),
        }
    }

    fn run(&mut self, steps: u64, machine: Machine<'_>) {
        for _ in 0..steps {
            if !self.step(machine) {
                return;
            }
        }
    }

    /// One step of one stream that can go on; false if none can.
    fn step(&mut self, machine: Machine<'_>) -> bool {
        self.ready.clear();
        let ready = self.queues.iter().enumerate().filter(|(_, queue)| match queue.commands.front() {
            Some((Command::Wait(completion), _)) => completion.is_done(),
            head => head.is_some(),
        });
        self.ready.extend(ready.map(|(id, _)| id));
        if self.ready.is_empty() {
            return false;
        }
        let id = self.order.pick(&self.ready);
        if self.begin_copy(id, machine) {
            return true;
        }
        let queue = &mut self.queues[id];
        queue.copying = false;
        let (command, issued) = queue.commands.pop_front().expect("a ready stream has a command");
        let from = queue.now.max(issued);
        let work = AssertUnwindSafe(|| self.finish(id, &command, from, machine));
        if let Err(panic) = catch_unwind(work) {
            let reason = format!("work on stream {id} panicked: {}", panic_line(&*panic));
            self.failure = Some(Error::DeviceLost { reason });
        }
        if let Command::Record(completion) = command {
            completion.complete(self.failure.is_none().then_some(self.queues[id].now));
        }
        true
    }

    /// The first half of a copy, after which other streams may run; false if there is none to begin.
    fn begin_copy(&mut self, id: usize, machine: Machine<'_>) -> bool {
        let queue = &mut self.queues[id];
        let dst = match queue.commands.front() {
            Some((Command::Copy { dst, .. }, _)) => *dst,
            Some((Command::CopyExpert { args, .. }, _)) => args.dst.slice(0, copied(machine.memory, args)),
            _ => return false,
        };
        if queue.copying || self.failure.is_some() {
            return false;
        }
        queue.copying = true;
        if self.poison {
            machine.memory.fill(dst, POISON);
        }
        true
    }

    /// Carries a command out, unless the device has failed, and advances its stream's clock.
    fn finish(&mut self, id: usize, command: &Command, from: Duration, machine: Machine<'_>) {
        if self.failure.is_some() {
            return;
        }
        let Machine { memory, kernels, .. } = machine;
        if let Command::Poison(dst) = command {
            return memory.fill(*dst, POISON);
        }
        let alone = self.queues[id].alone.take();
        if let Some(span) = alone {
            let reads =
                matches!(command, Command::Operation(Operation::Linear(product)) if product.x == span);
            let spoilt = matches!(command, Command::Spoilt(_));
            assert!(reads || spoilt, "{span:?} was for the next product alone, but something else follows");
        }
        self.queues[id].now = match command {
            Command::Copy { src, dst, fails } => {
                if *fails {
                    memory.fill(*dst, POISON);
                    self.failure = Some(Error::CopyFailed { bytes: src.len(), stream: id as u32 });
                } else {
                    memory.copy(*src, *dst);
                    self.copies.push(SimCopy { stream: Stream::from_raw(id as u32), src: *src, dst: *dst });
                }
                self.clock.copy(from, src.buffer().space(), dst.buffer().space(), src.len())
            }
            Command::CopyExpert { args, fails } => {
                let bytes = copied(memory, args);
                if *fails && bytes > 0 {
                    memory.fill(args.dst, POISON);
                    self.failure = Some(Error::CopyFailed { bytes, stream: id as u32 });
                } else {
                    kernels.run(memory, &Operation::CopyExpert(*args));
                }
                self.clock.copy(from, args.src.buffer().space(), args.dst.buffer().space(), bytes)
            }
            Command::Fill { dst, byte } => {
                memory.fill(*dst, *byte);
                self.clock.work(from, dst.len())
            }
            Command::Operation(operation) => {
                let bytes = bytes_moved(operation, memory);
                let long = match operation {
                    Operation::Attention(args) => machine.long_runs(args),
                    _ => Vec::new(),
                };
                kernels.run(memory, operation);
                match operation {
                    Operation::Linear(product) if machine.varies(product) => vary(memory, product),
                    Operation::Attention(args) => vary_runs(memory, args, &long),
                    _ => {}
                }
                self.queues[id].alone = match (alone, operation) {
                    (Some(span), Operation::Linear(product)) => {
                        let more = product.out_column + product.n < product.out_width;
                        if !more && self.poison {
                            memory.fill(span, POISON);
                        }
                        more.then_some(span)
                    }
                    _ => given_alone(operation),
                };
                self.clock.work(from, bytes)
            }
            Command::Poison(_) | Command::Record(_) => from,
            Command::Spoilt(command) => {
                command.each_access(&mut |access| {
                    if let Access::Write(span) = access {
                        memory.fill(span, POISON);
                    }
                });
                self.lose();
                from
            }
            Command::Wait(completion) => from.max(completion.at().unwrap_or_default()),
        };
    }
}
