//! Clients' requests: open sessions, give them turns and hints, end them.

use super::{Opening, Service};
use crate::{Error, Origin, Result, Turn};
use djinn_device::Ops;
use djinn_scheduler::{Arrival, SessionEvent, SessionId, SessionReport, Signal, SignalAnswer};
use djinn_vmu::Transfer;

impl<D: Ops> Service<D> {
    /// Continues until the session is in no step. Its turn may end before its step does.
    pub(super) fn end_steps(&mut self, session: Option<SessionId>) -> Result<()> {
        let computes = |service: &Self, id| service.state().session(id).is_some_and(|s| s.in_step > 0);
        while session.is_some_and(|id| computes(self, id)) {
            self.go_on()?;
        }
        Ok(())
    }

    /// Opens a session.
    ///
    /// # Errors
    /// Bad tokens or sampling, a turn that exceeds the limit, or a full machine: [`djinn_scheduler::Error::Refused`].
    pub fn open(&mut self, opening: Opening) -> Result<SessionId> {
        let Opening { turn, priority, limit, mut origin, debug, .. } = opening;
        let (parent, forked) = match &origin {
            Origin::Fork(parent) => {
                let tokens = self.batcher.tokens(*parent).ok_or(Error::NoSession { session: parent.0 })?;
                (Some(*parent), tokens.len() as u64)
            }
            Origin::Own | Origin::Salt(_) => (None, 0),
        };
        let id = SessionId(self.sessions + 1);
        let prompt = forked + turn.tokens.len() as u64;
        let context = self.batcher.engine().context();
        let limit = limit.unwrap_or(context).min(context);
        let arrival = Arrival { id, priority, prompt, max_tokens: turn.max_tokens, limit };
        self.batcher.check(&turn)?;
        self.check_setup(&debug, parent)?;
        let salted = debug.salt(&mut origin);
        let now = self.now();
        let scheduler = self.core.scheduler_mut();
        match origin {
            Origin::Fork(parent) => scheduler.fork(parent, &arrival, now)?,
            Origin::Own | Origin::Salt(_) => scheduler.arrive(&arrival, now)?,
        }
        self.batcher.open(id, turn, origin)?;
        if !debug.is_empty() {
            self.batcher.set_up(id, debug, salted);
        }
        self.core.scheduler_mut().name_pages(id, self.batcher.page_names(id));
        self.sessions = id.0;
        Ok(id)
    }

    /// Begins a session's next turn.
    ///
    /// # Errors
    /// Bad tokens or sampling, a session that is unknown or busy, or a turn that exceeds its limit.
    pub fn turn(&mut self, id: SessionId, turn: Turn) -> Result<()> {
        self.batcher.check(&turn)?;
        // The scheduler does not count the new tokens, nor one that was chosen but not computed.
        let tokens = self.batcher.tokens(id).map_or(0, <[u32]>::len) + turn.tokens.len();
        let known = self.state().session(id).map_or(0, |session| session.context + session.prompt);
        let prompt = (tokens as u64).saturating_sub(known);
        let now = self.now();
        let event = SessionEvent::NextTurn { prompt, max_tokens: turn.max_tokens };
        self.core.scheduler_mut().event(id, event, now)?;
        self.batcher.extend(id, turn)?;
        self.core.scheduler_mut().name_pages(id, self.batcher.page_names(id));
        Ok(())
    }

    /// Begins a session's next turn. Its tokens are the whole conversation: the session is [rolled
    /// back](Self::rollback) to the common beginning. Returns how many tokens need not be computed.
    ///
    /// # Errors
    /// As [`turn`](Self::turn).
    pub fn prompt(&mut self, id: SessionId, mut turn: Turn) -> Result<u64> {
        self.batcher.check(&turn)?;
        let known = self.batcher.tokens(id).ok_or(Error::NoSession { session: id.0 })?;
        // A turn that is refused costs the session nothing.
        self.core.scheduler().check_turn(id, turn.tokens.len() as u64, turn.max_tokens)?;
        // The last token is always computed, since its logits are wanted.
        let old = &turn.tokens[..turn.tokens.len() - 1];
        let same = known.iter().zip(old).take_while(|(a, b)| a == b).count();
        let kept = if same < known.len() { self.rollback(id, same as u64)? as usize } else { same };
        turn.tokens.drain(..kept);
        self.turn(id, turn)?;
        // Drop the end of the previous turn.
        self.ended.remove(&id);
        Ok(self.state().session(id).map_or(0, |session| session.context))
    }

