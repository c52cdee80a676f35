//! One session: who it is, what it does, how much state it has and where that lies.

use crate::phase::{EventKind, Next, Phase, transition};
use crate::rewrite::Rewrites;
use djinn_pages::{BlockTable, PageName, Residency};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

/// Names a session; chosen by the caller, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionId(pub u64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "session {}", self.0)
    }
}

/// What a session waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The tool, where the client named one.
    pub tool: Option<String>,
    /// When the wait began.
    pub since: Duration,
    /// How long it will last from its beginning, as the client said.
    pub expected: Option<Duration>,
}

impl Wait {
    /// The name that waits between turns, for nothing in particular, are learned under.
    pub const IDLE: &'static str = "(idle)";

    /// How long the session has waited.
    pub fn elapsed(&self, now: Duration) -> Duration {
        now.saturating_sub(self.since)
    }
}

/// A new session with its first turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its name.
    pub id: SessionId,
    /// Lower goes first.
    pub priority: i32,
    /// Tokens of the first prompt, at least 1.
    pub prompt: u64,
    /// Tokens that the first turn may generate, at least 1.
    pub max_tokens: u64,
    /// The most tokens that the session's context will ever hold.
    pub limit: u64,
}

/// A session as the scheduler sees it: sizes and times, no bytes. Times count from the caller's origin.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Session {
    /// Its name.
    pub id: SessionId,
    /// What it does.
    pub phase: Phase,
    /// Lower goes first.
    pub priority: i32,
    /// Tokens whose keys and values exist.
    pub context: u64,
    /// Tokens that are known but not prefilled yet; a discarded context becomes these.
    pub prompt: u64,
    /// The most tokens that its context may hold.
    pub limit: u64,
    /// Of this turn's prompt, the tokens whose keys and values existed when it was first computed; not known before.
    pub reused: Option<u64>,
    /// Tokens generated in this turn.
    pub generated: u64,
    /// Tokens that this turn may generate.
    pub max_tokens: u64,
    /// When it came.
    pub arrived: Duration,
    /// When it last became ready to compute.
    pub ready_since: Duration,
    /// When it last computed.
    pub last_use: Duration,
    /// Until then its pages are its own.
    pub lease_until: Duration,
    /// What it waits for, in the phases `IoWait` and `Idle`.
    pub wait: Option<Wait>,
    /// The phase before `Paused`.
    pub paused_from: Option<Phase>,
    /// Copies that failed in a row.
    pub failed_copies: u32,
    /// Tokens that it puts into the steps under way; 0 means it takes no part.
    pub in_step: u64,
    /// Its pages.
    pub(crate) table: BlockTable,
    /// Names of the full pages of its tokens: what others may share, and what it may find.
    pub(crate) names: Vec<PageName>,
    /// Tokens that were ever computed, and how many of the first ones were computed in whole prefill chunks.
    pub(crate) computed: u64,
    pub(crate) in_whole_chunks: u64,
    pub(crate) rewrites: Rewrites,
    pub(crate) deferred: Option<crate::signal::Signal>,
    pub(crate) prefetched: bool,
    /// Its turn ends with the first step that it is in.
    pub(crate) turn_ends: bool,
    /// The last step that it is in was planned ahead of the one before.
    pub(crate) ahead: bool,
    /// Its turn ended before the step that it is in, which does not count.
    pub(crate) surplus: bool,
    pub(crate) ending: bool,
}

impl Session {
    pub(crate) fn new(arrival: &Arrival, now: Duration) -> Self {
        Session {
            id: arrival.id,
            phase: Phase::Prefill,
            priority: arrival.priority,
            context: 0,
            prompt: arrival.prompt,
            limit: arrival.limit,
            reused: None,
            generated: 0,
            max_tokens: arrival.max_tokens,
            arrived: now,
            ready_since: now,
            last_use: now,
            lease_until: Duration::ZERO,
            wait: None,
            paused_from: None,
            failed_copies: 0,
            in_step: 0,
            table: BlockTable::default(),
            names: Vec::new(),
            computed: 0,
            rewrites: Rewrites::default(),
            in_whole_chunks: 0,
            deferred: None,
            prefetched: false,
            turn_ends: false,
            ahead: false,
            surplus: false,
            ending: false,
        }
    }

