//! Bounds on the work of an encoding. A tokenizer's rules come from a stranger, and so may the text.

use crate::{Error, Result};

/// The most bytes of text that are encoded at once; a million tokens of prose have as many.
pub(super) const MAX_TEXT: usize = 4 << 20;

/// The most bytes that the rules may make of it, in all parts together.
const MAX_BYTES: usize = 16 << 20;

/// The most steps of patterns and searches for each byte of the text, and some more for short ones. Published
/// tokenizers need 15 for each byte of most texts, and 50 in the worst case.
const STEPS_OF_A_BYTE: u64 = 128;
const MORE_STEPS: u64 = 1 << 17;

/// The most characters or bytes that a model joins to tokens, in all words together.
const MAX_SYMBOLS: usize = MAX_TEXT + (64 << 10);

/// The rest of a text's budget.
#[derive(Debug)]
pub(super) struct Work {
    steps: u64,
    bytes: usize,
    symbols: usize,
}

impl Work {
    /// The budget of a text of this length.
    pub(super) fn new(bytes: usize) -> Self {
        let steps = MORE_STEPS + STEPS_OF_A_BYTE * bytes as u64;
        Self { steps, bytes: MAX_BYTES, symbols: MAX_SYMBOLS }
    }

    /// Charges steps of work.
    pub(super) fn step(&mut self, steps: u64) -> Result<()> {
        self.steps = self.steps.checked_sub(steps).ok_or_else(too_slow)?;
        Ok(())
    }

    /// Charges bytes by which the rules have made the text longer.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<()> {
        self.bytes = self.bytes.checked_sub(bytes).ok_or_else(too_long)?;
        Ok(())
    }

    /// Refuses a text of this length.
    pub(super) fn check_length(bytes: usize) -> Result<()> {
        if bytes > MAX_BYTES { Err(too_long()) } else { Ok(()) }
    }

    /// Refuses a text of this length that tokens stand for.
    pub(super) fn check_decoded(bytes: usize) -> Result<()> {
        let detail = "the tokens stand for more text than is decoded at once; give fewer";
        if bytes > MAX_BYTES { Err(Error::Tokenizer(detail.into())) } else { Ok(()) }
    }

    /// Charges symbols with which the model begins.
    pub(super) fn symbols(&mut self, symbols: usize) -> Result<()> {
        self.symbols = self.symbols.checked_sub(symbols).ok_or_else(too_long)?;
        Ok(())
    }
}

/// The error for rules that take too long.
pub(super) fn too_slow() -> Error {
    Error::Tokenizer("the tokenizer's rules take too long on this text; shorten it".into())
}

fn too_long() -> Error {
    Error::Tokenizer("the tokenizer's rules make too much of this text; shorten it".into())
}