    /// Opens a session with all tokens of another one, which waits for its first turn. It shares the pages on the
    /// device; they are copied before either session writes to them. Pages elsewhere are computed again.
    ///
    /// # Errors
    /// A session that is unknown or has a full context, or a full machine.
    pub fn fork(&mut self, parent: SessionId) -> Result<SessionId> {
        let tokens = self.batcher.tokens(parent).ok_or(Error::NoSession { session: parent.0 })?;
        let (count, last) = (tokens.len() as u64, tokens.last().copied().ok_or(Error::EmptyPrompt)?);
        // A turn that ends before any of it is computed.
        let turn = Turn { tokens: vec![last], max_tokens: 1, ..Turn::default() };
        let id = self.open(Opening { turn, origin: Origin::Fork(parent), ..Opening::default() })?;
        self.event(id, SessionEvent::EndTurn)?;
        self.ended.remove(&id);
        self.rollback(id, count)?;
        Ok(id)
    }

    /// Whether a session's turn was ended while its step is still under way.
    pub(super) fn is_ending_turn(&self, id: SessionId) -> bool {
        self.ended.contains(&id) && self.state().session(id).is_some_and(|session| session.is_ready())
    }

    /// Sets a session's priority; lower values go first.
    pub fn set_priority(&mut self, id: SessionId, priority: i32) {
        self.core.scheduler_mut().set_priority(id, priority);
    }

    /// A session's state; `None` if it is gone.
    pub fn report(&self, id: SessionId) -> Option<SessionReport> {
        let report = self.core.scheduler().report(id)?;
        // The scheduler does not count a token that was chosen but not computed.
        let tokens = self.batcher.tokens(id).map_or(report.tokens, |tokens| tokens.len() as u64);
        Some(SessionReport { tokens, ..report })
    }

    /// Swaps of sessions that ended since the last call, with their times. The first call returns none.
    pub fn take_transfers(&mut self) -> Vec<(SessionId, Transfer)> {
        self.keeps_transfers = true;
        self.batcher.take_transfers()
    }

    /// Takes a scheduling hint, and returns its effect.
    pub fn signal(&mut self, id: SessionId, signal: Signal) -> SignalAnswer {
        let now = self.now();
        self.core.scheduler_mut().signal(id, signal, now)
    }

    /// Holds or resumes a session, or ends its turn or the session, at any time and without effect on others. Use
    /// [`turn`](Self::turn) for turns and [`rollback`](Self::rollback) to drop tokens.
    ///
    /// # Errors
    /// An unknown session, or an event that is invalid in its phase.
    pub fn event(&mut self, id: SessionId, event: SessionEvent) -> Result<()> {
        let now = self.now();
        self.core.scheduler_mut().event(id, event, now)?;
        if event == SessionEvent::EndTurn && self.batcher.end_turn(id) {
            self.ended.insert(id);
        }
        let is_over = matches!(event, SessionEvent::EndTurn | SessionEvent::Resume);
        if is_over && self.leave_stop(id) && event == SessionEvent::EndTurn {
            self.resume_in_scheduler(id);
        }
        Ok(())
    }

    /// Drops a waiting session's tokens after the first `tokens`, and returns how many it keeps. They may be fewer: a
    /// prefill chunk goes as a whole if its arithmetic depends on its length.
    ///
    /// # Errors
    /// A session that is unknown or busy.
    pub fn rollback(&mut self, id: SessionId, tokens: u64) -> Result<u64> {
        let kept = self.batcher.tokens_to_keep(id, tokens)?;
        self.event(id, SessionEvent::Rollback { tokens: kept })?;
        self.batcher.truncate(id, kept);
        Ok(kept)
    }

    /// Ends a session and waits until its pages are free.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn close(&mut self, session: Option<SessionId>) -> Result<()> {
        if let Some(id) = session.filter(|&id| self.state().session(id).is_some()) {
            self.event(id, SessionEvent::End)?;
            self.advance()?;
            self.end_steps(Some(id))?;
        }
        Ok(())
    }
}
