//! Why a model cannot be loaded or a request not be served.

use crate::{BadLogit, ConstraintError};

/// The engine's failure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each message says what its fields are")]
pub enum Error {
    /// Memory cannot be planned, loaded or streamed.
    #[error(transparent)]
    Memory(djinn_vmu::Error),
    /// The progress callback cancelled the load. Nothing stays loaded.
    #[error("cancelled")]
    Cancelled,
    /// The device failed.
    #[error(transparent)]
    Device(#[from] djinn_device::Error),
    /// The scheduler refuses a session or a request.
    #[error(transparent)]
    Scheduler(djinn_scheduler::Error),
    /// A token outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    UnknownToken { token: u32, vocab: u64 },
    /// A weight has an encoding that the device cannot compute from.
    #[error(
        "weight {weight} is in {encoding}, from which {device} does not compute; open the model for this device"
    )]
    Encoding { weight: String, encoding: djinn_srg::Encoding, device: String },
    /// Keys and values of a type that the device does not compute from.
    #[error("{device} does not compute from keys and values in {dtype}; choose f16, bf16 or f32")]
    CacheType { dtype: djinn_device::DType, device: String },
    /// Attention over larger heads than the device computes.
    #[error(
        "the model's heads have {head_dim} elements, and {device} computes attention over at most {most}; load it on the \
         CPU"
    )]
    HeadDim { head_dim: u32, most: u32, device: String },
    /// Products on the CPU, for a device that cannot leave any to it.
    #[error("{device} has no help of the CPU; leave `cpu_share` out")]
    CpuProducts { device: String },
    /// A prompt without tokens.
    #[error("the prompt is empty; give at least one token")]
    EmptyPrompt,
    /// A sequence that does not fit its context.
    #[error("a sequence of {tokens} tokens does not fit a context of {context}; raise `context`")]
    ContextFull { tokens: u64, context: u64 },
    /// A context larger than the model's.
    #[error("`context` {asked} exceeds the model's context of {most} tokens")]
    ContextTooLong { asked: u64, most: u64 },
    /// An unknown session.
    #[error("session {session} does not exist")]
    NoSession { session: u64 },
    /// A session that computes cannot be exported.
    #[error("session {session} computes; export it between turns, or pause it")]
    NotAtRest { session: u64 },
    /// A session with changed activations, or one that is stopped at a breakpoint, depends on more than its tokens.
    #[error(
        "session {session} is stopped at a breakpoint, or was changed or steered at hooks; such sessions are not exported"
    )]
    Hooked { session: u64 },
    /// The state of a turn's constraint cannot be exported.
    #[error(
        "the turn of session {session} obeys a schema, whose state is not exported; export it between turns"
    )]
    ConstrainedTurn { session: u64 },
    /// An exported session was given up or changed while it was read.
    #[error("session {session} changed or was given up while it was read; export it again")]
    ImageLost { session: u64 },
    /// An imported session that this engine cannot continue.
    #[error("the session cannot be imported: {what}: {detail}")]
    Image { what: &'static str, detail: String },
    /// The pages of an unfinished import were given up for another model on the device.
    #[error("the import took long, and another model needed the device; import the session again")]
    ImportLost { session: u64 },
    /// An intervention that its hook, its entry or the hook memory does not allow.
    #[error("at {hook}: {detail}")]
    Intervention { hook: String, detail: String },
    /// No hook of the model has this name.
    #[error("the model has no hook `{0}`")]
    UnknownHook(String),
    /// The request needs a session that is stopped at a breakpoint.
    #[error("session {session} is not stopped at a breakpoint")]
    NotPaused { session: u64 },
    /// A step could need more hook memory than there is.
    #[error("with this, a step may need {need} bytes of memory for hooks, and `hook_bytes` is {have}")]
    HookMemory {
        /// Bytes needed.
        need: u64,
        /// Bytes available.
        have: u64,
    },
    /// An invalid option.
    #[error("{0}")]
    Option(&'static str),
    /// An invalid sampling field.
    #[error("{field} is {value}; it must be {range}")]
    Sampling {
        /// The field of [`Sampling`](crate::Sampling).
        field: &'static str,
        value: f32,
        range: &'static str,
    },
    /// Logits from which no token can be chosen.
    #[error(transparent)]
    Logits(#[from] BadLogit),
    /// A turn's constraint failed.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    /// An earlier step failed. The contents of the device's memory are undefined.
    #[error("the engine stopped after an earlier failure: {0}")]
    Stopped(String),
    /// The service was [retired](crate::Client::retire), and accepts nothing more.
    #[error("the engine is unloaded: {why}")]
    Retired { why: String },
}

impl From<djinn_vmu::Error> for Error {
    fn from(error: djinn_vmu::Error) -> Self {
        match error {
            djinn_vmu::Error::Cancelled => Error::Cancelled,
            djinn_vmu::Error::Device(error) => Error::Device(error),
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
