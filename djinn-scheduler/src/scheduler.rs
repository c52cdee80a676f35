//! The scheduler: state, booking of plans, answers to signals.

mod incoming;
#[cfg(test)]
mod tests;

use crate::answer::{SessionReport, SignalAnswer, SignalOutcome};
use crate::error::{Error, Result};
use crate::phase::{EventKind, Next, Phase, transition};
use crate::plan::{CopyOutcome, Move, Outcome, Plan, Refusal, ScheduledSession, TurnEnd};
use crate::policy::{Decision, Verdict, View, Why};
use crate::schedule::{Parts, follow, schedule};
use crate::session::{Arrival, Session, SessionId, Wait};
use crate::signal::Signal;
use crate::state::{Capacity, State};
use djinn_pages::{PageCopies, PageName, Pages, Residency};
use std::time::Duration;

/// A client's request about a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// The next turn.
    NextTurn {
        /// Tokens to prefill, at least 1. They include the last token of the previous turn, which was generated but
        /// not computed.
        prompt: u64,
        /// Tokens that the turn may generate, at least 1.
        max_tokens: u64,
    },
    /// Drops the latest tokens of a waiting session. Its pages are freed if a copy is under way.
    Rollback {
        /// The number of first tokens that stay.
        tokens: u64,
    },
    /// Ends the turn, now or with the session's present step, as its last token would. The session then waits.
    EndTurn,
    /// Holds the session. Its present step still counts.
    Pause,
    /// Resumes it.
    Resume,
    /// The client is gone.
    Abort,
    /// The session is closed.
    End,
}

impl SessionEvent {
    fn kind(&self) -> EventKind {
        match self {
            SessionEvent::NextTurn { .. } => EventKind::NextTurn,
            SessionEvent::Rollback { .. } => EventKind::Rollback,
            SessionEvent::EndTurn => EventKind::EndTurn,
            SessionEvent::Pause => EventKind::Pause,
            SessionEvent::Resume => EventKind::Resume,
            SessionEvent::Abort => EventKind::Abort,
            SessionEvent::End => EventKind::End,
        }
    }
}

/// Sessions, pages, and the parts that decide about them. Times count from any fixed origin and never go back.
#[derive(Debug)]
pub struct Scheduler {
    state: State,
    parts: Parts,
}

impl Scheduler {
    /// A scheduler for an empty machine.
    pub fn new(capacity: Capacity, parts: Parts) -> Result<Self> {
        if let Some(what) = parts.cost.problem() {
            let remedy = "give measured rates above 0";
            return Err(Error::Machine { what: format!("the cost model's {what}"), remedy });
        }
        Ok(Scheduler { state: State::new(capacity)?, parts })
    }

    /// The sessions and pages.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The pages, for work without a session. It must free them before the next plan.
    pub fn pages_mut(&mut self) -> &mut Pages {
        &mut self.state.pages
    }

    /// The parts that decide.
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Adds a session with its first turn.
    pub fn arrive(&mut self, arrival: &Arrival, now: Duration) -> Result<()> {
        self.arrive_from(None, arrival, now)
    }

    /// Adds a session whose prompt begins with all tokens of `parent`. It shares that session's pages on the device,
    /// and needs no room until it writes.
    pub fn fork(&mut self, parent: SessionId, arrival: &Arrival, now: Duration) -> Result<()> {
        self.arrive_from(Some(parent), arrival, now)
    }

    /// Names the contents of a session's full pages; pages with equal names are shared. The names cover all its tokens
    /// so far, including those of its next turn.
    pub fn name_pages(&mut self, id: SessionId, names: Vec<PageName>) {
        if let Some(session) = self.state.sessions.get_mut(&id) {
            session.names = names;
        }
    }

    /// Sets a session's priority.
    pub fn set_priority(&mut self, id: SessionId, priority: i32) {
        if let Some(session) = self.state.sessions.get_mut(&id) {
            session.priority = priority;
        }
    }

