//! Why a model cannot be opened. Every message is one line: what, where, and what to do where that is known.

use std::path::PathBuf;

/// A checkpoint, configuration, tokenizer or template that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file is truncated, corrupt or hostile.
    #[error("{}: {detail}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong, and at which byte, key or tensor.
        detail: String,
    },
    /// A tensor that the model needs is not in the checkpoint.
    #[error("the checkpoint has no tensor {name}, which {architecture} needs")]
    MissingTensor {
        /// Its name in the file.
        name: String,
        /// The architecture.
        architecture: String,
    },
    /// A tensor has another shape than the configuration says.
    #[error("tensor {name} has shape {found:?}, the configuration asks for {expected:?}")]
    WrongShape {
        /// Its name in the file.
        name: String,
        /// Shape in the file, outermost first.
        found: Vec<u64>,
        /// Shape by the configuration.
        expected: Vec<u64>,
    },
    /// A well-formed input that Djinn does not support; named, never ignored.
    #[error("{what} is not supported; {remedy}")]
    Unsupported {
        /// The feature, with its value.
        what: String,
        /// What to do instead.
        remedy: String,
    },
    /// A key of a configuration is missing or out of range.
    #[error("{}: `{key}`: {detail}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The model's shapes do not form a graph.
    #[error("the model's shapes do not fit together: {0}")]
    Graph(#[from] djinn_srg::GraphError),
    /// Nothing at this place looks like a model.
    #[error("{place} is no model: {detail}")]
    NotAModel {
        /// As the user gave it.
        place: String,
        /// What was looked for.
        detail: String,
    },
    /// A tokenizer cannot be loaded, or text not be encoded.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// A chat template does not parse or does not render.
    #[error("chat template: {0}")]
    Template(String),
}

/// This crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;
