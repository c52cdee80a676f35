//! Errors of the scheduler.

use crate::phase::{EventKind, Phase};
use crate::plan::Refusal;
use crate::session::SessionId;
use std::path::PathBuf;

/// Result of the scheduler.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a request to the scheduler was not carried out. Each is one line with the remedy.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No session has this name.
    #[error("{session} does not exist; it ended, was refused, or never came")]
    Missing {
        /// The name.
        session: SessionId,
    },
    /// The name is taken.
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
    /// The turn would not fit into the session's context.
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
    /// The phase does not allow it.
    #[error("{session} is in the phase {phase}, where {event:?} has no meaning")]
    NotNow {
        /// The session.
        session: SessionId,
        /// Its phase.
        phase: Phase,
        /// What was asked.
        event: EventKind,
    },
    /// Refused under load or for its size.
    #[error("{session} is refused: {why}")]
    Refused {
        /// The session.
        session: SessionId,
        /// Why.
        why: Refusal,
    },
    /// The backend is broken: nothing that is under way will end.
    #[error("{reason}")]
    Backend {
        /// Why, as the backend says.
        reason: String,
    },
    /// A settings text that cannot be used.
    #[error("line {line}: {field}: {problem}")]
    Settings {
        /// Line of the text, from 1.
        line: usize,
        /// The field.
        field: String,
        /// What is wrong, and the remedy.
        problem: String,
    },
    /// A settings file that cannot be read or used.
    #[error("{}: {problem}", file.display())]
    SettingsFile {
        /// The file.
        file: PathBuf,
        /// What is wrong, and the remedy.
        problem: String,
    },
    /// A field of the settings that cannot be used.
    #[error("{field}: {problem}")]
    Setting {
        /// The field.
        field: String,
        /// What is wrong, and the remedy.
        problem: String,
    },
    /// A machine description that cannot be used.
    #[error("{what}; {remedy}")]
    Machine {
        /// What is wrong.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A trace with a broken row.
    #[error("line {line}: {field}: {problem}")]
    Trace {
        /// Line of the file, from 1.
        line: usize,
        /// The column.
        field: &'static str,
        /// What is wrong, and the remedy.
        problem: String,
    },
}