    /// A session's present state; `None` if it does not exist.
    pub fn report(&self, id: SessionId) -> Option<SessionReport> {
        let session = self.state.session(id).filter(|session| !session.ending)?;
        let pages = self.parts.keeper.pages(self.state.capacity(), session.context);
        let named = |wait: &Wait| wait.tool.clone().filter(|tool| tool != Wait::IDLE);
        Some(SessionReport {
            phase: session.phase,
            tool: session.wait.as_ref().and_then(named),
            tokens: session.context + session.prompt,
            computed: session.context,
            kv_bytes: self.parts.cost.bytes(pages),
            residency: session.residency(),
            eta_restore_ms: self.restore_ms(session, Decision::Keep),
        })
    }

    /// Milliseconds until the session's pages are on the device once they are wanted, after `decision`.
    fn restore_ms(&self, session: &Session, decision: Decision) -> u64 {
        let cost = &self.parts.cost;
        let pages = self.parts.keeper.pages(self.state.capacity(), session.context);
        let eta = match (session.residency(), decision) {
            (Residency::Leaving, _) => cost.round_trip(pages),
            (Residency::Host | Residency::Arriving, _) | (_, Decision::Swap) => cost.swap_in(pages),
            (Residency::Gone, _) | (_, Decision::Discard) => cost.recompute(session.context + session.prompt),
            (Residency::Device, Decision::Keep) => Duration::ZERO,
        };
        u64::try_from(eta.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }

    fn arrive_from(&mut self, parent: Option<SessionId>, arrival: &Arrival, now: Duration) -> Result<()> {
        let Arrival { id, prompt, max_tokens, limit, .. } = *arrival;
        if self.state.session(id).is_some() {
            return Err(Error::Exists { session: id });
        }
        check_turn(id, 0, prompt, max_tokens, limit)?;
        let pages = self.parts.keeper.pages(self.state.capacity(), limit);
        let device_pages = self.state.capacity().device_pages;
        let off = |s: &&Session| s.is_ready() && matches!(s.residency(), Residency::Gone | Residency::Host);
        let queued = self.state.sessions().filter(off).count();
        let why = match () {
            () if pages > device_pages => Refusal::TooLarge { pages, device_pages },
            () if queued >= self.parts.rules.max_queue => Refusal::QueueFull { queued },
            () => {
                let mut session = Session::new(arrival, now);
                if let Some(parent) = parent {
                    self.state.fork(parent, &mut session);
                }
                self.state.sessions.insert(id, session);
                return Ok(());
            }
        };
        Err(Error::Refused { session: id, why })
    }

    /// Checks a turn with whose prompt a session has `tokens` tokens.
    ///
    /// # Errors
    /// [`Error::TooLong`] or [`Error::EmptyTurn`], as the turn itself would be refused; [`Error::Missing`].
    pub fn check_turn(&self, id: SessionId, tokens: u64, max_tokens: u64) -> Result<()> {
        let session = self.state.session(id).ok_or(Error::Missing { session: id })?;
        check_turn(id, 0, tokens, max_tokens, session.limit)
    }

    /// Applies an event to a session.
    pub fn event(&mut self, id: SessionId, event: SessionEvent, now: Duration) -> Result<()> {
        let session = self.state.sessions.get_mut(&id).filter(|session| !session.ending);
        let session = session.ok_or(Error::Missing { session: id })?;
        let kind = event.kind();
        let allowed = transition(Some(session.phase), kind) != Next::Rejected;
        if let (SessionEvent::NextTurn { prompt, max_tokens }, true) = (event, allowed) {
            check_turn(id, session.context + session.prompt, prompt, max_tokens, session.limit)?;
        }
        if event == SessionEvent::EndTurn && session.in_step > 0 && !session.surplus {
            // A step that was begun ahead does not count.
            session.surplus = session.ahead && session.in_step == 1;
            session.turn_ends = !session.surplus;
            if session.turn_ends {
                return Ok(());
            }
        }
        let phase = session.phase;
        match (session.apply(kind), event) {
            (Next::Ended, _) => self.state.remove(id),
            (Next::Rejected, _) => return Err(Error::NotNow { session: id, phase, event: kind }),
            (_, SessionEvent::NextTurn { prompt, max_tokens }) => {
                if let Some(wait) = session.wait.take() {
                    self.parts.policy.observe(&wait, wait.elapsed(now));
                }
                session.prompt += prompt;
                (session.max_tokens, session.generated, session.reused) = (max_tokens, 0, None);
                session.ready_since = now;
                (session.returned, session.deferred) = (false, None);
            }
            (_, SessionEvent::Rollback { tokens }) => {
                self.state.roll_back(id, tokens, self.parts.policy.reserves());
            }
            (Next::To(_) | Next::Later(_), SessionEvent::EndTurn) => self.begin_idling(id, now),
            (Next::Back, _) => self.resume(id, now),
            _ => {}
        }
        Ok(())
    }

    fn resume(&mut self, id: SessionId, now: Duration) {
        let session = self.session_mut(id);
        if session.phase.is_ready() {
            session.ready_since = now;
        } else {
            self.apply_deferred(id, now);
        }
    }

    /// Applies a client's hint, and answers it.
    pub fn signal(&mut self, id: SessionId, signal: Signal, now: Duration) -> SignalAnswer {
        let found = self.state.session(id).filter(|session| !session.ending);
        let Some(session) = found else {
            return SignalAnswer {
                outcome: SignalOutcome::Missing,
                decision: Decision::Discard,
                why: Why::Missing,
                kv_bytes: 0,
                residency: Residency::Gone,
                eta_restore_ms: 0,
            };
        };
        if let Signal::IoWait { estimated_resume_ms: Some(0), .. } = signal {
            let verdict = self.verdict(id, now);
            return SignalAnswer {
                why: Why::NoTime,
                ..self.answer(id, SignalOutcome::Rejected, verdict, now)
            };
        }
        let (outcome, verdict) = match transition(Some(session.phase), signal.kind()) {
            Next::Deferred => {
                self.session_mut(id).deferred = Some(signal);
                (SignalOutcome::Deferred, self.verdict(id, now))
            }
            Next::To(_) | Next::Stay => self.apply_signal(id, signal, now),
            Next::Later(_) | Next::Rejected | Next::Back | Next::Ended | Next::Missing => {
                (SignalOutcome::Rejected, self.verdict(id, now))
            }
        };
        self.answer(id, outcome, verdict, now)
    }

    /// Changes a session's wait as its client says. Returns the policy's verdict. The session computes or waits, but
    /// is not paused.
    fn apply_signal(
        &mut self,
        id: SessionId,
        signal: Signal,
        now: Duration,
    ) -> (SignalOutcome, Option<Verdict>) {
        let max_wait = self.parts.rules.max_wait;
        let session = self.session_mut(id);
        session.apply(signal.kind());
        if session.phase.is_ready() {
            return (SignalOutcome::Accepted, None);
        }
        let since = session.wait.as_ref().map_or(now, |wait| wait.since);
        let elapsed = now.saturating_sub(since);
        let mut outcome = SignalOutcome::Accepted;
        let (tool, expected) = match signal {
            Signal::IoWait { tool, estimated_resume_ms } => {
                let expected = estimated_resume_ms.map(Duration::from_millis).map(|told| {
                    if told > max_wait {
                        outcome = SignalOutcome::Clipped;
                    }
                    elapsed + told.min(max_wait)
                });
                (tool, expected)
            }
            Signal::Compute => (session.wait.take().and_then(|wait| wait.tool), Some(elapsed)),
            Signal::Idle => (Some(Wait::IDLE.to_owned()), None),
        };
        session.wait = Some(Wait { tool, since, expected });
        (outcome, self.begin_wait(id, now))
    }

    /// Gives a session whose wait begins, or is better known, the lease that the policy wants. Returns the policy's
    /// verdict.
    fn begin_wait(&mut self, id: SessionId, now: Duration) -> Option<Verdict> {
        let verdict = self.verdict(id, now);
        let keeps = verdict.filter(|verdict| verdict.decision == Decision::Keep);
        let lease = keeps.map_or(Duration::ZERO, |verdict| verdict.lease);
        let max_lease = self.parts.rules.max_lease;
        let session = self.session_mut(id);
        let end = session.quiet_since() + max_lease;
        session.lease_until = (now + lease.min(max_lease)).min(end);
        session.returned = false;
        verdict
    }

    /// The policy's verdict on a session that waits on the device.
    fn verdict(&self, id: SessionId, now: Duration) -> Option<Verdict> {
        let session = self.state.session(id)?;
        let waits = !session.phase.is_ready() && session.residency() == Residency::Device;
        waits.then(|| self.parts.policy.verdict(&self.view(now), session))
    }

    fn view(&self, now: Duration) -> View<'_> {
        let (state, host_free) = (&self.state, self.state.host_free());
        View { state, cost: &self.parts.cost, now, short: state.short, host_free }
    }

