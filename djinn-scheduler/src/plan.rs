//! What the scheduler decides, and what came of it. One plan type for every policy.

use crate::session::SessionId;
use djinn_pages::{Duplicate, PageCopies};
use std::fmt;
use std::time::Duration;

/// The next step and the movements of pages beside it.
///
/// The executor frees `discard` and `refused` first, grants pages, starts the copies, then runs the batch.
/// Copies may last longer than the step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Number of the plan, from 1.
    pub id: u64,
    /// Rows of the step, decodes first.
    pub batch: Vec<ScheduledSession>,
    /// Device pages that sessions get, before the step.
    pub grants: Vec<Grant>,
    /// Shared pages that sessions of the step write to, and are copied before it.
    pub duplicates: Vec<Duplicate>,
    /// [Rewrites](crate::Rewrite) by session and number, in order: they are done before the step.
    pub rewrites: Vec<(SessionId, u64)>,
    /// Sessions whose pages are copied to the host.
    pub swap_out: Vec<Move>,
    /// Sessions whose pages are copied to the device.
    pub swap_in: Vec<Move>,
    /// Sessions whose pages are given up; their tokens are computed again when they are wanted.
    pub discard: Vec<SessionId>,
    /// Sessions that end here, with status 429 or 413, and why.
    pub refused: Vec<(SessionId, Refusal)>,
    /// Device pages that are still missing for those who queue, or are about to come back.
    pub short: u32,
    /// When to ask again, if nothing happens before.
    pub wake: Option<Duration>,
}

impl Plan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.batch.is_empty()
            && self.grants.is_empty()
            && self.swap_out.is_empty()
            && self.swap_in.is_empty()
            && self.discard.is_empty()
            && self.refused.is_empty()
    }

    /// Rows of the step.
    pub fn rows(&self) -> u64 {
        self.batch.iter().map(|entry| entry.tokens()).sum()
    }

    /// Numbers of the [rewrites](Self::rewrites) of a session.
    pub fn rewrites_of(&self, session: SessionId) -> impl Iterator<Item = u64> {
        self.rewrites.iter().filter(move |rewrite| rewrite.0 == session).map(|rewrite| rewrite.1)
    }
}

/// One session's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduledSession {
    /// A run of prompt tokens. The prompt's last token yields the first generated one.
    Prefill {
        /// The session.
        session: SessionId,
        /// Tokens, at least 1.
        tokens: u64,
        /// Whether the prompt ends with them.
        last: bool,
    },
    /// One token.
    Decode {
        /// The session.
        session: SessionId,
    },
}

impl ScheduledSession {
    /// The session.
    pub fn session(&self) -> SessionId {
        match *self {
            ScheduledSession::Prefill { session, .. } | ScheduledSession::Decode { session } => session,
        }
    }

    /// Tokens: rows of the step.
    pub fn tokens(&self) -> u64 {
        match *self {
            ScheduledSession::Prefill { tokens, .. } => tokens,
            ScheduledSession::Decode { .. } => 1,
        }
    }
}

/// Device pages for a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The session.
    pub session: SessionId,
    /// Pages that it has with them.
    pub pages: u32,
    /// Tokens of its prompt that others computed, and whose pages it has from now on.
    pub found: u64,
    /// Pages that hold nothing yet.
    pub fresh: Vec<u32>,
}

/// A copy of a session's pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The session.
    pub session: SessionId,
    /// Pages that are copied.
    pub pages: u32,
    /// Which pages go where.
    pub way: PageCopies,
}

/// Why a session is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It can never fit the device (status 413).
    TooLarge {
        /// Pages that it may come to need.
        pages: u32,
        /// Pages of the device.
        device_pages: u32,
    },
    /// Too many sessions queue (status 429).
    QueueFull {
        /// Sessions that queue.
        queued: usize,
    },
    /// It found no room for too long (status 429).
    QueueTimeout {
        /// Since it became ready, or computed last.
        waited: Duration,
    },
}

impl Refusal {
    /// The HTTP status that says so.
    pub fn status(&self) -> u16 {
        if matches!(self, Refusal::TooLarge { .. }) { 413 } else { 429 }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::TooLarge { pages, device_pages } => {
                write!(f, "it may need {pages} KV pages and the device has {device_pages}; lower its limit")
            }
            Refusal::QueueFull { queued } => write!(f, "{queued} sessions queue already; try again later"),
            Refusal::QueueTimeout { waited } => {
                write!(f, "no room for {:.1} s; try again later", waited.as_secs_f64())
            }
        }
    }
}

/// How a session's turn ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TurnEnd {
    /// With a stop token or at its limit: the session is `Idle`.
    Finish,
    /// With a tool call: the session is `IoWait`.
    ToolCall {
        /// The tool, where known.
        tool: Option<String>,
    },
    /// It cannot go on: the session ends.
    Failed,
}

/// What came of a plan's step. Entries of the batch that it does not name go on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Sessions of the batch whose turn ended with this step.
    pub ended: Vec<(SessionId, TurnEnd)>,
    /// Sessions of the batch that met a breakpoint: their part of the step does not count, and they are paused before it.
    pub stopped: Vec<SessionId>,
    /// Copies, of this plan or of earlier ones, that ended.
    pub copies: Vec<CopyOutcome>,
}

/// A copy that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyOutcome {
    /// The session.
    pub session: SessionId,
    /// Whether every byte arrived.
    pub ok: bool,
}
