//! Sequences that an engine keeps for itself, as tests and measurements use them.

use crate::Intervention;
use crate::pass::batch::{BatchEntry, SHORT_RUN, Wanted};
use djinn_pages::{BlockTable, Duplicate, Pages, Residency};
use std::ops::Range;

/// A sequence that no scheduler knows: the engine grows it as steps need. Give it to [`Engine::release`](crate::Engine::release).
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    pub(crate) table: BlockTable,
    pub(crate) tokens: u64,
}

impl Sequence {
    /// Tokens whose keys and values are, or are about to be, in the pages.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Pages on the device, in order of position.
    pub fn pages(&self) -> &[u32] {
        self.table.device()
    }

    /// Where the pages are.
    pub fn residency(&self) -> Residency {
        self.table.residency()
    }

    /// Makes room for tokens up to `end`, all or nothing; gives what is to be copied before they are written.
    pub(crate) fn grow(
        &mut self,
        book: &mut Pages,
        end: u64,
        page_tokens: u64,
        fresh: &mut Vec<u32>,
    ) -> Option<Vec<Duplicate>> {
        let pages = u32::try_from(end.div_ceil(page_tokens)).ok()?;
        let partial = (!self.tokens.is_multiple_of(page_tokens)).then_some(self.tokens / page_tokens);
        let own = partial.is_some_and(|index| book.is_shared(&self.table, index));
        if pages.saturating_sub(self.pages().len() as u32) + u32::from(own) > book.device_free() {
            return None;
        }
        fresh.extend(book.grow(&mut self.table, pages));
        self.tokens = end;
        Some(partial.and_then(|index| book.write(&mut self.table, index)).into_iter().collect())
    }

    pub(crate) fn truncate(&mut self, book: &mut Pages, tokens: u64, page_tokens: u64) {
        self.tokens = self.tokens.min(tokens);
        book.truncate(&mut self.table, self.tokens.div_ceil(page_tokens) as u32);
    }
}

/// One sequence's share of a step.
#[derive(Debug)]
pub struct Entry<'a> {
    /// The sequence; grows by the tokens.
    pub sequence: &'a mut Sequence,
    /// Tokens to append, at least one.
    pub tokens: &'a [u32],
    /// As in a [`BatchEntry`].
    pub chunks: &'a [Range<usize>],
    /// Whose logits are wanted.
    pub wanted: Wanted,
    /// As in a [`BatchEntry`].
    pub interventions: &'a [Intervention],
}

impl<'a> Entry<'a> {
    /// An entry whose tokens are one chunk if they are more than [`SHORT_RUN`].
    pub fn new(sequence: &'a mut Sequence, tokens: &'a [u32], wanted: Wanted) -> Self {
        /// The entry, whatever its length.
        const WHOLE: &[Range<usize>] = std::slice::from_ref(&(0..usize::MAX));
        let chunks = if tokens.len() > SHORT_RUN { WHOLE } else { &[] };
        Entry { sequence, tokens, chunks, wanted, interventions: &[] }
    }

    pub(crate) fn in_batch(&self) -> BatchEntry<'_> {
        let Entry { tokens, chunks, wanted, interventions, .. } = *self;
        let from = self.sequence.tokens.saturating_sub(tokens.len() as u64);
        BatchEntry { pages: self.sequence.pages(), from, tokens, chunks, wanted, interventions }
    }
}
