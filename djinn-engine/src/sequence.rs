//! Sequences without a scheduler, for tests and measurements.

use crate::Intervention;
use crate::pass::batch::{BatchEntry, SHORT_RUN, Wanted};
use djinn_device::{Changes, Draw};
use djinn_pages::{BlockTable, Pages, Residency};
use djinn_vmu::Transfer;
use std::ops::Range;

/// A sequence with pages in its caller's book, the same in every call. Steps make it grow.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    pub(crate) table: BlockTable,
    pub(crate) tokens: u64,
}

impl Sequence {
    /// Tokens whose keys and values are in the pages, or will be after enqueued work.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Pages on the device, by position.
    pub fn pages(&self) -> &[u32] {
        self.table.device()
    }

    /// Where the pages are.
    pub fn residency(&self) -> Residency {
        self.table.residency()
    }

    /// Gives the pages back.
    ///
    /// # Panics
    /// If they are being copied.
    pub fn release(mut self, pages: &mut Pages) {
        let at = self.residency();
        assert!(
            !matches!(at, Residency::Leaving | Residency::Arriving),
            "a sequence is released that is {at:?}"
        );
        pages.release(&mut self.table);
    }

    /// Records that a swap has ended. If its way back failed, the sequence has no tokens.
    pub fn end_swap(&mut self, pages: &mut Pages, transfer: &Transfer) {
        pages.end_copy(&mut self.table, transfer.fault.is_none());
        if self.residency() == Residency::Gone {
            self.tokens = 0;
        }
    }

    /// Makes room for tokens up to `end`, all or nothing. Returns whether there was room.
    pub(crate) fn grow(
        &mut self,
        book: &mut Pages,
        end: u64,
        page_tokens: u64,
        fresh: &mut Vec<u32>,
    ) -> bool {
        let Ok(pages) = u32::try_from(end.div_ceil(page_tokens)) else { return false };
        if pages.saturating_sub(self.pages().len() as u32) > book.device_free() {
            return false;
        }
        fresh.extend(book.grow(&mut self.table, pages));
        // No other sequence has this page, but host memory may hold a copy of its former contents.
        let shared = book.write(&mut self.table, self.tokens / page_tokens);
        debug_assert_eq!(shared, None, "a sequence shares no page");
        self.tokens = end;
        true
    }

    pub(crate) fn truncate(&mut self, book: &mut Pages, tokens: u64, page_tokens: u64) {
        self.tokens = self.tokens.min(tokens);
        book.truncate(&mut self.table, self.tokens.div_ceil(page_tokens) as u32);
    }
}

/// A sequence's share of a step.
#[derive(Debug)]
pub struct Entry<'a> {
    /// The sequence. It grows by the tokens.
    pub sequence: &'a mut Sequence,
    /// Tokens to append, at least one.
    pub tokens: &'a [u32],
    /// As in a [`BatchEntry`].
    pub chunks: &'a [Range<usize>],
    /// Which logits are wanted on the host.
    pub wanted: Wanted,
    /// As in a [`BatchEntry`].
    pub choose: Option<Draw>,
    /// As in a [`BatchEntry`].
    pub changes: Changes<'a>,
    /// As in a [`BatchEntry`].
    pub interventions: &'a [Intervention],
}

impl<'a> Entry<'a> {
    /// An entry whose tokens are one chunk if they are more than [`SHORT_RUN`].
    pub fn new(sequence: &'a mut Sequence, tokens: &'a [u32], wanted: Wanted) -> Self {
        /// The whole entry, whatever its length.
        const WHOLE: &[Range<usize>] = std::slice::from_ref(&(0..usize::MAX));
        let chunks = if tokens.len() > SHORT_RUN { WHOLE } else { &[] };
        let changes = Changes::default();
        Entry { sequence, tokens, chunks, wanted, choose: None, changes, interventions: &[] }
    }

    pub(crate) fn in_batch(&self) -> BatchEntry<'_> {
        let Entry { tokens, chunks, wanted, choose, changes, interventions, .. } = *self;
        let from = self.sequence.tokens.saturating_sub(tokens.len() as u64);
        let (pages, after) = (self.sequence.pages(), None);
        BatchEntry { pages, from, tokens, after, chunks, wanted, choose, changes, interventions }
    }
}
