//! Page copies: begins those of a plan, and reports their ends.

use super::Batcher;
use crate::{Error, Result};
use djinn_device::Ops;
use djinn_scheduler::{CopyOutcome, Grant, Move, Plan, SessionId, State};
use djinn_vmu::{Direction, Transfer};

impl<D: Ops> Batcher<D> {
    /// Drops the sessions that are missing from the scheduler's state.
    pub(super) fn leave_to(&mut self, state: &State) {
        self.conversations.retain(|&id, _| state.session(id).is_some());
    }

    /// The pages of a plan that get a new tenant, or whose tenant is unknown; the sessions' tenants own them from
    /// now on. Pages that a copy overwrites as a whole are left out.
    pub(super) fn pass_on(&mut self, plan: &Plan) -> Vec<u32> {
        let mut foreign = Vec::new();
        for Grant { session, fresh, .. } in &plan.grants {
            let tenant = self.conversations.get(session).map(|conversation| &conversation.tenant);
            for &page in fresh {
                let holder = &mut self.holders[page as usize];
                if holder.is_none() || holder.as_ref() != tenant {
                    *holder = tenant.cloned();
                    foreign.push(page);
                }
            }
        }
        // A copy may fail and leave the page as it was.
        let copied =
            plan.swap_in.iter().flat_map(|arrival| arrival.way.copies.iter().map(|pair| pair.device));
        for page in copied.chain(plan.duplicates.iter().map(|copy| copy.to)) {
            self.holders[page as usize] = None;
        }
        foreign
    }

    pub(super) fn swap(&mut self, direction: Direction, moves: &[Move]) -> Result<()> {
        for Move { session, way, .. } in moves {
            self.engine.swap(direction, session.0, way)?;
            self.moving += 1;
        }
        Ok(())
    }

    /// Records which copies are done.
    pub(super) fn see_copies(&mut self) -> Result<()> {
        let done = self.engine.poll_swaps()?;
        self.note_copies(done);
        Ok(())
    }

    /// Waits for the copies under way. The next poll reports them.
    pub(crate) fn settle_copies(&mut self) -> Result<()> {
        let done = self.engine.settle_swaps()?;
        self.note_copies(done);
        Ok(())
    }

    /// Whether page copies are under way, or have ended and are not reported yet.
    pub(crate) fn is_copying(&self) -> bool {
        self.moving > 0 || !self.copied.is_empty()
    }

    /// Prepares for the model to leave the device. No session has pages there.
    pub(crate) fn evict(&mut self) {
        // The pages will hold other data when the model comes back.
        self.holders.fill(None);
        self.engine.evict();
    }

    fn note_copies(&mut self, done: Vec<Transfer>) {
        for transfer in done {
            let session = SessionId(transfer.ticket);
            self.moving -= 1;
            self.copied.push(CopyOutcome { session, ok: transfer.fault.is_none() });
            if transfer.fault.is_none() {
                self.transfers.push((session, transfer));
            }
        }
    }

    /// Drops all sessions, and waits for the work under way.
    pub(super) fn clear(&mut self) -> Result<()> {
        if let Some(reason) = &self.failure {
            return Err(Error::Stopped(reason.clone()));
        }
        for _ in self.under_way.drain(..) {
            self.engine.finish(|_, _, _| ())?;
        }
        self.conversations.clear();
        self.engine.settle_swaps()?;
        self.moving = 0;
        Ok(())
    }
}
