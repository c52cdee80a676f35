//! Collects what ran when, by the device's own timestamps, for a timeline.
//!
//! While a trace is wanted, the executor records an event at every boundary between launches; consecutive
//! launches share one, and every pass reuses them. Their times are read once a pass is over, so tracing adds
//! events to the compute stream and nothing else; without it not one call is made.

mod write;

use crate::Result;
use crate::parts::Parts;
use djinn_device::{Device, Event, Stream};
use djinn_vmu::{ChunkId, ChunkTimes, Launch, MemoryPlan, STALL};
use std::ops::Range;
use std::time::{Duration, Instant};

/// How often the clocks are compared; the closest comparison counts.
const COMPARISONS: usize = 8;

/// Nanoseconds on the device's clock; negative before its origin.
type Nanos = i64;

/// A point on the compute stream, by what was enqueued just before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// The pass's inputs.
    Begin,
    /// The wait for the next streamed chunk, and what makes it ready for use.
    Acquired,
    /// A launch of the program, with the rows that it computes.
    Launch { index: usize, rows: u32 },
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
    /// A launch of the program runs.
    Launch { index: usize, rows: u32 },
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
    /// Begins to collect. The model was loaded from the first instant to the second.
    pub(crate) fn new<D: Device>(device: &D, compute: Stream, loaded: [Instant; 2]) -> Result<Self> {
        let clocks = Clocks::compare(device, compute)?;
        let mut recorder =
            Recorder { clocks, events: Vec::new(), marks: Vec::new(), passes: 0, spans: Vec::new() };
        let [began, ended] = loaded;
        recorder.host(HostSpan::Load, began, ended);
        Ok(recorder)
    }

    /// Spans so far.
    pub(crate) fn spans(&self) -> usize {
        self.spans.len()
    }

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

    /// What was collected, with the names for it.
    pub(crate) fn finish(self, parts: &Parts, device: &str) -> Trace {
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
            spans: self.spans,
        }
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
    launches: Vec<LaunchName>,
    /// The weights of each chunk.
    chunks: Vec<Vec<String>>,
    clock_error: Duration,
    passes: u32,
    spans: Vec<Span>,
}

/// What a launch computes: a node, or one tile of it.
#[derive(Clone, Debug)]
struct LaunchName {
    node: String,
    op: &'static str,
    layer: Option<u32>,
    /// Output rows of its tile of weights.
    tile: Option<Range<u64>>,
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
