//! Errors of opening a model. Every message is one line: what, where, and what to do if that is known.

use crate::printable::one_line;
use std::fmt;
use std::path::PathBuf;

/// A checkpoint, configuration, tokenizer or template that cannot be used. Displayed as one printable line
/// ([`one_line`]), since messages quote strangers' files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each message says what its fields are")]
pub enum Error {
    /// The operating system refused.
    Io { path: PathBuf, source: std::io::Error },
    /// A file is truncated, corrupt or hostile.
    Malformed {
        path: PathBuf,
        /// What is wrong, and at which byte, key or tensor.
        detail: String,
    },
    /// A tensor that the model needs is not in the checkpoint.
    MissingTensor { name: String, architecture: String },
    /// A tensor has another shape than the configuration says.
    WrongShape {
        name: String,
        /// Shape in the file, outermost first.
        found: Vec<u64>,
        /// Shape by the configuration.
        expected: Vec<u64>,
    },
    /// A well-formed input that Djinn does not support; named, never ignored.
    Unsupported { what: String, remedy: String },
    /// A key of a configuration is missing or out of range.
    Config { path: PathBuf, key: String, detail: String },
    /// The model's shapes do not form a graph.
    Graph(#[from] djinn_srg::GraphError),
    /// Nothing at this place looks like a model.
    NotAModel { place: String, detail: String },
    /// A tokenizer cannot be loaded, or text not be encoded.
    Tokenizer(String),
    /// A text that has more tokens than a context whatever it says.
    TextTooLong {
        /// Of the text.
        bytes: usize,
        /// Tokens of the context.
        context: u64,
    },
    /// A chat template does not parse or does not render.
    Template(String),
    /// A weight cannot be read.
    Weight(#[from] djinn_vmu::SourceError),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Io { path, source } => format!("{}: {source}", path.display()),
            Self::Malformed { path, detail } => format!("{}: {detail}", path.display()),
            Self::MissingTensor { name, architecture } => {
                format!("the checkpoint has no tensor {name}, which {architecture} needs")
            }
            Self::WrongShape { name, found, expected } => {
                format!("tensor {name} has shape {found:?}, the configuration asks for {expected:?}")
            }
            Self::Unsupported { what, remedy } => format!("{what} is not supported; {remedy}"),
            Self::Config { path, key, detail } => format!("{}: `{key}`: {detail}", path.display()),
            Self::Graph(error) => format!("the model's shapes do not fit together: {error}"),
            Self::NotAModel { place, detail } => format!("{place} is no model: {detail}"),
            Self::Tokenizer(detail) => format!("tokenizer: {detail}"),
            Self::TextTooLong { bytes, context } => {
                format!("{bytes} bytes of text do not fit in a context of {context} tokens; shorten it")
            }
            Self::Template(detail) => format!("chat template: {detail}"),
            Self::Weight(error) => error.to_string(),
        };
        f.write_str(&one_line(&text))
    }
}

/// This crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;
