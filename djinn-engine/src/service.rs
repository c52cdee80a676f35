//! Sessions as clients know them: the scheduler that plans, the batcher that executes, and a clock.
//!
//! [`Service`] is driven by calls, on one thread; [`spawn`] gives it a thread of its own and clients that talk to it
//! over channels. Sessions persist between turns until they are closed, refused, or their client is gone.

mod thread;

pub use thread::{Client, Stopped, spawn};

use crate::{BadLogit, Batcher, Engine, Error, Finish, Origin, Result, Turn};
use djinn_device::Ops;
use djinn_scheduler::{
    Arrival, Backend, Event, Outcome, Plan, Refusal, Scheduler, SessionId, Signal, SignalAnswer, State,
};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// A session to open, with its first turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Opening {
    /// The first turn.
    pub turn: Turn,
    /// Lower goes first.
    pub priority: i32,
    /// The most tokens that the session may ever have; the engine's context if not given.
    pub limit: Option<u64>,
    /// Whom it shares with.
    pub origin: Origin,
}

/// What happened to a session.
#[derive(Clone, Debug, PartialEq)]
pub enum Happening {
    /// A token was generated; with the turn's last one, why the turn ended.
    Token {
        /// The token.
        token: u32,
        /// Set with the last.
        finish: Option<Finish>,
    },
    /// The session was refused, and is gone.
    Refused(Refusal),
    /// No token can be chosen after the session's context; the session is gone.
    Failed(BadLogit),
}

/// Many sessions on one engine.
#[derive(Debug)]
pub struct Service<D: Ops> {
    scheduler: Scheduler,
    batcher: Batcher<D>,
    origin: Instant,
    sessions: u64,
    under_way: Option<Plan>,
    wake: Option<Duration>,
    /// Something changed since the last plan.
    stale: bool,
}

