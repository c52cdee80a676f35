//! Plans and their outcomes. All policies use the same plan type.

use crate::session::SessionId;
use djinn_pages::{Duplicate, PageCopies};
use std::fmt;
use std::time::Duration;

/// The next step, and the movements of pages with it.
///
/// Booking a plan frees the pages of `discard` and `refused`, and gives pages to `grants`. The backend then prepares the
/// new pages, copies `duplicates`, starts the swaps and runs the batch. Swaps may last longer than the step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Number of the plan, from 1.
    pub id: u64,
    /// Rows of the step, decodes first.
    pub batch: Vec<ScheduledSession>,
    /// Device pages that sessions get before the step.
    pub grants: Vec<Grant>,
    /// Shared pages that the step's sessions write to; they are copied before it.
    pub duplicates: Vec<Duplicate>,
    /// Numbers of [rewrites](crate::Rewrite) by session, in order. They are applied before the step.
    pub rewrites: Vec<(SessionId, u64)>,
    /// Sessions whose pages are copied to the host.
    pub swap_out: Vec<Move>,
    /// Sessions whose pages are copied to the device.
    pub swap_in: Vec<Move>,
    /// Sessions whose pages are freed. Their tokens are computed again when they are wanted.
    pub discard: Vec<SessionId>,
    /// Sessions that end here, with status 429 or 413, and the reason.
    pub refused: Vec<(SessionId, Refusal)>,
    /// Device pages that are still missing for queued sessions, or for those about to come back.
    pub short: u32,
    /// When to plan again if nothing happens before.
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
    /// A run of prompt tokens. The prompt's last token gives the first generated one.
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
    /// Number of its pages with these.
    pub pages: u32,
    /// Tokens of its prompt whose pages are shared from now on, since other sessions computed them.
    pub found: u64,
    /// Pages without contents yet.
    pub fresh: Vec<u32>,
}

/// A copy of a session's pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The session.
    pub session: SessionId,
    /// Number of pages.
    pub pages: u32,
    /// The pages, at both ends.
    pub way: PageCopies,
}

/// Why a session is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It can never fit the device (status 413).
    TooLarge {
        /// Pages that it may need.
        pages: u32,
        /// Pages of the device.
        device_pages: u32,
    },
    /// Too many sessions queue (status 429).
    QueueFull {
        /// Sessions that queue.
        queued: usize,
    },
    /// It found no room within the time limit (status 429).
    QueueTimeout {
        /// Time since it became ready, or last computed.
        waited: Duration,
    },
}

impl Refusal {
    /// The HTTP status.
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
    /// With a stop token or at its limit; the session becomes `Idle`.
    Finish,
    /// With a tool call; the session becomes `IoWait`.
    ToolCall {
        /// The tool, if known.
        tool: Option<String>,
    },
    /// It cannot continue; the session ends.
    Failed,
}

/// The outcome of a plan's step. Sessions of the batch that it does not name continue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Sessions of the batch whose turn ended with this step.
    pub ended: Vec<(SessionId, TurnEnd)>,
    /// Sessions of the batch that met a breakpoint. Their part of the step does not count, and they are paused before
    /// it.
    pub stopped: Vec<SessionId>,
    /// Ended copies, of this plan or of earlier ones.
    pub copies: Vec<CopyOutcome>,
}

/// A copy that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyOutcome {
    /// The session.
    pub session: SessionId,
    /// Whether all bytes arrived.
    pub ok: bool,
}
