//! Collects a timeline from the device's own timestamps.
//!
//! During a trace, the executor records an event at every boundary between launches. Neighbouring launches share one,
//! and every pass reuses them. Their times are read after the pass. So tracing only adds events to the compute stream;
//! without a trace nothing is called.

mod write;

use crate::Result;
use crate::parts::Parts;
use djinn_device::{Device, Event, Stream};
use djinn_vmu::{ChunkId, ChunkTimes, Launch, MemoryPlan, STALL};
use std::ops::Range;
use std::time::{Duration, Instant};

/// How often the clocks are compared. The closest comparison counts.
const COMPARISONS: usize = 8;

/// Nanoseconds on the device's clock; negative before its origin.
type Nanos = i64;

/// A point on the compute stream, named by the work just before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// The copies of the pass's inputs.
    Begin,
    /// The wait for a streamed chunk, and the work that makes it usable.
    Acquired,
    /// A launch of the program, with the rows that it computes.
    Launch { index: usize, rows: u32 },
}

/// Work of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostSpan {
    Load,
    Upload,
    Enqueue,
    Wait,
    Sample,
}

/// Work that took some time; it determines the track.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// A streamed chunk crosses the link; its last use ends at `done`.
    Copy { chunk: ChunkId, bytes: u64, done: Nanos },
    /// The compute stream waits for a chunk.
    Stall(ChunkId),
    /// The parts of a chunk that crosses the ring's end are joined.
    Join(ChunkId),
    /// A chunk's checksum is compared.
    Check(ChunkId),
    /// A launch of the program runs.
    Launch { index: usize, rows: u32 },
    /// The host works or waits.
    Host(HostSpan),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    what: What,
    /// Number of earlier passes.
    pass: u32,
    begin: Nanos,
    end: Nanos,
}

/// An instant on both clocks.
#[derive(Clone, Copy, Debug)]
struct Clocks {
    host: Instant,
    device: Nanos,
    /// The most by which the two may differ.
    error: Duration,
}

impl Clocks {
    /// Compares the clocks while the device is idle.
    fn compare<D: Device>(device: &D, stream: Stream) -> Result<Self> {
        let event = device.event()?;
        let compared = Self::compare_by(device, stream, event);
        device.free_event(event);
        compared
    }

    fn compare_by<D: Device>(device: &D, stream: Stream, event: Event) -> Result<Self> {
        device.sync(stream)?;
        let mut best: Option<Clocks> = None;
        for _ in 0..COMPARISONS {
            let began = Instant::now();
            device.record(stream, event)?;
            device.sync(stream)?;
            let error = began.elapsed() / 2;
            if best.is_none_or(|best| error < best.error) {
                let device = nanos(device.timestamp(event).unwrap_or_default());
                best = Some(Clocks { host: began + error, device, error });
            }
        }
        Ok(best.expect("compared at least once"))
    }

    /// An instant of the host on the device's clock.
    fn on_device(&self, at: Instant) -> Nanos {
        let (after, before) =
            (at.saturating_duration_since(self.host), self.host.saturating_duration_since(at));
        self.device + nanos(after) - nanos(before)
    }
}

fn nanos(time: Duration) -> Nanos {
    Nanos::try_from(time.as_nanos()).unwrap_or(Nanos::MAX)
}

/// Collects the times of a running engine.
#[derive(Debug)]
pub(crate) struct Recorder {
    clocks: Clocks,
    /// One event for each boundary of the longest pass so far.
    events: Vec<Event>,
    /// The boundaries of the present pass.
    marks: Vec<Mark>,
    passes: u32,
    spans: Vec<Span>,
}

impl Recorder {
    /// Begins a trace. The model was loaded from the first instant to the second.
    pub(crate) fn new<D: Device>(device: &D, compute: Stream, loaded: [Instant; 2]) -> Result<Self> {
        let clocks = Clocks::compare(device, compute)?;
        let mut recorder =
            Recorder { clocks, events: Vec::new(), marks: Vec::new(), passes: 0, spans: Vec::new() };
        let [began, ended] = loaded;
        recorder.host(HostSpan::Load, began, ended);
        Ok(recorder)
    }

    /// Number of spans so far.
    pub(crate) fn spans(&self) -> usize {
        self.spans.len()
    }

