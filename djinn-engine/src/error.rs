//! Why a model cannot be loaded or a request not be served.

use crate::{BadLogit, ConstraintError};

/// The engine's failure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Memory cannot be planned, loaded or streamed.
    #[error(transparent)]
    Memory(djinn_vmu::Error),
    /// The progress callback ended the load. Nothing stays loaded.
    #[error("cancelled")]
    Cancelled,
    /// The device failed.
    #[error(transparent)]
    Device(#[from] djinn_device::Error),
    /// The scheduler refuses a session, or what it is asked of one.
    #[error(transparent)]
    Scheduler(djinn_scheduler::Error),
    /// A token that the vocabulary does not have.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab: u64,
    },
    /// A weight is stored as the device cannot read it.
    #[error(
        "weight {weight} is in {encoding}, from which {device} does not compute; open the model for this device"
    )]
    Encoding {
        /// The weight.
        weight: String,
        /// Its encoding.
        encoding: djinn_srg::Encoding,
        /// The device's name.
        device: String,
    },
    /// Nothing to run on.
    #[error("the prompt is empty; give at least one token")]
    EmptyPrompt,
    /// The sequence would outgrow its KV pages.
    #[error("a sequence of {tokens} tokens does not fit a context of {context}; raise `context`")]
    ContextFull {
        /// Tokens that the sequence would have.
        tokens: u64,
        /// Tokens that fit.
        context: u64,
    },
    /// The context that was asked for exceeds what the model was made for.
    #[error("`context` {asked} exceeds the model's context of {most} tokens")]
    ContextTooLong {
        /// As asked for.
        asked: u64,
        /// The model's.
        most: u64,
    },
    /// There is no such session.
    #[error("session {session} does not exist")]
    NoSession {
        /// As asked for.
        session: u64,
    },
    /// A session that computes cannot be exported.
    #[error("session {session} computes; export it between turns, or pause it")]
    NotAtRest {
        /// As asked for.
        session: u64,
    },
    /// A session's activations are changed, or it is stopped at a breakpoint: what it is depends on more than its tokens.
    #[error(
        "session {session} is stopped at a breakpoint, or was changed or steered at hooks; such sessions are not exported"
    )]
    Hooked {
        /// As asked for.
        session: u64,
    },
    /// A session's turn obeys a constraint, whose state is not exported.
    #[error(
        "the turn of session {session} obeys a schema, whose state is not exported; export it between turns"
    )]
    ConstrainedTurn {
        /// As asked for.
        session: u64,
    },
    /// What an exported session was is not there any more.
    #[error("session {session} changed or was given up while it was read; export it again")]
    ImageLost {
        /// As asked for.
        session: u64,
    },
    /// A session of another engine that this one cannot go on with.
    #[error("the session cannot be imported: {what}: {detail}")]
    Image {
        /// What does not fit.
        what: &'static str,
        /// How.
        detail: String,
    },
    /// An intervention that its hook, its entry or the memory for it does not allow.
    #[error("at {hook}: {detail}")]
    Intervention {
        /// The hook.
        hook: String,
        /// What is wrong.
        detail: String,
    },
    /// No hook of the model has this name.
    #[error("the model has no hook `{0}`")]
    UnknownHook(String),
    /// What is asked for takes a session that is stopped at a breakpoint.
    #[error("session {session} is not stopped at a breakpoint")]
    NotPaused {
        /// As asked for.
        session: u64,
    },
    /// What is armed could need more memory in a step than there is for hooks.
    #[error("with this, a step may need {need} bytes of memory for hooks, and `hook_bytes` is {have}")]
    HookMemory {
        /// Bytes.
        need: u64,
        /// Bytes.
        have: u64,
    },
    /// An option that no run can have.
    #[error("{0}")]
    Option(&'static str),
    /// A way to choose tokens that means nothing.
    #[error("{field} is {value}; it must be {range}")]
    Sampling {
        /// The field of [`Sampling`](crate::Sampling).
        field: &'static str,
        /// As asked for.
        value: f32,
        /// What it may be.
        range: &'static str,
    },
    /// The model's logits are no numbers to choose by.
    #[error(transparent)]
    Logits(#[from] BadLogit),
    /// A turn's constraint failed.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    /// An earlier step failed in the middle; what the device holds is undefined.
    #[error("the engine stopped after an earlier failure: {0}")]
    Stopped(String),
    /// The service was [told to end](crate::Client::retire), and takes nothing more.
    #[error("the engine is unloaded: {why}")]
    Retired {
        /// Why it was.
        why: String,
    },
}

impl From<djinn_vmu::Error> for Error {
    fn from(error: djinn_vmu::Error) -> Self {
        match error {
            djinn_vmu::Error::Cancelled => Error::Cancelled,
            error => Error::Memory(error),
        }
    }
}

impl From<djinn_scheduler::Error> for Error {
    fn from(error: djinn_scheduler::Error) -> Self {
        match error {
            djinn_scheduler::Error::Backend { reason } => Error::Stopped(reason),
            error => Error::Scheduler(error),
        }
    }
}

/// This crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;
