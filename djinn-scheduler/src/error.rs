//! Errors of the scheduler.

use crate::phase::{EventKind, Phase};
use crate::plan::Refusal;
use crate::session::SessionId;
use std::path::PathBuf;

/// Result of the scheduler.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the scheduler refused a request. Each message is one line and says what to do.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each message says what its fields are")]
pub enum Error {
    /// The session does not exist.
    #[error("{session} does not exist; it ended, was refused, or never came")]
    Missing { session: SessionId },
    /// The id is in use.
    #[error("{session} exists already; choose another id")]
    Exists { session: SessionId },
    /// A turn without tokens.
    #[error("{session}: a turn needs a prompt of at least 1 token and at least 1 token to generate")]
    EmptyTurn { session: SessionId },
    /// The turn does not fit into the session's context.
    #[error(
        "{session}: the turn needs {tokens} tokens of context and the session may hold {limit}; shorten it or start a new session"
    )]
    TooLong { session: SessionId, tokens: u64, limit: u64 },
    /// The event is invalid in the session's phase.
    #[error("{session} is in the phase {phase}, where {event:?} has no meaning")]
    NotNow { session: SessionId, phase: Phase, event: EventKind },
    /// Refused under load or for its size.
    #[error("{session} is refused: {why}")]
    Refused { session: SessionId, why: Refusal },
    /// The backend is broken: nothing under way will end.
    #[error("{reason}")]
    Backend { reason: String },
    /// An invalid settings text.
    #[error("line {line}: {field}: {problem}")]
    Settings { line: usize, field: String, problem: String },
    /// An unreadable or invalid settings file.
    #[error("{}: {problem}", file.display())]
    SettingsFile { file: PathBuf, problem: String },
    /// An invalid field of the settings.
    #[error("{field}: {problem}")]
    Setting { field: String, problem: String },
    /// An invalid machine description.
    #[error("{what}; {remedy}")]
    Machine { what: String, remedy: &'static str },
    /// An invalid row of a trace.
    #[error("line {line}: {field}: {problem}")]
    Trace { line: usize, field: &'static str, problem: String },
}
