//! Changes of keys and values that were computed already.
//!
//! A rewrite belongs to the context at which it was requested: tokens after it are computed with the new values,
//! tokens before it without. So a session whose pages were freed is first computed again up to that context, in steps
//! that end there, and then its pages are rewritten.

use std::ops::Range;

/// A change of a session's keys and values, to be applied before its next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// Its number in [`Plan::rewrites`](crate::Plan::rewrites), unique in the session.
    pub number: u64,
    /// The session's context at the time of the request.
    pub context: u64,
    /// Changed positions, all below `context`, at least one.
    pub positions: Range<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rewrites {
    /// In order of application, with ascending contexts.
    all: Vec<Rewrite>,
    /// How many of the first are applied to the pages.
    done: usize,
}

impl Rewrites {
    /// Those to apply before a step that begins after `context` tokens.
    fn due(&self, context: u64) -> &[Rewrite] {
        let left = &self.all[self.done..];
        &left[..left.iter().take_while(|rewrite| rewrite.context <= context).count()]
    }

    /// The pages hold computed values only, or nothing.
    pub(crate) fn lose(&mut self) {
        self.done = 0;
    }

    /// Drops changes of tokens from `tokens` on.
    pub(crate) fn truncate(&mut self, tokens: u64) {
        let stays = |rewrite: &Rewrite| rewrite.positions.start < tokens;
        self.done = self.all[..self.done].iter().filter(|rewrite| stays(rewrite)).count();
        self.all.retain(stays);
        for Rewrite { context, positions, .. } in &mut self.all {
            (*context, positions.end) = (tokens.min(*context), tokens.min(positions.end));
        }
    }

    /// Adds one after the others.
    pub(crate) fn push(&mut self, rewrite: Rewrite) {
        self.all.push(rewrite);
    }

    /// Tokens that a step may compute after `context` tokens before the next rewrite.
    pub(crate) fn tokens_before(&self, context: u64) -> u64 {
        let left = self.all[self.done..].iter().map(|rewrite| rewrite.context);
        left.filter(|&next| next > context).min().map_or(u64::MAX, |next| next - context)
    }

    /// Numbers of those due after `context` tokens, which then count as applied.
    pub(crate) fn take(&mut self, context: u64) -> Vec<u64> {
        let numbers: Vec<u64> = self.due(context).iter().map(|rewrite| rewrite.number).collect();
        self.done += numbers.len();
        numbers
    }

    /// Page table indices of the pages that rewrites due after `context` tokens write to, some more than once.
    pub(crate) fn pages(&self, context: u64, page_tokens: u64) -> Vec<u64> {
        let of = |positions: &Range<u64>| positions.start / page_tokens..positions.end.div_ceil(page_tokens);
        self.due(context).iter().flat_map(|rewrite| of(&rewrite.positions)).collect()
    }
}
