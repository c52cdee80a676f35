//! The serving loop, the only one: poll the backend, book what ended, plan, submit, know when to look again.

use crate::backend::{Backend, Completion};
use crate::error::{Error, Result};
use crate::plan::{CopyOutcome, Outcome, Plan};
use crate::scheduler::Scheduler;
use std::time::Duration;

/// A scheduler and the plan that its backend carries out.
///
/// Clients act through [`scheduler_mut`](Self::scheduler_mut); [`pump`](Self::pump) does what follows from it.
#[derive(Debug)]
pub struct EventLoop {
    scheduler: Scheduler,
    plan: Plan,
    /// The plan's step is under way.
    running: bool,
    /// Something changed since the plan was made.
    stale: bool,
}

/// What a call of [`EventLoop::pump`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pumped {
    /// The step of the [latest plan](EventLoop::plan) ended, and is booked.
    Step(Outcome),
    /// Copies ended, and are booked.
    Copies(Vec<CopyOutcome>),
    /// A [plan](EventLoop::plan) was made, booked and begun.
    Plan,
}

impl EventLoop {
    /// A loop with nothing under way.
    pub fn new(scheduler: Scheduler) -> Self {
        EventLoop { scheduler, plan: Plan::default(), running: false, stale: false }
    }

    /// The scheduler.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// The scheduler, for clients to act on: the next call of [`pump`](Self::pump) plans anew if no step is under way.
    pub fn scheduler_mut(&mut self) -> &mut Scheduler {
        self.stale = true;
        &mut self.scheduler
    }

    /// The latest plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Does one thing that can be done by `now`, and returns at once; `None` if there is none. Call it until then, and
    /// again at [`next_event`](Self::next_event).
    ///
    /// # Errors
    /// [`Error::Backend`]: the backend is broken, and so is everything under way.
    pub fn pump(&mut self, backend: &mut dyn Backend, now: Duration) -> Result<Option<Pumped>> {
        let Completion { step, stopped, copies, failure } = backend.poll(now);
        if let Some(reason) = failure {
            return Err(Error::Backend { reason });
        }
        self.stale |= step.is_some() || !copies.is_empty();
        if let Some(ended) = step {
            self.running = false;
            let outcome = Outcome { ended, stopped, copies };
            self.scheduler.on_completed(&self.plan, &outcome, now);
            return Ok(Some(Pumped::Step(outcome)));
        }
        if !copies.is_empty() {
            self.scheduler.on_copied(&copies);
            return Ok(Some(Pumped::Copies(copies)));
        }
        let is_due = self.stale || self.plan.wake.is_some_and(|wake| wake <= now);
        if self.running || !is_due {
            return Ok(None);
        }
        self.plan = self.scheduler.schedule(now);
        backend.submit(&self.plan, self.scheduler.state(), now);
        (self.running, self.stale) = (!self.plan.batch.is_empty(), false);
        Ok(Some(Pumped::Plan))
    }

    /// When to pump next, unless a client acts before: a time that has passed where only asking tells. `None` if
    /// nothing is under way or due.
    pub fn next_event(&self, backend: &dyn Backend) -> Option<Duration> {
        let stale = self.stale.then_some(Duration::ZERO);
        let wake = stale.or(self.plan.wake).filter(|_| !self.running);
        [backend.next_event(), wake].into_iter().flatten().min()
    }
}
