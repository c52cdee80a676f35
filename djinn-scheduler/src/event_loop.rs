//! The serving loop, the only one: poll the backend, book what ended, plan, submit, and say when to poll again.

mod vacate;

use crate::backend::{Backend, Completion};
use crate::error::{Error, Result};
use crate::plan::{CopyOutcome, Outcome, Plan};
use crate::scheduler::Scheduler;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// A scheduler and the plans that its backend executes.
///
/// Clients act through [`scheduler_mut`](Self::scheduler_mut); [`pump`](Self::pump) then does the work that follows.
#[derive(Debug)]
pub struct EventLoop {
    scheduler: Scheduler,
    /// The latest plan.
    plan: Arc<Plan>,
    /// Plans with steps under way, in order. The second was made [ahead](Scheduler::schedule_ahead).
    under_way: VecDeque<Arc<Plan>>,
    /// Whether the plan is outdated by anything but a step that ended as foreseen.
    stale: bool,
    /// Whether the next plan must wait for the end of the step under way.
    waits: bool,
}

/// What a call of [`EventLoop::pump`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pumped {
    /// The step of a plan ended, and is booked.
    Step(Arc<Plan>, Outcome),
    /// Copies ended, and are booked.
    Copies(Vec<CopyOutcome>),
    /// A [plan](EventLoop::plan) was made, booked and begun.
    Plan,
}

impl EventLoop {
    /// A loop with nothing under way.
    pub fn new(scheduler: Scheduler) -> Self {
        let (plan, under_way) = (Arc::default(), VecDeque::new());
        EventLoop { scheduler, plan, under_way, stale: false, waits: false }
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

    /// Plans with steps under way, in order; two at most.
    pub fn under_way(&self) -> impl Iterator<Item = &Plan> {
        self.under_way.iter().map(|plan| &**plan)
    }

    /// Does one thing that can be done by `now`, and returns at once; `None` if there is nothing. Call it until it
    /// returns `None`, and again at [`next_event`](Self::next_event).
    ///
    /// # Errors
    /// [`Error::Backend`]: the backend is broken, and all work under way with it.
    pub fn pump(&mut self, backend: &mut dyn Backend, now: Duration) -> Result<Option<Pumped>> {
        let Completion { step, stopped, copies, failure } = backend.poll(now);
        if let Some(reason) = failure {
            return Err(Error::Backend { reason });
        }
        self.stale |= !copies.is_empty();
        if let Some(ended) = step {
            let plan = self.under_way.pop_front().expect("a step that ends was begun");
            let outcome = Outcome { ended, stopped, copies };
            self.stale |=
                self.under_way.is_empty() || !outcome.ended.is_empty() || !outcome.stopped.is_empty();
            self.waits = false;
            self.scheduler.on_completed(&plan, &outcome, now);
            return Ok(Some(Pumped::Step(plan, outcome)));
        }
        if !copies.is_empty() {
            self.scheduler.on_copied(&copies);
            return Ok(Some(Pumped::Copies(copies)));
        }
        let is_due = self.stale || self.plan.wake.is_some_and(|wake| wake <= now);
        let plan = match self.under_way.front() {
            None if is_due => Some(self.scheduler.schedule(now)),
            Some(before) if !is_due && !self.waits && self.under_way.len() == 1 => {
                // If there is none, it is tried again when the step has ended.
                self.waits = true;
                backend.takes_next().then(|| self.scheduler.schedule_ahead(before, now)).flatten()
            }
            _ => None,
        };
        let Some(plan) = plan else { return Ok(None) };
        backend.submit(&plan, self.scheduler.state(), now);
        (self.plan, self.stale, self.waits) = (Arc::new(plan), false, false);
        if !self.plan.batch.is_empty() {
            self.under_way.push_back(Arc::clone(&self.plan));
        }
        Ok(Some(Pumped::Plan))
    }

    /// When to pump next if no client acts before. A time in the past means to poll at once. `None` if nothing is
    /// under way or due.
    pub fn next_event(&self, backend: &dyn Backend) -> Option<Duration> {
        let stale = self.stale.then_some(Duration::ZERO);
        let wake = stale.or(self.plan.wake).filter(|_| self.under_way.is_empty());
        [backend.next_event(), wake].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests;
