//! Pages on the move: what plans say of them, and what came of it.

use super::{Batcher, CopyOutcome, Direction, Place, Residency, State};
use crate::{Entry, Error, Result, Wanted};
use djinn_device::Ops;
use djinn_scheduler::{Move, SessionId};
use djinn_vmu::Sequence;

impl<D: Ops> Batcher<D> {
    /// Drops the sessions that the scheduler does not know any more.
    pub(super) fn leave_to(&mut self, state: &State) {
        let ended = self.conversations.keys().filter(|&&id| state.session(id).is_none());
        for id in ended.copied().collect::<Vec<_>>() {
            self.give_up(id);
            self.conversations.remove(&id);
        }
    }

    pub(super) fn discard(&mut self, sessions: &[SessionId]) {
        sessions.iter().for_each(|&id| self.give_up(id));
    }

    /// Forks that have not begun give up what they were to begin with, since others queue for the pages: they are
    /// computed like everybody else.
    pub(super) fn drop_seeds(&mut self) {
        let seeds = self.conversations.iter().filter(|(_, c)| matches!(c.place, Place::Forked(_)));
        for id in seeds.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.give_up(id);
            self.dropped_seeds = true;
        }
    }

    /// A session's keys and values are wanted no more.
    fn give_up(&mut self, id: SessionId) {
        let data = &mut self.engine.memory.as_mut().expect("loaded").data;
        let conversation = self.conversations.get_mut(&id).unwrap_or_else(|| panic!("{id} is unknown"));
        match std::mem::replace(&mut conversation.place, Place::Gone) {
            Place::Gone => {}
            Place::Device(sequence) | Place::Forked(sequence) => data.release(sequence),
            Place::Parked(parked) => data.discard(parked),
            Place::Arriving(arriving) => data.cancel(arriving),
        }
        self.moving.retain(|_, session| *session != id);
    }

    pub(super) fn swap_out(&mut self, moves: &[Move]) -> Result<()> {
        for &Move { session: id, .. } in moves {
            let sequence = match self.take_place(id) {
                Place::Device(sequence) => sequence,
                other => panic!("{id} is to leave the device, but is {other:?}"),
            };
            let place = match self.engine.park(sequence)? {
                Ok(parked) if parked.host_pages() > 0 => {
                    self.moving.insert(parked.ticket(), id);
                    Place::Parked(parked)
                }
                Ok(parked) => {
                    // All its pages are shared, and nothing is copied.
                    self.copied.push(CopyOutcome { session: id, ok: true });
                    Place::Parked(parked)
                }
                Err(not_moved) => {
                    self.copied.push(CopyOutcome { session: id, ok: false });
                    Place::Device(not_moved.sequence)
                }
            };
            self.put(id, place);
        }
        Ok(())
    }

    pub(super) fn swap_in(&mut self, moves: &[Move]) -> Result<()> {
        for &Move { session: id, .. } in moves {
            let parked = match self.take_place(id) {
                Place::Parked(parked) => parked,
                other => panic!("{id} is to come back, but is {other:?}"),
            };
            let place = match self.engine.restore(parked)? {
                Ok(arriving) => {
                    self.moving.insert(arriving.ticket(), id);
                    Place::Arriving(arriving)
                }
                Err(not_moved) => {
                    // Its tokens are computed again.
                    self.copied.push(CopyOutcome { session: id, ok: false });
                    self.engine.discard(not_moved.sequence);
                    Place::Gone
                }
            };
            self.put(id, place);
        }
        Ok(())
    }

    fn take_place(&mut self, id: SessionId) -> Place {
        let conversation = self.conversations.get_mut(&id).unwrap_or_else(|| panic!("{id} is unknown"));
        std::mem::replace(&mut conversation.place, Place::Gone)
    }

    fn put(&mut self, id: SessionId, place: Place) {
        self.conversations.get_mut(&id).expect("its place was taken").place = place;
    }

    pub(super) fn copies_under_way(&self) -> bool {
        !self.moving.is_empty()
    }

    /// Takes in which copies are done.
    pub(super) fn see_copies(&mut self) -> Result<()> {
        loop {
            match self.engine.poll_swaps() {
                Ok(transfers) => {
                    for transfer in transfers {
                        self.see(transfer);
                    }
                    break;
                }
                // The session is computed again; there may be more to tell.
                Err(Error::Memory(djinn_vmu::Error::KvCorrupt { sequence: ticket, .. })) => {
                    if let Some(id) = self.moving.remove(&ticket) {
                        self.give_up(id);
                        self.copied.push(CopyOutcome { session: id, ok: false });
                    }
                }
                Err(error) => return Err(error),
            }
        }
        let arriving =
            self.conversations.iter().filter_map(|(&id, conversation)| match &conversation.place {
                Place::Arriving(arriving) if self.engine.has_arrived(arriving) => Some(id),
                _ => None,
            });
        for id in arriving.collect::<Vec<_>>() {
            let Place::Arriving(arriving) = self.take_place(id) else { unreachable!("it arrives") };
            self.moving.remove(&arriving.ticket());
            let sequence = self.engine.resume(arriving)?;
            self.put(id, Place::Device(sequence));
            self.copied.push(CopyOutcome { session: id, ok: true });
        }
        Ok(())
    }

    fn see(&mut self, transfer: djinn_vmu::Transfer) {
        let Some(&id) = self.moving.get(&transfer.ticket) else { return };
        self.transfers.push((id, transfer));
        if transfer.direction == Direction::Out {
            self.moving.remove(&transfer.ticket);
            self.copied.push(CopyOutcome { session: id, ok: true });
        }
    }

    /// Parks the sequences of a step and takes them back, where the engine's options ask for it after so many steps.
    pub(super) fn park_if_due(&mut self, sessions: &[SessionId]) -> Result<()> {
        let Some(every) = self.engine.force_park_every else { return Ok(()) };
        if !self.steps.is_multiple_of(every.into()) {
            return Ok(());
        }
        for &id in sessions {
            let Place::Device(mut sequence) = self.take_place(id) else { continue };
            let tokens = sequence.tokens();
            self.engine.move_there_and_back(&mut sequence)?;
            self.recompute(id, &mut sequence, tokens)?;
            self.put(id, Place::Device(sequence));
        }
        Ok(())
    }

    /// Computes the first `tokens` tokens of a session again, as far as `sequence` lacks them.
    fn recompute(&mut self, id: SessionId, sequence: &mut Sequence, tokens: u64) -> Result<()> {
        let chunk = u64::from(self.engine.chunk());
        let conversation = self.conversations.get_mut(&id).expect("its sequence was taken");
        while sequence.tokens() < tokens {
            let from = sequence.tokens();
            let end = (from / chunk * chunk + chunk).min(tokens);
            let chunks = conversation.cut(from, end - from);
            let tokens = &conversation.tokens[from as usize..end as usize];
            let entry = Entry { sequence: &mut *sequence, tokens, chunks: &chunks, wanted: Wanted::Nothing };
            self.engine.step(&mut [entry])?;
        }
        Ok(())
    }

    /// Drops all sessions, and waits for what is under way.
    pub(super) fn clear(&mut self) -> Result<()> {
        if let Some(reason) = &self.failure {
            return Err(Error::Stopped(reason.clone()));
        }
        if self.under_way.take().is_some_and(|step| step.runs()) {
            self.engine.finish(|_| ())?;
        }
        for id in self.conversations.keys().copied().collect::<Vec<_>>() {
            self.give_up(id);
        }
        self.conversations.clear();
        self.engine.settle_swaps()?;
        Ok(())
    }

    /// Where a session's keys and values are, as a scheduler would say.
    pub fn residency(&self, id: SessionId) -> Option<Residency> {
        Some(match &self.conversations.get(&id)?.place {
            Place::Gone | Place::Forked(_) => Residency::Gone,
            Place::Device(_) => Residency::Device,
            Place::Parked(parked) if self.moving.contains_key(&parked.ticket()) => Residency::Leaving,
            Place::Parked(_) => Residency::Host,
            Place::Arriving(_) => Residency::Arriving,
        })
    }
}
