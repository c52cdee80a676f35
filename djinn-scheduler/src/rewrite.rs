//! Keys and values that are written over, after they were computed.
//!
//! A rewrite belongs to the context at which it was asked for: tokens after it are computed with what was written, and
//! tokens before it without. So a session whose pages were given up is computed again as far as that context, and no farther in one step,
//! before its pages are written over again.

use std::collections::BTreeSet;
use std::ops::Range;

/// Keys and values of a session that are written over before its next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// Names it in [`Plan::rewrites`](crate::Plan::rewrites); a session has it once.
    pub number: u64,
    /// The session's context when it was asked for.
    pub context: u64,
    /// Positions that are written, all below `context`, at least one.
    pub positions: Range<u64>,
}

/// A session's rewrites.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rewrites {
    /// In the order in which they are done: of ascending contexts.
    all: Vec<Rewrite>,
    /// How many of the first are in the pages.
    done: usize,
}

impl Rewrites {
    /// Those that are to be done before a step that begins after `context` tokens.
    fn due(&self, context: u64) -> &[Rewrite] {
        let left = &self.all[self.done..];
        &left[..left.iter().take_while(|rewrite| rewrite.context <= context).count()]
    }

    /// The pages hold what was computed, or nothing.
    pub(crate) fn lose(&mut self) {
        self.done = 0;
    }

    /// Forgets what concerns tokens from `tokens` on.
    pub(crate) fn truncate(&mut self, tokens: u64) {
        let stays = |rewrite: &Rewrite| rewrite.positions.start < tokens;
        self.done = self.all[..self.done].iter().filter(|rewrite| stays(rewrite)).count();
        self.all.retain(stays);
        for Rewrite { context, positions, .. } in &mut self.all {
            (*context, positions.end) = (tokens.min(*context), tokens.min(positions.end));
        }
    }

    /// One more, after the others.
    pub(crate) fn push(&mut self, rewrite: Rewrite) {
        self.all.push(rewrite);
    }

    /// Tokens that a step may compute after `context` tokens before pages are written over.
    pub(crate) fn tokens_before(&self, context: u64) -> u64 {
        let left = self.all[self.done..].iter().map(|rewrite| rewrite.context);
        left.filter(|&next| next > context).min().map_or(u64::MAX, |next| next - context)
    }

    /// Numbers of those that are due after `context` tokens; they count as done.
    pub(crate) fn take(&mut self, context: u64) -> Vec<u64> {
        let numbers: Vec<u64> = self.due(context).iter().map(|rewrite| rewrite.number).collect();
        self.done += numbers.len();
        numbers
    }

    /// Places in a page table of the pages that those write to that are due after `context` tokens.
    pub(crate) fn pages(&self, context: u64, page_tokens: u64) -> BTreeSet<u64> {
        let of = |positions: &Range<u64>| positions.start / page_tokens..positions.end.div_ceil(page_tokens);
        self.due(context).iter().flat_map(|rewrite| of(&rewrite.positions)).collect()
    }
}
