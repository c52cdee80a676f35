//! What clients are told of their sessions.

use crate::phase::Phase;
use crate::policy::{Decision, Why};
use djinn_pages::Residency;
use serde::{Deserialize, Serialize};

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

/// A session at a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SessionReport {
    /// What it does.
    pub phase: Phase,
    /// The tool that it waits for, where one was named.
    pub tool: Option<String>,
    /// Tokens of its turns so far.
    pub tokens: u64,
    /// Those of them whose keys and values exist.
    pub computed: u64,
    /// Bytes of these keys and values.
    pub kv_bytes: u64,
    /// Where they are.
    pub residency: Residency,
    /// Milliseconds that it takes to have them on the device, once that is wanted and there is room.
    pub eta_restore_ms: u64,
}
