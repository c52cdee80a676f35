//! One session: who it is, what it does, how much state it has and where that lies.

use crate::phase::Phase;
use serde::{Deserialize, Serialize};
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

/// Where a session's KV pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Residency {
    /// On the device, ready for use.
    Device,
    /// In host memory.
    Host,
    /// Nowhere: not computed yet, or discarded. It is computed from the tokens when it is wanted.
    Gone,
    /// Being copied to host memory; it takes room at both ends.
    Leaving,
    /// Being copied to the device; it takes room at both ends.
    Arriving,
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
    /// Tokens generated in this turn.
    pub generated: u64,
    /// Tokens that this turn may generate.
    pub max_tokens: u64,
    /// Device pages held, reserved ones included.
    pub device_pages: u32,
    /// Host pages held.
    pub host_pages: u32,
    /// Where its pages are.
    pub residency: Residency,
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
    /// Tokens that it puts into the step under way; 0 means it takes no part.
    pub in_step: u64,
    pub(crate) deferred: Option<crate::signal::Signal>,
    pub(crate) prefetched: bool,
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
            generated: 0,
            max_tokens: arrival.max_tokens,
            device_pages: 0,
            host_pages: 0,
            residency: Residency::Gone,
            arrived: now,
            ready_since: now,
            last_use: now,
            lease_until: Duration::ZERO,
            wait: None,
            paused_from: None,
            failed_copies: 0,
            in_step: 0,
            deferred: None,
            prefetched: false,
            ending: false,
        }
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
