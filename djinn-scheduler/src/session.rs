//! A session as the scheduler sees it: phase, sizes, times and pages.

use crate::phase::{EventKind, Next, Phase, transition};
use crate::rewrite::Rewrites;
use djinn_pages::{BlockTable, PageName, Residency};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;
use std::time::Duration;

/// A session's id, chosen by the caller and never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionId(pub u64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "session {}", self.0)
    }
}

/// A session's wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The tool, if the client named one.
    pub tool: Option<String>,
    /// When the wait began.
    pub since: Duration,
    /// Its length from the beginning, as the client estimated.
    pub expected: Option<Duration>,
}

impl Wait {
    /// The name under which waits between turns are learned.
    pub const IDLE: &'static str = "(idle)";

    /// How long the session has waited.
    pub fn elapsed(&self, now: Duration) -> Duration {
        now.saturating_sub(self.since)
    }
}

/// A new session with its first turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its id.
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

/// A session: sizes and times, no bytes. Times count from the caller's origin.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Session {
    /// Its id.
    pub id: SessionId,
    /// Its phase.
    pub phase: Phase,
    /// Lower goes first.
    pub priority: i32,
    /// Tokens with keys and values.
    pub context: u64,
    /// Known tokens that are not computed yet, including a discarded context.
    pub prompt: u64,
    /// The most tokens that its context may hold.
    pub limit: u64,
    /// Tokens of this turn's prompt that had keys and values when it was first computed; `None` before that.
    pub reused: Option<u64>,
    /// Tokens generated in this turn.
    pub generated: u64,
    /// Tokens that this turn may generate.
    pub max_tokens: u64,
    /// When it arrived.
    pub arrived: Duration,
    /// When it last became ready to compute.
    pub ready_since: Duration,
    /// When it last computed.
    pub last_use: Duration,
    /// No demand takes its pages before this time.
    pub lease_until: Duration,
    /// Its wait, in the phases `IoWait` and `Idle`.
    pub wait: Option<Wait>,
    /// The phase before `Paused`.
    pub paused_from: Option<Phase>,
    /// Copies that failed in a row.
    pub failed_copies: u32,
    /// Its tokens in the steps under way; 0 if it is in none.
    pub in_step: u64,
    pub(crate) table: BlockTable,
    /// Names of the full pages of its tokens, for sharing.
    pub(crate) names: Vec<PageName>,
    /// Tokens that were ever computed.
    pub(crate) computed: u64,
    /// How many of the first tokens were computed in whole prefill chunks.
    pub(crate) in_whole_chunks: u64,
    pub(crate) rewrites: Rewrites,
    /// The new tokens of the step in which it last stopped. One step computes them all, until it counts.
    pub(crate) stop: Option<Range<u64>>,
    /// A signal that applies when the session waits.
    pub(crate) deferred: Option<crate::signal::Signal>,
    /// Whether its pages came back during this wait. They are not prefetched again.
    pub(crate) returned: bool,
    /// Whether its turn ends with the first step that it is in.
    pub(crate) turn_ends: bool,
    /// Whether its last step was planned ahead.
    pub(crate) ahead: bool,
    /// Whether its turn ended before its present step, which then does not count.
    pub(crate) surplus: bool,
    /// Whether it ends with its present step and copy.
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
            stop: None,
            in_whole_chunks: 0,
            deferred: None,
            returned: false,
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

    /// Its pages by position.
    pub fn table(&self) -> &BlockTable {
        &self.table
    }

    /// Number of device pages, including shared and reserved ones.
    pub fn device_pages(&self) -> u32 {
        self.table.device().len() as u32
    }

    /// Number of host pages.
    pub fn host_pages(&self) -> u32 {
        self.table.host().len() as u32
    }

    /// The most tokens that it may share by name. Positions that were not computed in whole prefill chunks may differ
    /// in the last bits.
    pub(crate) fn findable(&self) -> u64 {
        let tokens = self.prompt.saturating_sub(1);
        if self.computed > self.in_whole_chunks { tokens.min(self.in_whole_chunks) } else { tokens }
    }

    /// Adds tokens to the context; `whole` says that they are whole prefill chunks.
    pub(crate) fn extend(&mut self, tokens: u64, whole: bool) {
        let end = self.context + tokens;
        if whole && self.context.max(self.computed) <= self.in_whole_chunks {
            self.in_whole_chunks = self.in_whole_chunks.max(end);
        }
        self.context = end;
        self.computed = self.computed.max(end);
    }

    /// Tokens that a step may compute before one begins with a rewrite, or with the tokens at which it stopped.
    pub(crate) fn tokens_before_a_cut(&self) -> u64 {
        let stop = self.stop.as_ref().filter(|stop| stop.start > self.context);
        let before_stop = stop.map_or(u64::MAX, |stop| stop.start - self.context);
        self.rewrites.tokens_before(self.context).min(before_stop)
    }

    /// The number of tokens at which it stopped, if its next step begins with them. That step has exactly these.
    pub(crate) fn stopped_tokens(&self) -> Option<u64> {
        let stop = self.stop.as_ref().filter(|stop| stop.start == self.context)?;
        Some(stop.end - stop.start)
    }

    /// Page table indices of the pages with contents that its next step writes to.
    pub(crate) fn written_pages(&self, page_tokens: u64) -> Vec<u64> {
        let mut pages = self.rewrites.pages(self.context, page_tokens);
        if !self.context.is_multiple_of(page_tokens) {
            pages.push(self.context / page_tokens);
        }
        if pages.len() > 1 {
            pages.sort_unstable();
            pages.dedup();
        }
        pages
    }

    /// Applies the table's transition for `event`; nothing else changes phases.
    pub(crate) fn apply(&mut self, event: EventKind) -> Next {
        let next = transition(Some(self.phase), event);
        match next {
            Next::To(phase) => {
                self.paused_from = (phase == Phase::Paused).then_some(self.phase);
                self.phase = phase;
            }
            // It was paused while it waited, so there is no turn to end.
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

    /// The context at which its last step begins, which has `tokens` tokens.
    pub fn step_begins_at(&self, tokens: u64) -> u64 {
        self.context + self.in_step - tokens
    }

    /// Whether it ends with its present step and copy.
    pub fn is_ending(&self) -> bool {
        self.ending
    }

    /// Whether it could compute.
    pub fn is_ready(&self) -> bool {
        self.phase.is_ready() && !self.ending
    }

    /// Whether it has a turn to compute, which may be paused.
    pub fn has_turn(&self) -> bool {
        self.is_ready() || !self.ending && self.paused_from.is_some_and(Phase::is_ready)
    }

    /// Whether it waits for its client, with nothing under way.
    pub fn is_parked(&self) -> bool {
        !self.phase.is_ready() && !self.ending && self.in_step == 0
    }

    /// Tokens of its context after its next token.
    pub fn wanted_tokens(&self) -> u64 {
        (self.context + self.prompt + 1).min(self.limit)
    }

    /// The order of service: priority, then the longest ready.
    pub fn rank(&self) -> (i32, Duration, SessionId) {
        (self.priority, self.ready_since, self.id)
    }

    /// Since when a ready session has not computed.
    pub(crate) fn starving_since(&self) -> Duration {
        self.ready_since.max(self.last_use)
    }

    /// Since when it has been inactive: the start of its wait, or its last use.
    pub fn quiet_since(&self) -> Duration {
        self.wait.as_ref().map_or(self.last_use, |wait| wait.since)
    }
}