    fn answer(
        &self,
        id: SessionId,
        outcome: SignalOutcome,
        verdict: Option<Verdict>,
        now: Duration,
    ) -> SignalAnswer {
        let session = &self.state.sessions[&id];
        let pages = self.parts.keeper.pages(self.state.capacity(), session.context);
        let (decision, why) = match (verdict, session.residency()) {
            (Some(verdict), _) => {
                let placed = self.parts.keeper.place(&self.view(now), session, verdict.decision, false);
                let blocked = placed == Decision::Keep && verdict.decision != Decision::Keep;
                (placed, if blocked { Why::HostFull } else { verdict.why })
            }
            (None, Residency::Host | Residency::Leaving) => (Decision::Swap, Why::NotOnDevice),
            (None, Residency::Gone) if !session.phase.is_ready() => (Decision::Discard, Why::NotOnDevice),
            (None, _) if session.phase.is_ready() => (Decision::Keep, Why::Computing),
            (None, _) => (Decision::Keep, Why::NotOnDevice),
        };
        SignalAnswer {
            outcome,
            decision,
            why,
            kv_bytes: self.parts.cost.bytes(pages),
            residency: session.residency(),
            eta_restore_ms: self.restore_ms(session, decision),
        }
    }

    /// Decides the next step and books it. Call it when no step is under way.
    ///
    /// # Panics
    /// If a step is under way.
    pub fn schedule(&mut self, now: Duration) -> Plan {
        let mut plan = schedule(&self.state, &self.parts, now);
        self.state.begin(&mut plan, self.parts.rules.lease, now);
        for &id in &plan.discard {
            self.state_lost(id);
        }
        plan
    }

