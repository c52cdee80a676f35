//! Sessions as clients know them: scheduler, batcher, and a clock.
//!
//! [`Service`] is driven by calls on one thread. [`spawn`] gives it a thread of its own, and clients that talk to it
//! over channels. Sessions live over turns until they are closed or refused, or until their client is gone.

mod debugger;
mod generate;
mod lifecycle;
mod logits;
mod opening;
mod request;
mod sessions;
mod snapshot;
mod thread;
mod tracing;
mod transfer;

pub use generate::Generate;
pub use opening::{Happening, Opening};
pub use request::{Generated, Progress, Request, Stats};
pub use snapshot::{Occupancy, SessionSnapshot, Snapshot, WeightPlaces};
pub use thread::{Client, Inbox, Listener, LoadError, Pool, PoolModel, Residence, spawn};
pub use tracing::TraceProgress;
pub use transfer::{ExportedSession, IncomingSession, KvShape, OpenTurn, SessionImage};

use crate::{Batcher, Engine, NewToken, Result, Trace};
use debugger::Stops;
use djinn_device::Ops;
use djinn_scheduler::{EventLoop, Pumped, ScheduledSession, SessionId, State};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tracing::Tracing;
use transfer::Transfers;

/// Gets the result of a client's request, on the service's thread, where it must not wait.
type Answer<T> = Box<dyn FnOnce(Result<T>) + Send>;

/// Many sessions on one engine.
#[derive(Debug)]
pub struct Service<D: Ops> {
    core: EventLoop,
    batcher: Batcher<D>,
    origin: Instant,
    sessions: u64,
    /// Sessions whose client ended their turn, until the client is told.
    ended: BTreeSet<SessionId>,
    stops: Stops,
    keeps_transfers: bool,
    transfers: Transfers,
    tracing: Tracing,
    asked: Vec<logits::AskedLogits>,
}

impl<D: Ops> Service<D> {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// The scheduler's sessions and pages.
    pub fn state(&self) -> &State {
        self.core.scheduler().state()
    }

    /// The batcher.
    pub fn batcher(&self) -> &Batcher<D> {
        &self.batcher
    }

    /// The engine.
    pub fn engine(&self) -> &Engine<D> {
        self.batcher.engine()
    }

    /// See [`Engine::start_trace`]. No step may be under way.
    ///
    /// # Errors
    /// As there.
    pub fn start_trace(&mut self) -> Result<()> {
        self.batcher.engine_mut().start_trace()
    }

    /// See [`Engine::finish_trace`].
    pub fn finish_trace(&mut self) -> Option<Trace> {
        self.batcher.engine_mut().finish_trace()
    }

    /// Does everything that can be done now, and returns at once. Returns what happened to which session, in order.
    ///
    /// # Errors
    /// The engine failed: all sessions are lost.
    pub fn advance(&mut self) -> Result<Vec<(SessionId, Happening)>> {
        let mut happened = Vec::new();
        self.advance_transfers()?;
        while let Some(more) = self.pump()? {
            happened.extend(more);
        }
        Ok(happened)
    }

    /// One part of [`advance`](Self::advance): books a step or copies that ended, or plans and begins what comes next.
    /// `None` if there is nothing to do.
    ///
    /// # Errors
    /// As [`advance`](Self::advance).
    pub fn pump(&mut self) -> Result<Option<Vec<(SessionId, Happening)>>> {
        self.trace_between_steps();
        self.logits_between_steps()?;
        // Sessions whose client is gone get no more events.
        let members = self.core.under_way().flat_map(|plan| &plan.batch).map(ScheduledSession::session);
        let gone: BTreeSet<SessionId> = members.filter(|&id| !self.is_open(id)).collect();
        let now = self.now();
        let pumped = self.core.pump(&mut self.batcher, now);
        let pumped = pumped.map_err(|error| self.batcher.take_error().unwrap_or(error.into()))?;
        if !self.keeps_transfers {
            self.batcher.take_transfers();
        }
        let mut stopped = Vec::new();
        let mut happened: Vec<(SessionId, Happening)> = match pumped {
            None => return Ok(self.end_stops()),
            Some(Pumped::Copies(_)) => Vec::new(),
            Some(Pumped::Plan) => {
                let refused = self.core.plan().refused.iter();
                refused.map(|&(id, why)| (id, Happening::Refused(why))).collect()
            }
            Some(Pumped::Step(_, outcome)) => {
                stopped = outcome.stopped;
                let tokens = self.batcher.take_tokens().into_iter();
                let tokens = tokens.map(|NewToken { session, token, finish, logprobs }| {
                    let state = self.core.scheduler().state().session(session);
                    let reused = state.filter(|state| state.generated == 1).and_then(|state| state.reused);
                    (session, Happening::Token { token, finish, logprobs, reused })
                });
                let failures = self.batcher.take_failures().into_iter();
                let failures = failures.map(|(session, why)| (session, Happening::Failed(why)));
                tokens.chain(failures).filter(|(session, _)| !gone.contains(session)).collect()
            }
        };
        happened.extend(self.ended_turns());
        self.note_stops(&stopped, &mut happened);
        Ok(Some(happened))
    }

    /// The turns that their clients ended and that are over, once for each.
    pub(super) fn ended_turns(&mut self) -> Vec<(SessionId, Happening)> {
        let state = self.core.scheduler().state();
        let mut over = Vec::new();
        self.ended.retain(|&id| match state.session(id).filter(|session| !session.is_ending()) {
            Some(session) if session.phase.is_ready() => true,
            Some(_) => {
                over.push((id, Happening::TurnEnded));
                false
            }
            None => false,
        });
        over
    }

    fn is_open(&self, id: SessionId) -> bool {
        self.state().session(id).is_some_and(|session| !session.is_ending())
    }

    /// How long nothing happens without a client's request. Call [`advance`](Self::advance) after it. Zero while the
    /// device works, `None` if there is nothing to wait for.
    pub fn idle_for(&self) -> Option<Duration> {
        let next = self.core.next_event(&self.batcher).map(|at| at.saturating_sub(self.now()));
        let imports = [self.transfers.idle_for(), self.transfers.lease_left(self.now())];
        [next, self.next_end_of_a_stop(), self.asked_in()].into_iter().chain(imports).flatten().min()
    }
}

#[cfg(test)]
mod tests;
