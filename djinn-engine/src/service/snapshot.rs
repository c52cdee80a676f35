//! A snapshot of a service's state and counters, for monitoring.
//!
//! Steps and copies are counted as they end. All else is collected on request.

use super::{Service, TraceProgress};
use crate::debug::{Debugger, PausedAt};
use crate::{DeviceTimes, StepCounts};
use djinn_device::Ops;
use djinn_scheduler::{Residency, SessionId, SessionReport, State};
use djinn_vmu::{Placement, Segments, SwapStats};

/// Parts into which [`WeightPlaces::resident`] divides the weights.
const PARTS: usize = 64;

/// A service's sessions, pages and device times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Sessions that compute, with pages on the device.
    pub running: usize,
    /// Sessions that could compute, and wait for pages.
    pub waiting: usize,
    /// Sessions between turns, or held by their client.
    pub parked: usize,
    /// KV pages of the device.
    pub device_pages: u32,
    /// Free KV pages of the device.
    pub device_free: u32,
    /// KV pages of the host.
    pub host_pages: u32,
    /// Free KV pages of the host.
    pub host_free: u32,
    /// The device's time since the service began.
    pub times: DeviceTimes,
}

impl Occupancy {
    fn of(state: &State) -> Self {
        let mut counted = Occupancy {
            device_pages: state.capacity().device_pages,
            device_free: state.device_free(),
            host_pages: state.capacity().host_pages,
            host_free: state.host_free(),
            ..Occupancy::default()
        };
        for session in state.sessions() {
            let count = match (session.is_ready(), session.residency()) {
                (true, Residency::Device) => &mut counted.running,
                (true, _) => &mut counted.waiting,
                (false, _) => &mut counted.parked,
            };
            *count += 1;
        }
        counted
    }
}

/// A service's state and counters.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Numbers of sessions and pages.
    pub occupancy: Occupancy,
    /// Free pages of the device whose prefixes can still be found.
    pub cached_pages: u32,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Tokens of a page.
    pub page_tokens: u32,
    /// Bytes of device memory by segment.
    pub segments: Segments,
    /// Bytes of weights in host memory, including copies of resident ones.
    pub host_weight_bytes: u64,
    /// Where the weights are.
    pub weights: WeightPlaces,
    /// Counts of steps.
    pub steps: StepCounts,
    /// Statistics of swaps.
    pub swaps: SwapStats,
    /// The progress of a trace, if there is one.
    pub trace: Option<TraceProgress>,
    /// Living sessions, in the order of their opening.
    pub sessions: Vec<SessionSnapshot>,
}

/// The places of weights.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WeightPlaces {
    /// All weights in order of use, in parts of equal bytes: the resident share of each, 0 to 1.
    pub resident: Vec<f32>,
    /// The most bytes that a pass streams.
    pub streamed_bytes: u64,
    /// Chunks that the ring can hold.
    pub ring_chunks: usize,
    /// Chunks in the ring or on their way that are not used yet.
    pub ring_ahead: usize,
}

impl WeightPlaces {
    fn new(placement: &Placement, chunks_ahead: u64) -> Self {
        let slots = placement.ring.slots();
        // Chunks in one turn around the ring.
        let turn = slots.windows(2).take_while(|pair| pair[0].offset < pair[1].offset).count() + 1;
        let ring_chunks = turn.min(slots.len());
        let ring_ahead = usize::try_from(chunks_ahead).unwrap_or(usize::MAX).min(ring_chunks);
        let total = (placement.resident_bytes() + placement.streamed_bytes()).max(1) as f64;
        let mut resident = vec![0.0; PARTS];
        let mut from = 0.0;
        for (chunk, slot) in placement.chunks.iter().zip(&placement.slots) {
            let to = from + chunk.bytes as f64 / total * PARTS as f64;
            for (part, share) in resident.iter_mut().enumerate().skip(from as usize) {
                let covered = to.min((part + 1) as f64) - from.max(part as f64);
                if covered <= 0.0 {
                    break;
                }
                *share += if slot.is_none() { covered as f32 } else { 0.0 };
            }
            from = to;
        }
        WeightPlaces { resident, streamed_bytes: placement.streamed_bytes(), ring_chunks, ring_ahead }
    }
}

/// A session and its pages.
#[derive(Clone, Debug)]
pub struct SessionSnapshot {
    /// The session.
    pub id: SessionId,
    /// Its state.
    pub report: SessionReport,
    /// Its pages on the device.
    pub device_pages: Vec<u32>,
    /// Number of its pages in host memory.
    pub host_pages: u32,
    /// Where it is stopped, if it is.
    pub paused_at: Option<PausedAt>,
}

impl<D: Ops> Service<D> {
    /// Numbers of sessions and pages, and the device's times.
    pub(super) fn occupancy(&self) -> Occupancy {
        Occupancy { times: self.batcher.device_times(), ..Occupancy::of(self.state()) }
    }

    /// The state and counters. It waits for nothing; a step may be under way.
    pub fn snapshot(&self) -> Snapshot {
        let (state, engine) = (self.state(), self.engine());
        let plan = engine.plan();
        let session = |id: SessionId| {
            let table = state.session(id)?.table();
            Some(SessionSnapshot {
                id,
                report: self.report(id)?,
                device_pages: table.device().to_vec(),
                host_pages: table.host().len() as u32,
                paused_at: self.paused_at(id),
            })
        };
        Snapshot {
            occupancy: self.occupancy(),
            cached_pages: state.pages().cached(),
            page_bytes: plan.kv.page_bytes(),
            page_tokens: plan.kv.page_tokens,
            segments: if engine.is_away() { Segments::default() } else { plan.segments },
            host_weight_bytes: plan.host_weight_bytes() + engine.copy_bytes(),
            weights: WeightPlaces::new(&plan.placement, engine.chunks_ahead()),
            steps: self.batcher.steps(),
            swaps: engine.swap_stats(),
            trace: self.trace_progress(),
            sessions: state.sessions().filter_map(|known| session(known.id)).collect(),
        }
    }
}