    /// Records an event for what was just enqueued on `compute`.
    pub(crate) fn mark<D: Device>(&mut self, device: &D, compute: Stream, mark: Mark) -> Result<()> {
        if mark == Mark::Begin {
            self.marks.clear();
        }
        if self.events.len() == self.marks.len() {
            self.events.push(device.event()?);
        }
        device.record(compute, self.events[self.marks.len()])?;
        self.marks.push(mark);
        Ok(())
    }

    /// Reads the times of a finished pass. `chunks` are its streamed chunks, in order of use.
    pub(crate) fn end_pass<D: Device>(
        &mut self,
        device: &D,
        plan: &MemoryPlan,
        mut chunks: impl Iterator<Item = ChunkTimes>,
    ) {
        let mut previous = 0;
        for (mark, &event) in std::mem::take(&mut self.marks).into_iter().zip(&self.events) {
            // The pass is over, so the event has happened.
            let now = device.timestamp(event).map_or(previous, nanos);
            let mut push = |what, begin, end| self.spans.push(Span { what, pass: self.passes, begin, end });
            match mark {
                Mark::Begin => {}
                Mark::Launch { index, rows } => push(What::Launch { index, rows }, previous, now),
                Mark::Acquired => {
                    let times = chunks.next().expect("a mark for each streamed chunk");
                    let ChunkTimes { chunk, bytes, begin, ready, need, go, done } = times;
                    if bytes > 0 {
                        push(What::Copy { chunk, bytes, done: nanos(done) }, nanos(begin), nanos(ready));
                    }
                    if go.saturating_sub(need) > STALL {
                        push(What::Stall(chunk), nanos(need), nanos(go));
                    }
                    if plan.placement.straddles(chunk) {
                        push(What::Join(chunk), nanos(go), now);
                    } else if plan.segments.check > 0 {
                        push(What::Check(chunk), nanos(go), now);
                    }
                }
            }
            previous = now;
        }
        self.passes += 1;
    }

    fn host(&mut self, what: HostSpan, from: Instant, to: Instant) {
        let (begin, end) = (self.clocks.on_device(from), self.clocks.on_device(to));
        self.spans.push(Span { what: What::Host(what), pass: self.passes, begin, end });
    }

    /// Frees the events.
    pub(crate) fn free<D: Device>(self, device: &D) {
        self.events.into_iter().for_each(|event| device.free_event(event));
    }

    /// The collected trace, with names.
    pub(crate) fn finish(&mut self, parts: &Parts, device: &str) -> Trace {
        let Parts { graph, plan, program, .. } = parts;
        let placement = &plan.placement;
        let name = |launch: &Launch| {
            let node = graph.node(launch.node);
            let tile = placement.tiles[launch.tiles.clone()].first().map(|placed| placed.tile.rows.clone());
            LaunchName { node: node.name.clone(), op: node.op.name(), layer: node.layer, tile }
        };
        let weights = |chunk: &djinn_vmu::Chunk| {
            let parts = placement.tiles[chunk.tiles.clone()].iter().flat_map(|placed| &placed.tile.parts);
            let mut names: Vec<_> = parts.map(|part| graph.value(part.value).name.clone()).collect();
            names.dedup();
            names
        };
        Trace {
            model: graph.model.clone(),
            device: device.to_owned(),
            launches: program.launches.iter().map(name).collect(),
            chunks: placement.chunks.iter().map(weights).collect(),
            clock_error: self.clocks.error,
            passes: self.passes,
            spans: std::mem::take(&mut self.spans),
        }
    }
}

/// Ends a span of the host that began at `began`. Returns the present instant, at which the next begins.
pub(crate) fn lap(trace: &mut Option<Recorder>, what: HostSpan, began: Instant) -> Instant {
    let now = Instant::now();
    if let Some(trace) = trace {
        trace.host(what, began, now);
    }
    now
}

/// A timeline, with names.
#[derive(Clone, Debug)]
pub struct Trace {
    model: String,
    device: String,
    launches: Vec<LaunchName>,
    /// The weights of each chunk.
    chunks: Vec<Vec<String>>,
    clock_error: Duration,
    passes: u32,
    spans: Vec<Span>,
}

/// The work of a launch: a node, or one tile of it.
#[derive(Clone, Debug)]
struct LaunchName {
    node: String,
    op: &'static str,
    layer: Option<u32>,
    /// Output rows of its tile.
    tile: Option<Range<u64>>,
}

impl Trace {
    /// Number of whole passes.
    pub fn passes(&self) -> u32 {
        self.passes
    }

    /// The most by which the host's times may be off on the device's clock.
    pub fn clock_error(&self) -> Duration {
        self.clock_error
    }
}
