//! Regular expressions of tokenizers, matched with a bound on work.
//!
//! The patterns are those of the `tokenizers` package: Oniguruma's syntax, leftmost match, earlier alternatives first.
//! A match backtracks, so a hostile pattern can cause any amount of work. Every step is charged to the caller's
//! [`Work`], which refuses at zero.

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

    /// The matches in `text` from left to right. An empty match at the end of the previous one does not count.
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
