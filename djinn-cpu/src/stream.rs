//! Streams: threads that carry out commands in order.

use crate::event::{Completion, SPINS};
use crate::kernels::Kernels;
use crate::memory::Memory;
use crossbeam_channel::{Receiver, Sender, TryRecvError, unbounded};
use djinn_device::{Error, Handles, Operation, Result, Span, Stream, panic_line};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// What the streams' threads share.
pub(crate) struct Core {
    pub(crate) memory: Memory,
    pub(crate) kernels: Kernels,
    pub(crate) lost: OnceLock<Error>,
    pub(crate) origin: Instant,
}

impl Core {
    pub(crate) fn check(&self) -> Result<()> {
        self.lost.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }
}

/// One entry of a stream's queue.
pub(crate) enum Command {
    Copy { src: Span, dst: Span },
    Fill { dst: Span, byte: u8 },
    Operation(Operation),
    Record(Arc<Completion>),
    Wait(Arc<Completion>),
}

/// The streams of one device. Dropping them drains them.
#[derive(Default)]
pub(crate) struct Streams(RwLock<Handles<Worker>>);

impl Streams {
    /// Starts a stream.
    pub(crate) fn create(&self, core: &Arc<Core>) -> Result<Stream> {
        let mut streams = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let stream = Stream::from_raw(streams.next());
        streams.insert(Worker::spawn(stream, Arc::clone(core))?);
        Ok(stream)
    }

    /// Enqueues.
    ///
    /// # Panics
    /// If the stream is foreign or was freed.
    pub(crate) fn send(&self, stream: Stream, command: Command) {
        let streams = self.0.read().unwrap_or_else(PoisonError::into_inner);
        streams.get(stream.id()).unwrap_or_else(|| foreign(stream)).send(command);
    }

    /// Ends a stream once its queue is empty.
    ///
    /// # Panics
    /// As [`send`](Self::send).
    pub(crate) fn free(&self, stream: Stream) {
        let worker = self.0.write().unwrap_or_else(PoisonError::into_inner).remove(stream.id());
        join(worker.unwrap_or_else(|| foreign(stream)).close());
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        let workers = std::mem::take(&mut *self.0.write().unwrap_or_else(PoisonError::into_inner));
        // Every stream is closed before any is joined; the order does not matter, since a wait only refers
        // to work enqueued before it.
        let threads: Vec<_> = workers.into_values().map(Worker::close).collect();
        threads.into_iter().for_each(join);
    }
}

fn join(thread: JoinHandle<()>) {
    thread.join().expect("a stream's thread catches panics of its work");
}

fn foreign(stream: Stream) -> ! {
    panic!("{stream:?} is not a stream of this device, or was freed")
}

/// The host's end of a stream.
struct Worker {
    commands: Sender<Command>,
    thread: JoinHandle<()>,
}

impl Worker {
    /// Starts the thread of `stream`.
    fn spawn(stream: Stream, core: Arc<Core>) -> Result<Self> {
        let (commands, queue) = unbounded();
        let thread = Builder::new()
            .name(format!("djinn-stream-{}", stream.id()))
            .spawn(move || run(stream, &core, &queue))
            .map_err(|error| Error::Resource { what: "a stream's thread", reason: error.to_string() })?;
        Ok(Worker { commands, thread })
    }

    /// Enqueues.
    fn send(&self, command: Command) {
        self.commands.send(command).expect("a stream's thread lives until its queue is closed");
    }

    /// Lets the thread end once its queue is empty.
    fn close(self) -> JoinHandle<()> {
        self.thread
    }
}

fn run(stream: Stream, core: &Core, queue: &Receiver<Command>) {
    while let Some(command) = next(queue) {
        let work = || execute(core, &command);
        if core.lost.get().is_none()
            && let Err(panic) = catch_unwind(AssertUnwindSafe(work))
        {
            let reason = format!("work on stream {} panicked: {}", stream.id(), panic_line(&*panic));
            // The first loss stays the device's; later ones follow from it.
            let _ = core.lost.set(Error::DeviceLost { reason });
        }
        // Last, and on a lost device too: who waits must wake, and see the loss.
        if let Command::Record(completion) = command {
            completion.complete(core.lost.get().is_none().then(|| core.now()));
        }
    }
}

/// The next command; spins before it sleeps, since a decode step is hundreds of commands that each take
/// microseconds. `None` once the stream is closed and empty.
fn next(queue: &Receiver<Command>) -> Option<Command> {
    for _ in 0..SPINS {
        match queue.try_recv() {
            Ok(command) => return Some(command),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => std::thread::yield_now(),
        }
    }
    queue.recv().ok()
}

fn execute(core: &Core, command: &Command) {
    let held = core.memory.hold();
    match command {
        Command::Copy { src, dst } => core.memory.copy(*src, *dst),
        Command::Fill { dst, byte } => core.memory.fill(*dst, *byte),
        Command::Operation(operation) => core.kernels.run(&core.memory, operation),
        Command::Record(_) => {}
        Command::Wait(completion) => {
            drop(held);
            completion.block();
        }
    }
}
