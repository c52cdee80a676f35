//! Test beds: what executes the plans of a run, and what was seen of it.

use super::map::{Seen, Watched};
use super::results::StepShares;
use anyhow::Result;
use djinn_scheduler::sim::{Oracle, Profile, Report, RunSpan, SimBackend, Workload};
use djinn_scheduler::{Capacity, Scheduler, Virtual, drive};
use djinn_vmu::Direction;

/// A copy of a session's pages, in seconds by the device's clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Swap {
    pub(super) direction: Direction,
    pub(super) bytes: u64,
    /// In which bytes moved.
    pub(super) moved_s: f64,
    /// From the call to the first byte.
    pub(super) first_byte_s: f64,
    /// From the session's signal to the call; only of copies out of sessions that wait.
    pub(super) submit_s: Option<f64>,
}

/// What one run left.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) report: Report,
    pub(super) seen: Seen,
    /// Copies within the measured span that the device timed.
    pub(super) swaps: Vec<Swap>,
    /// How a device's steps followed one another; `None` if they were simulated, or the device has no clock.
    pub(super) steps: Option<StepShares>,
}

/// What runs are driven on.
pub(super) trait Bed {
    fn capacity(&self) -> Capacity;

    fn run(
        &mut self,
        scheduler: Scheduler,
        workload: &Workload,
        span: RunSpan,
        oracle: &Oracle,
    ) -> Result<Ran>;
}

/// A table of times.
#[derive(Debug)]
pub(super) struct SimBed {
    pub(super) capacity: Capacity,
    pub(super) profile: Profile,
}

impl Bed for SimBed {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn run(
        &mut self,
        scheduler: Scheduler,
        workload: &Workload,
        span: RunSpan,
        oracle: &Oracle,
    ) -> Result<Ran> {
        let mut backend = Watched::new(SimBackend::new(self.profile.clone())?, span);
        let report = drive(scheduler, &mut backend, &mut Virtual::default(), workload, span, Some(oracle));
        let (_, seen) = backend.into_parts();
        Ok(Ran { report, seen, swaps: vec![], steps: None })
    }
}
