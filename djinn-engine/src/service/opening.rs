//! Requests to open a session, and events of sessions.

use crate::debug::{DebugSetup, PausedAt};
use crate::{Error, Finish, NoToken, Origin, TokenLogprobs, Turn};
use djinn_scheduler::{Refusal, SessionId};

/// A session to open, with its first turn.
#[derive(Clone, Debug, Default)]
pub struct Opening {
    /// The first turn.
    pub turn: Turn,
    /// Lower values go first.
    pub priority: i32,
    /// The most tokens that the session may ever have. `None`: the engine's context.
    pub limit: Option<u64>,
    /// The keys and values that it may share.
    pub origin: Origin,
    /// What happens without its [listener](crate::Listener): if true, the session ends its turn and waits for another
    /// one; if false, it ends.
    pub outlives_listener: bool,
    /// The breakpoints and steering of the new session.
    pub debug: DebugSetup,
}

/// An event of a session.
#[derive(Clone, Debug, PartialEq)]
pub enum Happening {
    /// A token was generated.
    Token {
        /// The token.
        token: u32,
        /// Why the turn ended; set with its last token.
        finish: Option<Finish>,
        /// Set if the turn asks for them.
        logprobs: Option<Box<TokenLogprobs>>,
        /// Set with the first token: tokens of the prompt whose keys and values existed already.
        reused: Option<u64>,
    },
    /// The session was refused, and is gone.
    Refused(Refusal),
    /// No token can be chosen after the session's context; the session is gone.
    Failed(NoToken),
    /// [`EndTurn`](djinn_scheduler::SessionEvent::EndTurn) ended the turn. The session has no more tokens in it, and
    /// accepts its next turn.
    TurnEnded,
    /// The session is stopped at a breakpoint. Its turn continues when the session does.
    Paused(Box<PausedAt>),
    /// The session was stopped at a breakpoint for its whole time to live, and is gone.
    Expired,
}

impl Happening {
    /// The error for a session that is gone.
    pub(super) fn into_error(self, session: SessionId) -> Error {
        match self {
            Happening::Refused(why) => djinn_scheduler::Error::Refused { session, why }.into(),
            Happening::Failed(NoToken::Logits(bad)) => bad.into(),
            Happening::Failed(NoToken::Constraint(why)) => why.into(),
            Happening::Failed(NoToken::Intervention { hook, detail }) => Error::Intervention { hook, detail },
            Happening::Expired => Error::NoSession { session: session.0 },
            Happening::Token { .. } | Happening::TurnEnded | Happening::Paused(_) => {
                unreachable!("{session} lives on")
            }
        }
    }
}
