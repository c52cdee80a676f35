//! Errors of opening, loading and running a model.

use crate::DeviceName;
use djinn_vmu::size;
use std::path::PathBuf;

/// An error of this crate, or of one below it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each message says what its fields are")]
pub enum Error {
    /// The model cannot be opened, or its tokenizer or chat template fails on a text.
    #[error(transparent)]
    Model(#[from] djinn_models::Error),
    /// The model cannot be loaded or run.
    #[error(transparent)]
    Engine(#[from] djinn_engine::Error),
    /// The CPU device cannot be started.
    #[error("cannot start the CPU device")]
    Cpu(#[source] djinn_device::Error),
    /// The GPU does not exist, or cannot be used.
    #[error("`device` {device}")]
    Gpu { device: DeviceName, source: djinn_cuda::Error },
    /// A request for int8 on a GPU that only the CPU device supports.
    #[error(
        "--{flag} int8 is for the CPU alone; drop it for a GPU, or take the CPU: --device cpu, or a plan without --gpu"
    )]
    CpuOnly { flag: &'static str },
    /// The host's memory is too small for the plan.
    #[error(
        "the model needs {} of memory and this machine has {} available; close other programs, shorten the \
         context, or take a smaller model",
        size::human(*needed_bytes), size::human(*available_bytes)
    )]
    HostMemory {
        /// Host bytes of the plan; on the CPU device, the device's as well.
        needed_bytes: u64,
        /// Available memory, including swap space.
        available_bytes: u64,
    },
    /// An unknown card with a name near to a known one's.
    #[error("there is no card {name}; did you mean {near}?")]
    UnknownCard { name: String, near: &'static str },
    /// An unknown name of this program's own, with all that there are.
    #[error("{what}; known are {known}")]
    UnknownName {
        what: String,
        /// The names, joined by commas.
        known: String,
    },
    /// An invalid flag or parameter.
    #[error("{0}")]
    Asked(String),
    /// An empty prompt.
    #[error("the prompt has no tokens; give a longer one")]
    EmptyPrompt,
    /// A prompt that is longer than the model's context.
    #[error("{tokens} tokens exceed the model's context of {context}; give fewer")]
    PromptTooLong { tokens: u64, context: u64 },
    /// A token outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab}; give ids below that")]
    UnknownToken { token: u32, vocab: u64 },
    /// A message that leaves no room for an answer, even without earlier turns.
    #[error(
        "a message of {bytes} bytes{} does not fit a context of {context} tokens; shorten it, or load a longer context",
        tokens.map_or_else(String::new, |tokens| format!(", which makes {tokens} tokens,"))
    )]
    MessageTooLong {
        /// Bytes of the message.
        bytes: usize,
        /// Tokens of the message and of what always precedes it; `None` if it is too long to count.
        tokens: Option<u64>,
        context: u64,
    },
    /// A settings file that is neither TOML nor YAML, or has other contents than keys and values.
    #[error("{}: {detail}; a settings file holds lines of key and value, as TOML or YAML", file.display())]
    Settings { file: PathBuf, detail: String },
    /// Messages in an invalid order.
    #[error("messages must be a system message or none, then the user's and the assistant's in turn")]
    Conversation,
    /// Text for a model without a tokenizer.
    #[error("{model} has no tokenizer; give `prompt_tokens` 1,2,3")]
    NoTokenizer { model: String },
    /// An unsupported URL of a server.
    #[cfg(feature = "remote")]
    #[error("{url} is no address of this program's: give http://HOST:PORT")]
    NoAddress { url: String },
    /// A URL of `https` in a build without the feature `tls`.
    #[cfg(feature = "remote")]
    #[error(
        "{url} needs TLS, and this build speaks http only; build djinn with --features hub, or give http://HOST:PORT"
    )]
    NoTls { url: String },
    /// A server that cannot be reached, or that does not use HTTP.
    #[cfg(feature = "remote")]
    #[error("no answer from {url}")]
    NoAnswer { url: String, source: Box<dyn std::error::Error + Send + Sync> },
    /// A server's answer that ended too early.
    #[cfg(feature = "remote")]
    #[error("the answer of {url} broke off")]
    BrokeOff {
        url: String,
        /// The cause, if known.
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// A server's answer that is not understood.
    #[cfg(feature = "remote")]
    #[error("{url} tells nothing that this version understands")]
    NotUnderstood { url: String, source: serde_json::Error },
    /// A server's refusal.
    #[cfg(feature = "remote")]
    #[error("{}", djinn_models::printable::one_line(why))]
    Refused {
        status: u16,
        /// The machine-readable code, if there is one.
        code: Option<String>,
        why: String,
    },
    /// A server that requests a piece that the model does not have.
    #[cfg(feature = "remote")]
    #[error("the server asks for a piece that is no part of the model")]
    NoSuchPiece,
    /// A piece of a model could not be sent.
    #[cfg(feature = "remote")]
    #[error("the model is not whole at the server; the same command goes on")]
    NotWhole(#[source] Box<Error>),
    /// A replacement that ended after the new model was complete at the server, under another name.
    #[cfg(feature = "remote")]
    #[error("the replacement of {name} by {next} is not complete; run the same command again")]
    NotReplaced { name: String, next: String, source: Box<Error> },
    /// A model's file that cannot be read.
    #[cfg(feature = "remote")]
    #[error("{}", file.display())]
    Unreadable { file: PathBuf, source: std::io::Error },
    /// A system message for a model without a chat template, or with the template disabled.
    #[error("`system` needs a chat template, which {model} lacks; drop it")]
    NoTemplate { model: String },
    /// A system message for a model whose chat template leaves it out.
    #[error("the chat template of {model} leaves out system messages; drop `system`")]
    SystemIgnored { model: String },
}

impl Error {
    /// Whether an existing device failed, so that a new one must be made, possibly by another process.
    pub fn is_device_lost(&self) -> bool {
        use djinn_device::Error::DeviceLost;
        use djinn_engine::Error::Device;
        match self {
            Error::Gpu { source, .. } => source.is_of_context(),
            Error::Cpu(error) | Error::Engine(Device(error)) => matches!(error, DeviceLost { .. }),
            _ => false,
        }
    }
}

/// This crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;
