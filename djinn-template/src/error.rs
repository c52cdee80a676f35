//! What can go wrong, in one line each.

/// Why a template was not parsed or not rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each message says what its fields are")]
pub enum Error {
    /// The source is no Jinja.
    #[error("{detail} (line {line})")]
    Syntax { line: u32, detail: String },
    /// Valid Jinja that this crate does not render.
    #[error("{what} is not supported (line {line})")]
    Unsupported { line: u32, what: String },
    /// The template called `raise_exception`.
    #[error("{message} (line {line})")]
    Raised { line: u32, message: String },
    /// An operation that Python refuses as well: an undefined value used, a wrong type, a wrong argument.
    #[error("{detail} (line {line})")]
    Evaluation { line: u32, detail: String },
    /// The template asked for more memory, work or depth than it gets.
    #[error("it {what} (line {line})")]
    Limit { line: u32, what: String },
    /// Data for a template that is no JSON, or too large.
    #[error("{0}")]
    Data(String),
}

/// This crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a step of a render gives.
pub(crate) type Eval<T = crate::value::Value> = Result<T, Fault>;

/// A refusal of what Python refuses as well, with a message as of `format!`.
macro_rules! refuse {
    ($($message:tt)*) => { Err($crate::error::Fault::Evaluation(format!($($message)*))) };
}
pub(crate) use refuse;

/// A failure while rendering, before its line is known.
#[derive(Debug)]
pub(crate) enum Fault {
    Raised(String),
    Evaluation(String),
    Unsupported(String),
    Limit(String),
}

impl Fault {
    pub(crate) fn at(self, line: u32) -> Error {
        match self {
            Fault::Raised(message) => Error::Raised { line, message },
            Fault::Evaluation(detail) => Error::Evaluation { line, detail },
            Fault::Unsupported(what) => Error::Unsupported { line, what },
            Fault::Limit(what) => Error::Limit { line, what },
        }
    }
}