    /// Where its pages are.
    pub fn residency(&self) -> Residency {
        self.table.residency()
    }

    /// Its pages in order of position.
    pub fn table(&self) -> &BlockTable {
        &self.table
    }

    /// Device pages held, shared and reserved ones included.
    pub fn device_pages(&self) -> u32 {
        self.table.device().len() as u32
    }

    /// Host pages held.
    pub fn host_pages(&self) -> u32 {
        self.table.host().len() as u32
    }

    /// The most tokens that may be taken from pages found by name. Positions that were computed otherwise than in whole
    /// prefill chunks may differ from what others computed in the last bits.
    pub(crate) fn findable(&self) -> u64 {
        let tokens = self.prompt.saturating_sub(1);
        if self.computed > self.in_whole_chunks { tokens.min(self.in_whole_chunks) } else { tokens }
    }

    /// Books tokens of the context: `whole` says that they are whole prefill chunks.
    pub(crate) fn extend(&mut self, tokens: u64, whole: bool) {
        let end = self.context + tokens;
        if whole && self.context.max(self.computed) <= self.in_whole_chunks {
            self.in_whole_chunks = self.in_whole_chunks.max(end);
        }
        self.context = end;
        self.computed = self.computed.max(end);
    }

    /// Places in the table of the pages that hold something and that its next step writes to.
    pub(crate) fn written_pages(&self, page_tokens: u64) -> BTreeSet<u64> {
        let mut pages = self.rewrites.pages(self.context, page_tokens);
        if !self.context.is_multiple_of(page_tokens) {
            pages.insert(self.context / page_tokens);
        }
        pages
    }

    /// Does to the phase what the table says of `event`: nothing else changes phases.
    pub(crate) fn apply(&mut self, event: EventKind) -> Next {
        let next = transition(Some(self.phase), event);
        match next {
            Next::To(phase) => {
                self.paused_from = (phase == Phase::Paused).then_some(self.phase);
                self.phase = phase;
            }
            // It was paused while it waited: no turn is there to end.
            Next::Later(_) if self.paused_from.is_some_and(|phase| !phase.is_ready()) => return Next::Stay,
            Next::Later(phase) => self.paused_from = Some(phase),
            Next::Back => {
                self.phase = match self.paused_from.take() {
                    Some(waiting @ (Phase::IoWait | Phase::Idle)) => waiting,
                    _ if self.prompt > 0 => Phase::Prefill,
                    _ => Phase::Decode,
                }
            }
            Next::Stay | Next::Deferred | Next::Rejected | Next::Ended | Next::Missing => {}
        }
        next
    }

    /// The context at which the last step that it is in begins, of whose tokens there are `tokens`.
    pub fn step_begins_at(&self, tokens: u64) -> u64 {
        self.context + self.in_step - tokens
    }

    /// Whether it goes as soon as the step and the copy that it is in have ended.
    pub fn is_ending(&self) -> bool {
        self.ending
    }

    /// Whether it would compute if it could.
    pub fn is_ready(&self) -> bool {
        self.phase.is_ready() && !self.ending
    }

    /// Whether it waits for something outside, with nothing under way that concerns it.
    pub fn is_parked(&self) -> bool {
        !self.phase.is_ready() && !self.ending && self.in_step == 0
    }

    /// Tokens that its context will hold once its next token is generated.
    pub fn wanted_tokens(&self) -> u64 {
        (self.context + self.prompt + 1).min(self.limit)
    }

    /// The order in which sessions are served: priority, then who has been ready for longest.
    pub fn rank(&self) -> (i32, Duration, SessionId) {
        (self.priority, self.ready_since, self.id)
    }

    /// Since when a session that is ready has not computed.
    pub(crate) fn starving_since(&self) -> Duration {
        self.ready_since.max(self.last_use)
    }

    /// Since when it has done nothing: the start of its wait, or its last use.
    pub fn quiet_since(&self) -> Duration {
        self.wait.as_ref().map_or(self.last_use, |wait| wait.since)
    }
}
