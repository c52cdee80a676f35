//! Regular expressions of tokenizers, matched within a bound of work.
//!
//! The patterns are those of the `tokenizers` package: Oniguruma's syntax, leftmost match, the first
//! alternative before the others. A match backtracks, so a hostile pattern can ask for any amount of work:
//! every step is taken from the caller's [`Work`], and what is left at zero is a refusal.

mod class;
mod parse;
mod program;
mod run;
#[cfg(test)]
mod tests;

pub(super) use class::CharSet;

use super::work::Work;
use crate::Result;
use program::Instruction;
use std::ops::Range;

#[derive(Debug)]
pub(super) struct Pattern {
    program: Vec<Instruction>,
    sets: Vec<CharSet>,
}

impl Pattern {
    /// # Errors
    /// [`crate::Error::Tokenizer`] for what is no pattern, is too large, or uses what no published tokenizer
    /// does (back references, recursion, conditions).
    pub(super) fn new(source: &str) -> Result<Self> {
        let (node, sets) = parse::parse(source)?;
        let program = program::compile(&node)?;
        Ok(Self { program, sets })
    }

    /// The matches in `text` from left to right. An empty match at the end of the one before is none.
    pub(super) fn find_all(
        &self,
        text: &str,
        work: &mut Work,
        mut found: impl FnMut(Range<usize>),
    ) -> Result<()> {
        let (mut from, mut last_end) = (0, None);
        while from <= text.len() {
            let Some(range) = run::find(self, text, from, work)? else { break };
            if range.is_empty() && last_end == Some(range.end) {
                from += text[from..].chars().next().map_or(1, char::len_utf8);
                continue;
            }
            from = range.end;
            last_end = Some(range.end);
            found(range);
        }
        Ok(())
    }
}