impl<D: Ops> Service<D> {
    /// A service without sessions. `make` gives a scheduler for what the engine has room for.
    ///
    /// # Errors
    /// Those of [`Batcher::new`] and of `make`.
    pub fn new(
        engine: Engine<D>,
        make: impl FnOnce(djinn_scheduler::Capacity) -> djinn_scheduler::Result<Scheduler>,
    ) -> Result<Self> {
        let batcher = Batcher::new(engine)?;
        let scheduler = make(batcher.capacity())?;
        Ok(Service {
            scheduler,
            batcher,
            origin: Instant::now(),
            sessions: 0,
            under_way: None,
            wake: None,
            stale: false,
        })
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// The sessions and pages, as the scheduler counts them.
    pub fn state(&self) -> &State {
        self.scheduler.state()
    }

    /// The batcher.
    pub fn batcher(&self) -> &Batcher<D> {
        &self.batcher
    }

    /// Opens a session.
    ///
    /// # Errors
    /// Bad tokens or sampling, a turn that exceeds the limit, a machine that is full: [`djinn_scheduler::Error::Refused`].
    pub fn open(&mut self, opening: Opening) -> Result<SessionId> {
        let Opening { turn, priority, limit, origin } = opening;
        let forked = match &origin {
            Origin::Fork(parent) => {
                let tokens = self.batcher.tokens(*parent).ok_or(Error::NoSession { session: parent.0 })?;
                tokens.len() as u64
            }
            Origin::Own | Origin::Salt(_) => 0,
        };
        let id = SessionId(self.sessions + 1);
        let prompt = forked + turn.tokens.len() as u64;
        let context = self.batcher.engine().context();
        let limit = limit.unwrap_or(context).min(context);
        let arrival = Arrival { id, priority, prompt, max_tokens: turn.max_tokens, limit };
        self.batcher.check(&turn)?;
        self.scheduler.arrive(&arrival, self.now())?;
        self.batcher.open(id, turn, origin)?;
        (self.sessions, self.stale) = (id.0, true);
        Ok(id)
    }

    /// Begins a session's next turn.
    ///
    /// # Errors
    /// Bad tokens or sampling, a session that is gone or still busy, a turn that exceeds its limit.
    pub fn turn(&mut self, id: SessionId, turn: Turn) -> Result<()> {
        self.batcher.check(&turn)?;
        // The last token of the turn before was chosen, but not computed.
        let prompt = turn.tokens.len() as u64 + 1;
        let now = self.now();
        self.scheduler.event(id, Event::NextTurn { prompt, max_tokens: turn.max_tokens }, now)?;
        self.batcher.extend(id, turn)?;
        self.stale = true;
        Ok(())
    }

    /// Takes a hint, and answers what it changes.
    pub fn signal(&mut self, id: SessionId, signal: Signal) -> SignalAnswer {
        self.stale = true;
        let now = self.now();
        self.scheduler.signal(id, signal, now)
    }

    /// Holds a session, lets it go on, or ends it: at any point, without harm to others. Use [`turn`](Self::turn) for
    /// turns.
    ///
    /// # Errors
    /// A session that is gone, or an event that makes no sense in its phase.
    pub fn event(&mut self, id: SessionId, event: Event) -> Result<()> {
        self.stale = true;
        let now = self.now();
        Ok(self.scheduler.event(id, event, now)?)
    }

    /// Books what has ended, and begins what comes next. Returns at once; what happened to which session, in order.
    ///
    /// # Errors
    /// The engine failed: all sessions are lost.
    pub fn advance(&mut self) -> Result<Vec<(SessionId, Happening)>> {
        let mut happened = self.book()?;
        while self.under_way.is_none() && self.is_due() {
            let now = self.now();
            self.scheduler.reserve(self.batcher.held_beside());
            let plan = self.scheduler.schedule(now);
            self.batcher.submit(&plan, self.scheduler.state(), now);
            happened.extend(plan.refused.iter().map(|(id, why)| (*id, Happening::Refused(*why))));
            (self.wake, self.stale) = (plan.wake, false);
            if !plan.batch.is_empty() {
                self.under_way = Some(plan);
            }
        }
        Ok(happened)
    }

    fn is_due(&self) -> bool {
        self.stale || self.wake.is_some_and(|at| at <= self.now())
    }

    fn book(&mut self) -> Result<Vec<(SessionId, Happening)>> {
        let now = self.now();
        let completion = self.batcher.poll(now);
        if let Some(reason) = completion.failure {
            return Err(Error::Stopped(reason));
        }
        let held = self.scheduler.state().reserved();
        self.stale |= completion.step.is_some() || !completion.copies.is_empty() || completion.held < held;
        // A session whose client is gone is told nothing more.
        let gone: BTreeSet<SessionId> = match &self.under_way {
            Some(plan) => plan.batch.iter().map(|e| e.session()).filter(|&id| !self.is_open(id)).collect(),
            None => BTreeSet::new(),
        };
        match completion.step {
            Some(ended) => {
                let plan = self.under_way.take().expect("a step that ended was begun");
                let outcome = Outcome { ended, copies: completion.copies, found: completion.found };
                self.scheduler.on_completed(&plan, &outcome, now);
            }
            None => self.scheduler.on_copied(&completion.copies),
        }
        let tokens = self.batcher.take_tokens().into_iter();
        let tokens =
            tokens.map(|new| (new.session, Happening::Token { token: new.token, finish: new.finish }));
        let failures = self.batcher.take_failures().into_iter();
        let failures = failures.map(|(session, bad)| (session, Happening::Failed(bad)));
        Ok(tokens.chain(failures).filter(|(session, _)| !gone.contains(session)).collect())
    }

    fn is_open(&self, id: SessionId) -> bool {
        self.state().session(id).is_some_and(|session| !session.is_ending())
    }

    /// How long nothing can happen unless a client asks for it: call [`advance`](Self::advance) then. Zero while the
    /// device works, `None` if there is nothing to wait for.
    pub fn idle_for(&self) -> Option<Duration> {
        if self.stale || self.batcher.next_event().is_some() {
            return Some(Duration::ZERO);
        }
        self.wake.map(|at| at.saturating_sub(self.now()))
    }

    /// Drops all sessions and gives the engine back.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn into_engine(self) -> Result<Engine<D>> {
        self.batcher.into_engine()
    }
}
