//! Tool calls and reasoning, read out of a model's text while it is generated.
//!
//! A model writes calls in the form that its chat template taught it ([`ToolFormat`]). An [`OutputParser`] takes the
//! text in pieces, cut anywhere, and gives out what they make certain.
//!
//! - The same text gives the same events, however it is cut.
//! - What is no call comes out as text: nothing is lost but markers of calls and the white space around them.
//! - Each character is looked at once, and a bounded part of the text is held back.

mod call;
mod format;
mod json;
mod parser;
mod pythonic;

pub use format::{ReasoningMode, ToolFormat};
pub use parser::{OutputEvent, OutputParser};
pub(crate) use pythonic::is_name as is_python_name;

#[cfg(test)]
mod tests;
