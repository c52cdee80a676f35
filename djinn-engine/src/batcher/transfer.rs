//! Sessions that leave with how they were computed, and come from elsewhere with it.

use super::Batcher;
use super::conversation::Conversation;
use crate::{Error, Result};
use djinn_device::Ops;
use djinn_scheduler::SessionId;
use std::ops::Range;

/// Tokens, how many of them were ever computed, and which of these as chunks.
pub(crate) type HowComputed<'a> = (&'a [u32], u64, &'a [Range<u64>]);

impl<D: Ops> Batcher<D> {
    /// A session's tokens, and how they were computed.
    pub(crate) fn computed(&self, id: SessionId) -> Result<HowComputed<'_>> {
        let conversation = self.conversations.get(&id).ok_or(Error::NoSession { session: id.0 })?;
        let (computed, chunks) = conversation.computed();
        Ok((&conversation.tokens, computed, chunks))
    }

    /// Whether anything was ever done at hooks of a session.
    pub(crate) fn is_hooked(&self, id: SessionId) -> bool {
        self.conversations.get(&id).is_some_and(|conversation| conversation.record.is_some())
    }

    /// A session begins between two turns, and shares with no other. Tell the scheduler next.
    pub(crate) fn bring_in(
        &mut self,
        id: SessionId,
        tokens: Vec<u32>,
        computed: u64,
        chunks: Vec<Range<u64>>,
    ) -> Result<()> {
        let conversation = Conversation::at_rest(id, tokens, computed, chunks)?;
        assert!(self.conversations.insert(id, conversation).is_none(), "{id} is opened twice");
        Ok(())
    }

    /// What pages hold from now on is no tenant's that is known: the next one finds them cleared.
    pub(crate) fn disown(&mut self, pages: &[u32]) {
        pages.iter().for_each(|&page| self.holders[page as usize] = None);
    }
}
