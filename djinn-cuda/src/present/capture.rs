//! Captured work: graphs of the driver, with the streams and events that take part.

use crate::present::context::Context;
use crate::present::on_cpu::Repeated;
use crate::present::stream::{RawCapture, RawEvent, RawGraph, RawStream};
use crate::{Error, Result};
use djinn_device::{Capture, Event, Handles, Stream};
use std::cell::{Cell, RefCell};

/// Bytes of the card that all captures of a device may take.
pub(crate) const CAPTURE_BYTES: u64 = 16 << 20;

/// What the driver takes for a kernel, about, by its arguments: 2.3 KB if they are few, 8.9 KB if they have 2.6 KB. It takes
/// nothing for events and copies.
const KERNEL_BYTES: u64 = 4 << 10;

/// The most that a kernel is taken to take, whatever others do with the card's memory meanwhile.
const MOST_KERNEL_BYTES: u64 = 16 << 10;

/// A device's captures.
#[derive(Default)]
pub(crate) struct Captures {
    open: Cell<bool>,
    /// Bytes that the driver has taken for captures and not given back, as measured.
    bytes: Cell<u64>,
    kept: RefCell<Handles<Kept>>,
    /// The CPU's works in the open capture.
    on_cpu: RefCell<Vec<Repeated>>,
}

/// One capture.
pub(crate) struct Kept {
    graph: Graph,
    /// The captured streams. The first launches the graph.
    pub(crate) streams: Vec<Stream>,
    /// The events that a replay records.
    pub(crate) events: Vec<Event>,
    joints: Joints,
    /// What the graph asks the CPU for.
    pub(crate) on_cpu: Vec<Repeated>,
}

/// Captured work that can be replayed.
struct Graph {
    raw: RawGraph,
    kernels: u64,
}

/// The events at which streams fork from the first, and join it.
struct Joints {
    fork: RawEvent,
    joins: Vec<RawEvent>,
}

impl Joints {
    /// For `count` streams.
    fn new(count: usize) -> Result<Self> {
        let joins = (1..count).map(|_| RawEvent::new()).collect::<Result<_>>()?;
        Ok(Joints { fork: RawEvent::new()?, joins })
    }

    /// Orders later work on every stream after all work so far on the first.
    fn fork(&self, streams: &[&RawStream]) -> Result<()> {
        let [first, others @ ..] = streams else { return Ok(()) };
        if others.is_empty() {
            return Ok(());
        }
        first.record(&self.fork)?;
        others.iter().try_for_each(|stream| stream.wait(&self.fork))
    }

    /// Orders later work on the first stream after all work so far on every one.
    fn join(&self, streams: &[&RawStream]) -> Result<()> {
        let [first, others @ ..] = streams else { return Ok(()) };
        others.iter().zip(&self.joins).try_for_each(|(stream, event)| {
            stream.record(event)?;
            first.wait(event)
        })
    }
}

impl Captures {
    /// Whether a capture is under way.
    pub(crate) fn is_open(&self) -> bool {
        self.open.get()
    }

    /// Keeps a work of the CPU with the open capture.
    pub(crate) fn keep_on_cpu(&self, work: Repeated) {
        self.on_cpu.borrow_mut().push(work);
    }

    /// Captures what `work` enqueues. `events` tells which events were recorded meanwhile, and is called in any
    /// case.
    ///
    /// # Panics
    /// If a capture is under way, or there are no streams.
    pub(crate) fn capture<E: From<djinn_device::Error>>(
        &self,
        context: Context,
        streams: (&[Stream], &[&RawStream]),
        work: impl FnOnce() -> Result<(), E>,
        events: impl FnOnce() -> Vec<Event>,
        failed: impl Fn(crate::Error) -> djinn_device::Error,
    ) -> Result<Capture, E> {
        let (handles, raw) = streams;
        assert!(!self.is_open(), "a capture begins within another");
        let first = raw.first().expect("a capture has a stream");
        let begun = || {
            let joints = Joints::new(raw.len())?;
            first.begin_capture()?;
            let forked = joints.fork(raw);
            Ok((joints, forked))
        };
        let (joints, forked) = begun().map_err(&failed)?;
        self.open.set(true);
        let outcome = forked.map_err(|error| E::from(failed(error))).and_then(|()| work());
        self.open.set(false);
        let events = events();
        // Ended whatever happened, so that the streams are of use again.
        let joined = joints.join(raw);
        let captured = first.end_capture();
        let on_cpu = self.on_cpu.take();
        outcome?;
        let graph = joined.and(captured).and_then(|work| self.instantiate(context, first, &work));
        let graph = graph.map_err(failed)?;
        let kept = Kept { graph, streams: handles.to_vec(), events, joints, on_cpu };
        Ok(Capture::from_raw(self.kept.borrow_mut().insert(kept)))
    }

    /// Makes captured work ready to be replayed, if there is room for it.
    fn instantiate(&self, context: Context, stream: &RawStream, work: &RawCapture) -> Result<Graph> {
        let kernels = work.kernels()?;
        let others: u64 = self.kept.borrow().iter().map(|(_, kept)| kept.graph.kernels).sum();
        let refused = Error::CaptureTooLarge { kernels, others };
        if (others + kernels) * KERNEL_BYTES > CAPTURE_BYTES {
            return Err(refused);
        }
        let free = context.free_bytes()?;
        let graph = Graph { raw: work.instantiate(stream)?, kernels };
        let taken = free.saturating_sub(context.free_bytes()?).min(kernels * MOST_KERNEL_BYTES);
        self.bytes.set(self.bytes.get() + taken);
        if self.bytes.get() > CAPTURE_BYTES {
            self.give_back(context, graph);
            return Err(refused);
        }
        Ok(graph)
    }

    /// Frees a graph. The driver may keep its memory for others.
    fn give_back(&self, context: Context, graph: Graph) {
        let free = || context.free_bytes().unwrap_or(0);
        let before = free();
        drop(graph);
        self.bytes.set(self.bytes.get().saturating_sub(free().saturating_sub(before)));
    }

    /// Calls `then` with a capture.
    ///
    /// # Panics
    /// If it is foreign or was freed.
    pub(crate) fn with<T>(&self, capture: Capture, then: impl FnOnce(&Kept) -> T) -> T {
        match self.kept.borrow().get(capture.id()) {
            Some(kept) => then(kept),
            None => panic!("{capture:?} is not a capture of this device, or was freed"),
        }
    }

    /// # Panics
    /// If the capture is foreign or was freed.
    pub(crate) fn free(&self, context: Context, capture: Capture) {
        self.with(capture, |_| ());
        let kept = self.kept.borrow_mut().remove(capture.id());
        kept.into_iter().for_each(|kept| self.give_back(context, kept.graph));
    }
}

impl Kept {
    /// Enqueues the work, after all earlier and before all later work on its streams.
    pub(crate) fn replay(&self, streams: &[&RawStream]) -> Result<()> {
        self.joints.join(streams)?;
        streams[0].launch(&self.graph.raw)?;
        self.joints.fork(streams)
    }
}
