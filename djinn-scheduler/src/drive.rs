//! Runs a workload through the event loop, in simulated or real time.

mod clock;
mod run;
#[cfg(test)]
mod tests;

pub use clock::{Clock, Virtual, WallClock};

use crate::backend::Backend;
use crate::scheduler::Scheduler;
use crate::sim::{Oracle, Report, Workload};
use run::Run;
use std::time::Duration;

/// The length of a run, and its measured part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunSpan {
    /// Events before this time are not counted, while the machine fills.
    pub warm_up: Duration,
    /// The end. A workload may be over earlier.
    pub end: Duration,
}

/// Runs a workload through a scheduler and a backend until the span's end, or until nothing can happen. Open sessions
/// are then aborted, and work under way is awaited, so that the backend has its pages back.
///
/// Times are `clock`'s. With a [`WallClock`] clients act at their time, even while a step is under way. Latency counts
/// from the time in the workload, so a late driver shows as latency. `oracle` learns the ends of waits in advance, for
/// [`Belady`](crate::sim::Belady).
///
/// A backend that fails ends the run at once: [`Report::failure`] says why.
pub fn drive(
    scheduler: Scheduler,
    backend: &mut dyn Backend,
    clock: &mut dyn Clock,
    workload: &Workload,
    span: RunSpan,
    oracle: Option<&Oracle>,
) -> Report {
    let mut run = Run::new(scheduler, backend, clock, workload, span, oracle);
    run.until_the_end();
    run.close();
    run.report
}

/// [`drive`] in simulated time.
pub fn simulate(
    scheduler: Scheduler,
    mut backend: Box<dyn Backend>,
    workload: &Workload,
    span: RunSpan,
    oracle: Option<&Oracle>,
) -> Report {
    drive(scheduler, &mut *backend, &mut Virtual::default(), workload, span, oracle)
}
