//! A session to open, and what is told of it.

use crate::debug::{DebugSetup, PausedAt};
use crate::{Error, Finish, NoToken, Origin, TokenLogprobs, Turn};
use djinn_scheduler::{Refusal, SessionId};

/// A session to open, with its first turn.
#[derive(Clone, Debug, Default)]
pub struct Opening {
    /// The first turn.
    pub turn: Turn,
    /// Lower goes first.
    pub priority: i32,
    /// The most tokens that the session may ever have; the engine's context if not given.
    pub limit: Option<u64>,
    /// Whom it shares with.
    pub origin: Origin,
    /// Without its [listener](crate::Listener), the session ends its turn and waits for another one; else it ends.
    pub outlives_listener: bool,
    /// Breakpoints and steering that it begins with.
    pub debug: DebugSetup,
}

/// What happened to a session.
#[derive(Clone, Debug, PartialEq)]
pub enum Happening {
    /// A token was generated; with the turn's last one, why the turn ended.
    Token {
        /// The token.
        token: u32,
        /// Set with the last.
        finish: Option<Finish>,
        /// Set if the turn asks for them.
        logprobs: Option<Box<TokenLogprobs>>,
        /// Set with the first: tokens of the prompt that were not computed, since their keys and values existed.
        reused: Option<u64>,
    },
    /// The session was refused, and is gone.
    Refused(Refusal),
    /// No token can be chosen after the session's context; the session is gone.
    Failed(NoToken),
    /// [`EndTurn`](djinn_scheduler::SessionEvent::EndTurn) ended the turn: no more tokens come of it, and the session
    /// takes its next turn.
    TurnEnded,
    /// The session is stopped at a breakpoint, and its turn goes on when it does.
    Paused(Box<PausedAt>),
    /// The session was stopped at a breakpoint for too long, and is gone.
    Expired,
}

impl Happening {
    /// Why a session is gone.
    pub(super) fn into_error(self, session: SessionId) -> Error {
        match self {
            Happening::Refused(why) => djinn_scheduler::Error::Refused { session, why }.into(),
            Happening::Failed(NoToken::Logits(bad)) => bad.into(),
            Happening::Failed(NoToken::Constraint(why)) => why.into(),
            Happening::Expired => Error::NoSession { session: session.0 },
            Happening::Token { .. } | Happening::TurnEnded | Happening::Paused(_) => {
                unreachable!("{session} lives on")
            }
        }
    }
}
