//! What clients say about their sessions, and what they are answered.

use crate::phase::EventKind;
use crate::policy::{Decision, Why};
use crate::session::Residency;
use serde::{Deserialize, Serialize};

/// A hint. It changes when a session's state moves, never what the session computes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "snake_case")]
pub enum Signal {
    /// The session waits for a tool.
    IoWait {
        /// The tool; waits are learned by this name.
        #[serde(default)]
        tool: Option<String>,
        /// Milliseconds from now until the next turn, if known.
        #[serde(default)]
        estimated_resume_ms: Option<u64>,
    },
    /// The next turn is about to come.
    Compute,
    /// The session waits for nothing in particular.
    Idle,
}

impl Signal {
    pub(crate) fn kind(&self) -> EventKind {
        match self {
            Signal::IoWait { .. } => EventKind::SignalIoWait,
            Signal::Compute => EventKind::SignalCompute,
            Signal::Idle => EventKind::SignalIdle,
        }
    }
}

/// What became of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SignalOutcome {
    /// It counts as it is.
    Accepted,
    /// It counts with the longest estimate that is allowed.
    Clipped,
    /// It counts once the session waits.
    Deferred,
    /// It makes no sense; nothing changed.
    Rejected,
    /// There is no such session.
    Missing,
}

/// The answer to a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SignalAnswer {
    /// What became of it.
    pub outcome: SignalOutcome,
    /// What the policy would do with the session's pages now. Demand of others may decide otherwise later.
    pub decision: Decision,
    /// Why; serialized as the sentence that it displays.
    pub why: Why,
    /// Bytes of the session's keys and values.
    pub kv_bytes: u64,
    /// Where they are at this moment.
    pub residency: Residency,
    /// Milliseconds that it takes to have them back, once that is wanted and there is room.
    pub eta_restore_ms: u64,
}
