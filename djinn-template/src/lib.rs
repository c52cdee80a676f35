//! Chat templates of strangers, rendered as Hugging Face's transformers renders them.
//!
//! A template is a small Jinja program that comes with a model's weights and turns a conversation into the text
//! that the model was trained on. This crate interprets it, with Python's ways of printing, comparing and
//! formatting, and promises three things beyond the text:
//!
//! - **Bounds.** Memory, work and depth of a render are counted before they are spent; a template that asks for
//!   more is refused with one line. Nothing panics, and a stack of 2 MiB is enough.
//! - **Origin.** [`Rendered::literal`] says which bytes are the conversation's, also after the template trimmed,
//!   split or replaced, so that a special token in a user's words can be told from the template's own.
//! - **No silence.** What is not supported is refused by name.
//!
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

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
