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
pub enum Error {
    /// The session does not exist.
    #[error("{session} does not exist; it ended, was refused, or never came")]
    Missing {
        /// The name.
        session: SessionId,
    },
    /// The id is in use.
    #[error("{session} exists already; choose another id")]
    Exists {
        /// The name.
        session: SessionId,
    },
    /// A turn without tokens.
    #[error("{session}: a turn needs a prompt of at least 1 token and at least 1 token to generate")]
    EmptyTurn {
        /// The session.
        session: SessionId,
    },
    /// The turn does not fit into the session's context.
    #[error(
        "{session}: the turn needs {tokens} tokens of context and the session may hold {limit}; shorten it or start a new session"
    )]
    TooLong {
        /// The session.
        session: SessionId,
        /// Tokens that the context would hold.
        tokens: u64,
        /// Tokens that it may hold.
        limit: u64,
    },
    /// The event is invalid in the session's phase.
    #[error("{session} is in the phase {phase}, where {event:?} has no meaning")]
    NotNow {
        /// The session.
        session: SessionId,
        /// Its phase.
        phase: Phase,
        /// The event.
        event: EventKind,
    },
    /// Refused under load or for its size.
    #[error("{session} is refused: {why}")]
    Refused {
        /// The session.
        session: SessionId,
        /// The reason.
        why: Refusal,
    },
    /// The backend is broken: nothing under way will end.
    #[error("{reason}")]
    Backend {
        /// The backend's reason.
        reason: String,
    },
    /// An invalid settings text.
    #[error("line {line}: {field}: {problem}")]
    Settings {
        /// Line of the text, from 1.
        line: usize,
        /// The field.
        field: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// An unreadable or invalid settings file.
    #[error("{}: {problem}", file.display())]
    SettingsFile {
        /// The file.
        file: PathBuf,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// An invalid field of the settings.
    #[error("{field}: {problem}")]
    Setting {
        /// The field.
        field: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// An invalid machine description.
    #[error("{what}; {remedy}")]
    Machine {
        /// What is wrong.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
    /// An invalid row of a trace.
    #[error("line {line}: {field}: {problem}")]
    Trace {
        /// Line of the file, from 1.
        line: usize,
        /// The column.
        field: &'static str,
        /// What is wrong, and what to do.
        problem: String,
    },
}
