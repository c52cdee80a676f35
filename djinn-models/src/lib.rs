//! Model families, checkpoint readers, tokenizers and chat templates.
//!
//! A model is a function from its configuration to an SRG plus a map of weight names: [`open`] gives a
//! [`Model`] and reads no weights. It holds no device code.

#![forbid(unsafe_code)]
#![doc = include_str!("../README.md")]

pub mod chat;
mod decoder;
mod error;
mod families;
pub mod file;
pub mod gguf;
mod open;
pub mod packed;
mod packing;
mod quant;
pub mod quantised;
pub mod safetensors;
mod small_files;
pub mod stored;
pub mod synthetic;
mod tensor;
pub mod tokenizer;
mod weights;

pub use chat::{ChatTemplate, Conversation, Message, Rendered};
pub use djinn_template::printable;
pub use error::{Error, Result};
pub use open::{GenerationDefaults, Location, Model, OpenOptions, Packing, open};
pub use small_files::SMALL_FILES;
pub use tensor::{StoredType, TensorFile, TensorInfo};
pub use tokenizer::{TextStream, Tokenizer};
pub use weights::EncodedWeights;
