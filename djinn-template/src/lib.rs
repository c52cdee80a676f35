//! Chat templates of strangers, rendered as Hugging Face's transformers renders them.
//!
//! A template that asks for more memory, work or depth than it gets is refused with one line, and what is not
//! supported is refused by name. Nothing panics, and a stack of 2 MiB is enough. [`Rendered::literal`] says which
//! bytes are the conversation's, so that a special token in a user's words can be told from the template's own.
//!
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod arguments;
mod ast;
mod budget;
mod error;
mod filters;
mod format;
mod functions;
mod json;
mod lexer;
mod methods;
mod numbers;
mod operators;
mod parser;
mod predicates;
pub mod printable;
mod render;
mod template;
mod text;
mod time;
mod value;

pub use error::{Error, Result};
pub use template::{Context, Rendered, Template};
pub use value::Value;