    /// Takes all sessions off the device, whose contents will be lost: to the host while there is room, the latest
    /// used first, or all discarded if `gives_up`. What finds no room is computed again when it is wanted. Call it
    /// when no step is under way, and plan nothing else before its copies have ended.
    ///
    /// # Panics
    /// If a step is under way.
    pub fn vacate(&mut self, gives_up: bool, now: Duration) -> Plan {
        assert!(self.state.step().is_none(), "plan {:?} is still under way", self.state.step());
        let here = |s: &&Session| s.residency() == Residency::Device && !s.ending;
        let mut leaving: Vec<&Session> = self.state.sessions().filter(here).collect();
        leaving.sort_by_key(|s| (std::cmp::Reverse(s.last_use), s.id));
        let mut plan = Plan { id: self.state.plans + 1, ..Plan::default() };
        for &Session { id, context, .. } in leaving {
            let pages = self.parts.keeper.pages(self.state.capacity(), context);
            match gives_up || context == 0 {
                true => plan.discard.push(id),
                false => plan.swap_out.push(Move { session: id, pages, way: PageCopies::default() }),
            }
        }
        self.state.begin(&mut plan, self.parts.rules.lease, now);
        for &id in &plan.discard {
            self.state_lost(id);
        }
        plan
    }

    /// Decides and books the step after that of `before`, which is under way: each decoding session of `before` whose
    /// turn does not reach its limit computes one more token. `None` if there is other work, or pages are missing; the
    /// next step then waits for the end of this one. Nothing may have happened since `before` was planned. A session
    /// whose turn ends earlier has computed one token too many, which is not booked.
    ///
    /// # Panics
    /// If the step of `before` is not the only one under way.
    pub fn schedule_ahead(&mut self, before: &Plan, now: Duration) -> Option<Plan> {
        assert!(self.state.steps.iter().eq([&before.id]), "plan {} is not the only one under way", before.id);
        let standing = self.state.foresee(before);
        let mut plan = follow(&self.state, &self.parts, before, now);
        if let Some(plan) = &mut plan {
            self.state.begin(plan, self.parts.rules.lease, now);
        }
        self.state.restore(standing);
        plan
    }

