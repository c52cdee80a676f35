//! The event loop: clients, the scheduler and a backend, in simulated time or in the machine's.

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

/// What is run, and what of it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunSpan {
    /// Nothing counts before: the machine fills.
    pub warm_up: Duration,
    /// The end. A workload that ends is over earlier.
    pub end: Duration,
}

/// Runs a workload through a scheduler and a backend until the span's end, or until nothing is left to happen.
/// What is open then is aborted, and what is under way is waited for, so that the backend has its pages back.
///
/// Times are `clock`'s. With a [`WallClock`] clients act when their time has come, also while a step is under
/// way; they ask when the workload says, so that a driver that is late counts as latency. `oracle` learns the
/// ends of waits before they come, for [`Belady`](crate::sim::Belady).
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
