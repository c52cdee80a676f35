//! Imported sessions, with keys and values that were computed elsewhere.
//!
//! Their pages are taken first and belong to no session, so no plan moves them. When they are filled, the session
//! begins between two turns.

use super::Scheduler;
use crate::error::{Error, Result};
use crate::phase::Phase;
use crate::plan::Refusal;
use crate::rewrite::Rewrite;
use crate::session::{Arrival, Session, SessionId};
use crate::state::State;
use djinn_pages::BlockTable;
use std::time::Duration;

impl Scheduler {
    /// Takes `pages` device pages for the new session `id`, by position. `None` if too few are free: plans then make
    /// room, as for a waiting session at the end of the queue, until a call gets them or
    /// [`demand_nothing`](Self::demand_nothing).
    ///
    /// # Errors
    /// [`Error::Refused`] if the device is too small, [`Error::Exists`].
    pub fn take_pages(&mut self, id: SessionId, pages: u32) -> Result<Option<&[u32]>> {
        let State { sessions, incoming, capacity, .. } = &self.state;
        if sessions.contains_key(&id) || incoming.contains_key(&id) {
            return Err(Error::Exists { session: id });
        }
        let device_pages = capacity.device_pages;
        if pages > device_pages {
            return Err(Error::Refused { session: id, why: Refusal::TooLarge { pages, device_pages } });
        }
        if pages > self.state.device_free() {
            self.state.demanded = pages;
            return Ok(None);
        }
        let mut table = BlockTable::default();
        self.state.pages.grow(&mut table, pages);
        self.state.demanded = 0;
        Ok(Some(self.state.incoming.entry(id).or_insert(table).device()))
    }

    /// Stops making room for pages that [`take_pages`](Self::take_pages) did not get.
    pub fn demand_nothing(&mut self) {
        self.state.demanded = 0;
    }

    /// Frees the pages of [`take_pages`](Self::take_pages) for a session that does not come.
    pub fn give_back_pages(&mut self, id: SessionId) {
        if let Some(mut table) = self.state.incoming.remove(&id) {
            self.state.pages.release(&mut table);
        }
    }

    /// Changes keys and values of a session before its next step, and again whenever they were computed anew. Pages
    /// that others hold are copied first. The session's shared [names](Self::name_pages) must end before the
    /// positions.
    pub fn rewrite(&mut self, id: SessionId, rewrite: Rewrite) {
        if let Some(session) = self.state.sessions.get_mut(&id) {
            session.rewrites.push(rewrite);
        }
    }

    /// Keeps the pages of a waiting session in place for the longest lease, since they are being read.
    pub fn keep_pages(&mut self, id: SessionId, now: Duration) {
        let lease = self.parts.rules.max_lease;
        if let Some(session) = self.state.sessions.get_mut(&id) {
            session.lease_until = session.lease_until.max(now + lease);
        }
    }

    /// Begins a session whose pages were taken; it waits for its next turn. The pages hold the keys and values of its
    /// first `context` tokens; `computed` were ever computed. It shares nothing with others. The arrival's prompt and
    /// `max_tokens` are ignored.
    ///
    /// # Errors
    /// [`Error::Missing`] if no pages were taken for it.
    pub fn begin_idle(
        &mut self,
        arrival: &Arrival,
        context: u64,
        computed: u64,
        now: Duration,
    ) -> Result<()> {
        let id = arrival.id;
        let table = self.state.incoming.remove(&id).ok_or(Error::Missing { session: id })?;
        let mut session = Session::new(&Arrival { prompt: 0, ..*arrival }, now);
        (session.phase, session.table) = (Phase::Idle, table);
        (session.context, session.computed) = (context, computed);
        self.state.sessions.insert(id, session);
        self.begin_idling(id, now);
        Ok(())
    }
}