    fn state_lost(&mut self, id: SessionId) {
        if let Some(session) = self.state.sessions.get_mut(&id) {
            session.apply(EventKind::StateLost);
        }
    }

    /// Books the end of a plan's step, and of copies.
    ///
    /// # Panics
    /// If the plan's step is not under way, or the outcome names a session outside of it.
    pub fn on_completed(&mut self, plan: &Plan, outcome: &Outcome, now: Duration) {
        assert_eq!(self.state.step(), Some(plan.id), "the step that ended is not the first under way");
        self.state.steps.pop_front();
        for entry in &plan.batch {
            let stopped = outcome.stopped.contains(&entry.session());
            let surplus = std::mem::take(&mut self.session_mut(entry.session()).surplus);
            match stopped || surplus {
                true => self.state.take_back(entry, stopped, now),
                false => self.state.advance(entry, now),
            }
            let session = self.session_mut(entry.session());
            if session.ending {
                self.state.remove(entry.session());
            } else if stopped {
                session.apply(EventKind::Pause);
            } else if session.prompt == 0 && !surplus {
                session.apply(EventKind::PromptDone);
            }
        }
        let took_part = |id| plan.batch.iter().any(|entry| entry.session() == id);
        for (id, end) in &outcome.ended {
            assert!(took_part(*id), "{id} ended a turn in plan {}, but was not in its step", plan.id);
            self.end_turn(*id, end, now);
        }
        for id in plan.batch.iter().map(ScheduledSession::session) {
            let Some(session) = self.state.sessions.get_mut(&id) else { continue };
            if std::mem::take(&mut session.turn_ends) {
                session.surplus = session.in_step > 0;
                // Its last token may have ended it.
                if let Next::To(_) | Next::Later(_) = self.session_mut(id).apply(EventKind::EndTurn) {
                    self.begin_idling(id, now);
                }
            }
        }
        self.on_copied(&outcome.copies);
    }

    /// Books the end of copies while a step is under way.
    pub fn on_copied(&mut self, copies: &[CopyOutcome]) {
        for &copy in copies {
            if self.state.settle(copy) {
                self.state_lost(copy.session);
            }
        }
    }

    fn end_turn(&mut self, id: SessionId, end: &TurnEnd, now: Duration) {
        let Some(session) = self.state.sessions.get_mut(&id) else { return };
        match end {
            TurnEnd::Failed => self.state.remove(id),
            TurnEnd::Finish => {
                session.surplus = session.in_step > 0;
                session.apply(EventKind::Finish);
                self.begin_idling(id, now);
            }
            TurnEnd::ToolCall { tool } => {
                session.surplus = session.in_step > 0;
                session.apply(EventKind::ToolCall);
                self.end_with(id, tool.clone(), now);
            }
        }
    }

    fn begin_idling(&mut self, id: SessionId, now: Duration) {
        self.end_with(id, Some(Wait::IDLE.to_owned()), now);
    }

    /// Ends a session's turn. It waits now, or when it is resumed.
    fn end_with(&mut self, id: SessionId, tool: Option<String>, now: Duration) {
        let session = self.session_mut(id);
        session.wait = Some(Wait { tool, since: now, expected: None });
        if session.phase != Phase::Paused {
            self.begin_wait(id, now);
            self.apply_deferred(id, now);
        }
    }

    fn apply_deferred(&mut self, id: SessionId, now: Duration) {
        if let Some(signal) = self.session_mut(id).deferred.take() {
            self.apply_signal(id, signal, now);
        }
    }

    fn session_mut(&mut self, id: SessionId) -> &mut Session {
        self.state.sessions.get_mut(&id).unwrap_or_else(|| panic!("{id} is not in the state"))
    }
}

fn check_turn(id: SessionId, before: u64, prompt: u64, max_tokens: u64, limit: u64) -> Result<()> {
    if prompt == 0 || max_tokens == 0 {
        return Err(Error::EmptyTurn { session: id });
    }
    // Nothing is computed after the last token, so it needs no room.
    let tokens = before.saturating_add(prompt).saturating_add(max_tokens - 1);
    if tokens > limit { Err(Error::TooLong { session: id, tokens, limit }) } else { Ok(()) }
}
