//! What a service holds and has done, at a moment: for people who watch it.
//!
//! Steps and copies are counted as they end; all else is looked up when it is asked for.

use super::{Service, TraceProgress};
use crate::debug::{Debugger, PausedAt};
use crate::{DeviceTimes, StepCounts};
use djinn_device::Ops;
use djinn_scheduler::{Residency, SessionId, SessionReport, State};
use djinn_vmu::{Placement, Segments, SwapStats};

/// Parts into which [`WeightPlaces::resident`] divides the weights.
const PARTS: usize = 64;

/// What a service holds at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Sessions that compute, with pages on the device.
    pub running: usize,
    /// Sessions that would compute, and wait for pages.
    pub waiting: usize,
    /// Sessions between turns, or held by their client.
    pub parked: usize,
    /// KV pages of the device.
    pub device_pages: u32,
    /// Those that no session holds.
    pub device_free: u32,
    /// KV pages of the host.
    pub host_pages: u32,
    /// Those that no session holds.
    pub host_free: u32,
    /// How the device spent its time, since the service began.
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

/// What a service holds and has done so far, at a moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Sessions by what they do, and pages.
    pub occupancy: Occupancy,
    /// Pages of the device that no session holds, and whose prefixes can still be found.
    pub cached_pages: u32,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Tokens of a page.
    pub page_tokens: u32,
    /// Bytes of device memory by segment.
    pub segments: Segments,
    /// Bytes of weights in host memory, with copies of what is resident.
    pub host_weight_bytes: u64,
    /// Where the weights are.
    pub weights: WeightPlaces,
    /// What steps did.
    pub steps: StepCounts,
    /// What moving pages between device and host did.
    pub swaps: SwapStats,
    /// How far a trace is, if there is one.
    pub trace: Option<TraceProgress>,
    /// Sessions that live, in the order in which they were opened.
    pub sessions: Vec<SessionSnapshot>,
}

/// Where weights are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WeightPlaces {
    /// All weights in order of use, in parts of equal bytes: of each, the share that stays on the device, 0 to 1.
    pub resident: Vec<f32>,
    /// Bytes that cross the link in a pass, at most.
    pub streamed_bytes: u64,
    /// Chunks that the ring holds at a time.
    pub ring_chunks: usize,
    /// Those of them that are ahead of their use: there, or on their way.
    pub ring_ahead: usize,
}

impl WeightPlaces {
    fn new(placement: &Placement, chunks_ahead: u64) -> Self {
        let slots = placement.ring.slots();
        // The chunks of one turn around the ring.
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

/// A session at a moment, with its pages.
#[derive(Clone, Debug)]
pub struct SessionSnapshot {
    /// The session.
    pub id: SessionId,
    /// How it is.
    pub report: SessionReport,
    /// Its pages on the device.
    pub device_pages: Vec<u32>,
    /// The number of its pages in host memory.
    pub host_pages: u32,
    /// Where it is stopped, if it is.
    pub paused_at: Option<PausedAt>,
}

impl<D: Ops> Service<D> {
    /// Sessions by what they do, pages, and the device's times.
    pub(super) fn occupancy(&self) -> Occupancy {
        Occupancy { times: self.batcher.device_times(), ..Occupancy::of(self.state()) }
    }

    /// What it holds and has done so far. Nothing waits for it, and a step may be under way.
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
