//! Answers to clients about their sessions.

use crate::phase::Phase;
use crate::policy::{Decision, Why};
use djinn_pages::Residency;
use serde::{Deserialize, Serialize};

/// What the scheduler did with a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SignalOutcome {
    /// It applies as given.
    Accepted,
    /// It applies with the longest estimate that is allowed.
    Clipped,
    /// It applies when the session waits.
    Deferred,
    /// It is invalid. Nothing changed.
    Rejected,
    /// The session does not exist.
    Missing,
}

/// The answer to a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SignalAnswer {
    /// What the scheduler did with it.
    pub outcome: SignalOutcome,
    /// What the policy would do with the session's pages now. Demand from other sessions may change it later.
    pub decision: Decision,
    /// The reason, serialized as a sentence.
    pub why: Why,
    /// Bytes of the session's keys and values.
    pub kv_bytes: u64,
    /// Where they are now.
    pub residency: Residency,
    /// Milliseconds until they are on the device again, once they are wanted and there is room.
    pub eta_restore_ms: u64,
}

/// A session's present state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SessionReport {
    /// Its phase.
    pub phase: Phase,
    /// The tool that it waits for, if named.
    pub tool: Option<String>,
    /// Tokens of its turns so far.
    pub tokens: u64,
    /// Tokens with keys and values.
    pub computed: u64,
    /// Bytes of these keys and values.
    pub kv_bytes: u64,
    /// Where they are.
    pub residency: Residency,
    /// Milliseconds until they are on the device, once they are wanted and there is room.
    pub eta_restore_ms: u64,
}
