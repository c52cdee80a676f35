//! Sessions that are exported with the record of how they were computed, and imported with it.

use super::Batcher;
use super::conversation::Conversation;
use crate::service::{OpenTurn, SessionImage};
use crate::{Error, Result};
use djinn_device::Ops;
use djinn_scheduler::SessionId;
use std::ops::Range;

/// Tokens, how many of them were computed, and which of these as prefill chunks.
pub(crate) type HowComputed<'a> = (&'a [u32], u64, &'a [Range<u64>]);

impl<D: Ops> Batcher<D> {
    /// A session's tokens, and how they were computed.
    pub(crate) fn computed(&self, id: SessionId) -> Result<HowComputed<'_>> {
        let conversation = self.conversations.get(&id).ok_or(Error::NoSession { session: id.0 })?;
        let (computed, chunks) = conversation.computed();
        Ok((&conversation.tokens, computed, chunks))
    }

    /// Whether keys or values of a session's first `tokens` tokens were changed after they were computed.
    pub(crate) fn changes_cache(&self, id: SessionId, tokens: u64) -> bool {
        let record = self.conversations.get(&id).and_then(|conversation| conversation.record.as_deref());
        record.is_some_and(|record| record.changes_cache(tokens))
    }

    /// The image of a session between turns or paused, whose first `context` tokens have keys and values.
    ///
    /// # Errors
    /// A session that is unknown, was changed at hooks, or whose turn has a constraint.
    pub(crate) fn image(&self, id: SessionId, context: u64) -> Result<SessionImage> {
        let conversation = self.conversations.get(&id).ok_or(Error::NoSession { session: id.0 })?;
        // The image tells everything, unless keys and values depend on changes that are not part of it.
        if conversation.record.as_ref().is_some_and(|record| record.changes_something()) {
            return Err(Error::Hooked { session: id.0 });
        }
        let turn = conversation.open_turn().map_err(|()| Error::ConstrainedTurn { session: id.0 })?;
        let (computed, chunks) = conversation.computed();
        let (tokens, chunks) = (conversation.tokens.clone(), chunks.to_vec());
        Ok(SessionImage { tokens, context, computed, chunks, turn })
    }

    /// Registers an imported session, between two turns or in the middle of `turn`. It shares with no other. Tell
    /// the scheduler next.
    pub(crate) fn bring_in(
        &mut self,
        id: SessionId,
        tokens: Vec<u32>,
        (computed, chunks): (u64, Vec<Range<u64>>),
        turn: Option<OpenTurn>,
    ) -> Result<()> {
        let conversation = Conversation::at_rest(id, tokens, computed, chunks)?;
        let conversation = match turn {
            Some(turn) => conversation.in_turn(turn)?,
            None => conversation,
        };
        assert!(self.conversations.insert(id, conversation).is_none(), "{id} is opened twice");
        Ok(())
    }

    /// Forgets the tenants of pages, so that the next tenant finds them cleared.
    pub(crate) fn disown(&mut self, pages: &[u32]) {
        pages.iter().for_each(|&page| self.holders[page as usize] = None);
    }
}
