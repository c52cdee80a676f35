//! Collects what ran when, by the device's own timestamps, for a timeline.
//!
//! While a trace is wanted, the executor records an event at every boundary between launches; consecutive
//! launches share one, and every pass reuses them. Their times are read once a pass is over, so tracing adds
//! events to the compute stream and nothing else; without it not one call is made.

mod write;

use crate::{Engine, Result};
use djinn_device::{Device, Event, Ops, Stream};
use djinn_srg::NodeId;
use djinn_vmu::{ChunkId, ChunkTimes, MemoryPlan, STALL};
use std::time::{Duration, Instant};

/// How often the clocks are compared; the closest comparison counts.
const COMPARISONS: usize = 8;

/// Nanoseconds on the device's clock; negative before its origin.
type Nanos = i64;

/// A launch: rows of one node's output, or one tile of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    pub(crate) node: NodeId,
    /// First and end row of the tile of weights.
    pub(crate) tile: Option<(u64, u64)>,
    pub(crate) rows: u32,
}

/// A point on the compute stream, by what was enqueued just before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// The pass's inputs.
    Begin,
    /// The wait for the next streamed chunk, and what makes it ready for use.
    Acquired,
    /// A launch.
    Launch(Launch),
}

/// What the host does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostSpan {
    Load,
    Upload,
    Enqueue,
    Wait,
    Sample,
}

/// What took some time, and so the track that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// A streamed chunk crosses the link; its last use ends at `done`.
    Copy { chunk: ChunkId, bytes: u64, done: Nanos },
    /// The compute stream waits for a chunk.
    Stall(ChunkId),
    /// The parts of a chunk that straddles the ring's wrap are joined.
    Join(ChunkId),
    /// A chunk is compared with its checksum.
    Check(ChunkId),
    /// An operation runs.
    Launch(Launch),
    /// The host works or waits.
    Host(HostSpan),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    what: What,
    /// Passes that ended before.
    pass: u32,
    begin: Nanos,
    end: Nanos,
}

/// An instant that both clocks know.
#[derive(Clone, Copy, Debug)]
struct Clocks {
    host: Instant,
    device: Nanos,
    /// By how much the two may be apart.
    error: Duration,
}

impl Clocks {
    /// Compares the clocks while the device is idle.
    fn compare<D: Device>(device: &D, stream: Stream) -> Result<Self> {
        let event = device.event()?;
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

    /// A host's instant on the device's clock.
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
    /// The boundaries of the pass that is running.
    marks: Vec<Mark>,
    passes: u32,
    spans: Vec<Span>,
}

impl Recorder {
    /// Records that what `mark` says was enqueued on `compute`.
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

    /// Reads the times of a pass that is over: `chunks` are those of its streamed chunks, in order of use.
    pub(crate) fn end_pass<D: Device>(
        &mut self,
        device: &D,
        plan: &MemoryPlan,
        mut chunks: impl Iterator<Item = ChunkTimes>,
    ) {
        let mut previous = 0;
        for (mark, &event) in std::mem::take(&mut self.marks).into_iter().zip(&self.events) {
            // A pass that is over has passed its events.
            let now = device.timestamp(event).map_or(previous, nanos);
            let mut push = |what, begin, end| self.spans.push(Span { what, pass: self.passes, begin, end });
            match mark {
                Mark::Begin => {}
                Mark::Launch(launch) => push(What::Launch(launch), previous, now),
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
}

/// Ends what the host did since `began`; gives the present instant, at which the next begins.
pub(crate) fn lap(trace: &mut Option<Recorder>, what: HostSpan, began: Instant) -> Instant {
    let now = Instant::now();
    if let Some(trace) = trace {
        trace.host(what, began, now);
    }
    now
}

/// What ran when, with the names for it.
#[derive(Clone, Debug)]
pub struct Trace {
    model: String,
    device: String,
    nodes: Vec<Node>,
    /// The weights of each chunk.
    chunks: Vec<Vec<String>>,
    clock_error: Duration,
    passes: u32,
    spans: Vec<Span>,
}

#[derive(Clone, Debug)]
struct Node {
    name: String,
    op: &'static str,
    layer: Option<u32>,
}

impl Trace {
    /// Passes that it covers, whole.
    pub fn passes(&self) -> u32 {
        self.passes
    }

    /// By how much times of the host may be off against those of the device.
    pub fn clock_error(&self) -> Duration {
        self.clock_error
    }
}

impl<D: Ops> Engine<D> {
    /// Collects times from now on, of whole passes; what was collected before is dropped. The loading of the
    /// model is told as well. Memory grows by some 50 bytes for each launch and each streamed chunk.
    ///
    /// # Errors
    /// If the device fails or has no more events.
    pub fn start_trace(&mut self) -> Result<()> {
        let clocks = Clocks::compare(&self.device, self.compute)?;
        let mut recorder =
            Recorder { clocks, events: Vec::new(), marks: Vec::new(), passes: 0, spans: Vec::new() };
        let [began, ended] = self.loaded;
        recorder.host(HostSpan::Load, began, ended);
        self.trace = Some(recorder);
        Ok(())
    }

    /// Whether times are being collected: every launch of a pass must then be made, not replayed.
    pub fn tracing(&self) -> bool {
        self.trace.is_some()
    }

    /// Ends the collection and gives what there is, also after a failure of the device, which it does not
    /// touch. `None` if none was started.
    pub fn finish_trace(&mut self) -> Option<Trace> {
        let Recorder { clocks, passes, spans, .. } = self.trace.take()?;
        let node = |node: &djinn_srg::Node| {
            let (name, op, layer) = (node.name.clone(), node.op.name(), node.layer);
            Node { name, op, layer }
        };
        let placement = &self.plan.placement;
        let weights = |chunk: &djinn_vmu::Chunk| {
            let parts = placement.tiles[chunk.tiles.clone()].iter().flat_map(|placed| &placed.tile.parts);
            let mut names: Vec<_> = parts.map(|part| self.graph.value(part.value).name.clone()).collect();
            names.dedup();
            names
        };
        Some(Trace {
            model: self.graph.model.clone(),
            device: self.device.info().name,
            nodes: self.graph.nodes.iter().map(node).collect(),
            chunks: placement.chunks.iter().map(weights).collect(),
            clock_error: clocks.error,
            passes,
            spans,
        })
    }
}
