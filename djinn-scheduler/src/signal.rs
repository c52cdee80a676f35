//! Clients' hints about their sessions.

use crate::phase::EventKind;
use serde::{Deserialize, Serialize};

/// A hint. It changes when a session's state moves, never its tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "snake_case")]
pub enum Signal {
    /// The session waits for a tool.
    IoWait {
        /// The tool; waits are learned by its name.
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
