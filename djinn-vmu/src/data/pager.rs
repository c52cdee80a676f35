//! The pager: parks sequences in pinned host memory and brings them back, beside computation.
//!
//! ```text
//! Sequence ──park──▶ Parked ──restore──▶ Arriving ──resume──▶ Sequence
//!                      │ discard            │ cancel            │ release
//! ```
//!
//! Only a [`Sequence`] can be part of a step: the types say where a sequence is. Streams of their own copy each way,
//! ordered by events alone; no call blocks the host (but [`DataSegment::settle`], whose purpose it is).
//!
//! **When may a page be used again?** Once the host has *seen*, in [`DataSegment::poll`], that the copy from it is
//! done. The alternative, handing it out at once and letting the taker's stream wait, would stall the compute stream,
//! i.e. every sequence of the batch, for one sequence's copy. This way nothing on the device ever waits for a parking,
//! and no stream can touch a page that is still being copied, because nobody was told of it. The price is that pages
//! become free only when the host looks: between two steps.
//!
//! **What if a copy fails?** A call that the device refuses ([`djinn_device::Error::Resource`]) leaves the device sound
//! and the sequence whole where it was: an outcome, [`Refusal::Copy`]. Work that fails later is a failure of the whole
//! device in the seam (and on GPUs, where it ends the context): it says which stream, hence which direction, but not
//! which copy, and nothing runs afterwards. Every method then returns the error, and what was parked is lost. Pages
//! come back in either case.

#[cfg(test)]
mod tests;

use super::swap::{Failure, Move, Order, Swap};
use super::{DataSegment, PagesFull, Sequence, SwapPace, SwapStats, Transfer};
use crate::Result;
use djinn_device::{Ops, Stream};

/// A sequence whose own pages are in host memory, or on their way there. Give it back with
/// [`restore`](DataSegment::restore) or [`discard`](DataSegment::discard).
#[derive(Debug, PartialEq, Eq)]
pub struct Parked {
    ticket: u64,
    tokens: u64,
    /// In order of position.
    places: Vec<Place>,
    /// The last piece of its way out, if it has any.
    left: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// On the device: others refer to the page, too.
    Device(u32),
    Host(u32),
}

impl Parked {
    /// Counts parkings of the segment from 0: names this one in errors and transfers.
    pub fn ticket(&self) -> u64 {
        self.ticket
    }

    /// Tokens of the sequence.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Pages in host memory: as many as a restore needs on the device.
    pub fn host_pages(&self) -> u32 {
        self.pages_on_host().count() as u32
    }

    /// Those pages, in order of position.
    pub(super) fn pages_on_host(&self) -> impl Iterator<Item = u32> {
        self.places.iter().filter_map(|place| match place {
            Place::Host(page) => Some(*page),
            Place::Device(_) => None,
        })
    }

    /// Pages that stayed on the device because others share them.
    pub fn shared_pages(&self) -> impl Iterator<Item = u32> {
        self.places.iter().filter_map(|place| match place {
            Place::Device(page) => Some(*page),
            Place::Host(_) => None,
        })
    }
}

/// A sequence on its way back. Give it to [`resume`](DataSegment::resume) or [`cancel`](DataSegment::cancel).
#[derive(Debug, PartialEq, Eq)]
pub struct Arriving {
    ticket: u64,
    sequence: Sequence,
    /// The last piece of its way back, if it has any.
    back: Option<u64>,
}

impl Arriving {
    /// As of its [`Parked`].
    pub fn ticket(&self) -> u64 {
        self.ticket
    }

    /// Tokens of the sequence.
    pub fn tokens(&self) -> u64 {
        self.sequence.tokens
    }

    /// Pages that it will have, in order of position.
    pub fn pages(&self) -> &[u32] {
        &self.sequence.pages
    }
}

/// Too few pinned pages are free: an outcome, not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostFull {
    /// Pages asked for.
    pub requested: u32,
    /// Pages free.
    pub free: u32,
    /// Pages that will be free once copies under way are done: [`DataSegment::poll`], then ask again.
    pub leaving: u32,
}

/// Why a sequence was not moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Host memory is full: keep the sequence, or release it and compute its tokens again.
    HostFull(HostFull),
    /// The device is full.
    PagesFull(PagesFull),
    /// The device is sound but refused a call.
    Copy(djinn_device::Error),
}

/// A sequence that stayed where it was, whole: an outcome, not an error.
#[derive(Debug, PartialEq, Eq)]
pub struct NotMoved<S> {
    /// The sequence.
    pub sequence: S,
    /// The reason.
    pub why: Refusal,
}

impl DataSegment {
    /// Enqueues copies of the pages that only `sequence` refers to into pinned host memory, after all work enqueued
    /// so far on `compute`; shared pages stay. The device's pages are free once [`poll`](Self::poll) saw the copies
    /// done. Pages of the prefix cache stay in it as long as there is room.
    ///
    /// # Errors
    /// A failure of the device; the sequence is lost then.
    pub fn park<D: Ops>(
        &mut self,
        device: &D,
        compute: Stream,
        sequence: Sequence,
    ) -> Result<std::result::Result<Parked, NotMoved<Sequence>>> {
        let mut own: Vec<u32> =
            sequence.pages.iter().copied().filter(|&page| self.pages.references(page) == 1).collect();
        own.sort_unstable();
        let requested = own.len() as u32;
        let (free, leaving) = (self.free_host_pages(), self.leaving_host_pages());
        if requested > free {
            let why = Refusal::HostFull(HostFull { requested, free, leaving });
            return Ok(Err(NotMoved { sequence, why }));
        }
        let (moves, kept) = self.places_on_host(&own);
        let (ticket, mut left) = (self.tickets, None);
        if let (Some(swap), false) = (&mut self.swap, own.is_empty()) {
            own.retain(|&page| self.layout.check && !self.prefix.holds(page));
            let order = Order { ticket, moves: &moves, kept: &kept, poison: &own, left: None };
            match swap.leave(device, compute, &mut self.pages, &order) {
                Ok(last) => left = last,
                Err(failure) => {
                    moves.iter().for_each(|m| swap.drop_host(m.host));
                    kept.iter().for_each(|m| swap.keep(m.device, m.host));
                    return self.stays(failure, sequence, Self::release).map(Err);
                }
            }
        }
        self.tickets += 1;
        let mut left_for: Vec<Move> = moves.into_iter().chain(kept).collect();
        left_for.sort_unstable_by_key(|m| m.device);
        let place = |&page: &u32| match left_for.binary_search_by_key(&page, |m| m.device) {
            Ok(at) => Place::Host(left_for[at].host),
            Err(_) => Place::Device(page),
        };
        let places = sequence.pages.iter().map(place).collect();
        left_for.iter().rev().for_each(|m| self.drop_reference(m.device));
        Ok(Ok(Parked { ticket, tokens: sequence.tokens, places, left }))
    }

    /// Takes host pages for `own`, ascending: those to copy, in ascending order on both sides so that neighbours stay
    /// neighbours, and those whose clean copies are there.
    fn places_on_host(&mut self, own: &[u32]) -> (Vec<Move>, Vec<Move>) {
        let Some(swap) = &mut self.swap else { return (Vec::new(), Vec::new()) };
        let (mut changed, mut kept) = (Vec::new(), Vec::new());
        for &device in own {
            match swap.take_copy(device) {
                Some(host) => kept.push(Move { device, host }),
                None => changed.push(device),
            }
        }
        let hosts = swap.take_hosts(changed.len());
        (changed.into_iter().zip(hosts).map(|(device, host)| Move { device, host }).collect(), kept)
    }

    /// Takes device pages for a parked sequence and enqueues copies back, after its way out. Computation goes on
    /// meanwhile: [`has_arrived`](Self::has_arrived) tells when [`resume`](Self::resume) stalls nothing. The host's
    /// pages are free once [`poll`](Self::poll) saw the copies done.
    ///
    /// # Errors
    /// A failure of the device; the sequence is lost then.
    pub fn restore<D: Ops>(
        &mut self,
        device: &D,
        parked: Parked,
    ) -> Result<std::result::Result<Arriving, NotMoved<Parked>>> {
        let requested = parked.host_pages();
        if requested > self.free_pages() {
            let why = Refusal::PagesFull(self.full(requested));
            return Ok(Err(NotMoved { sequence: parked, why }));
        }
        let (moves, pages) = self.places_on_device(&parked);
        let mut back = None;
        if let (Some(swap), false) = (&mut self.swap, moves.is_empty()) {
            match swap.come_back(device, &mut self.pages, parked.ticket, &moves, parked.left) {
                Ok(last) => back = last,
                Err(failure) => {
                    moves.iter().for_each(|m| self.drop_reference(m.device));
                    return self.stays(failure, parked, Self::discard).map(Err);
                }
            }
            moves.iter().for_each(|m| swap.keep(m.device, m.host));
        }
        let Parked { ticket, tokens, .. } = parked;
        Ok(Ok(Arriving { ticket, sequence: Sequence { pages, tokens }, back }))
    }

    /// Takes device pages for those in host memory: moves in ascending order, and all pages in order of position.
    fn places_on_device(&mut self, parked: &Parked) -> (Vec<Move>, Vec<u32>) {
        let mut hosts: Vec<u32> = parked.pages_on_host().collect();
        hosts.sort_unstable();
        let mut own = self.take(hosts.len() as u32);
        own.sort_unstable();
        let moves: Vec<Move> =
            own.into_iter().zip(hosts).map(|(device, host)| Move { device, host }).collect();
        let page = |place: &Place| match *place {
            Place::Device(page) => page,
            Place::Host(page) => {
                let at = moves.binary_search_by_key(&page, |m| m.host).expect("each host page has a move");
                moves[at].device
            }
        };
        let pages = parked.places.iter().map(page).collect();
        (moves, pages)
    }

    /// Whether the copies back were seen to be done, as of the latest [`poll`](Self::poll).
    pub fn has_arrived(&self, arriving: &Arriving) -> bool {
        match (&self.swap, arriving.back) {
            (Some(swap), Some(piece)) => swap.is_back(piece),
            _ => true,
        }
    }

    /// Makes `compute` wait for the copies back, if they are not done; work enqueued on it from now on may use the
    /// sequence. Copies that were held back ([`share_link`](Self::share_link)) are enqueued first.
    ///
    /// # Errors
    /// A failure of the device, or one of these copies is refused again and again; the sequence is lost then.
    pub fn resume<D: Ops>(&mut self, device: &D, compute: Stream, arriving: Arriving) -> Result<Sequence> {
        if let (Some(swap), Some(piece)) = (&mut self.swap, arriving.back)
            && let Err(failure) = swap.join(device, compute, piece)
        {
            self.broken(&failure);
            self.release(arriving.sequence);
            return Err(failure.into());
        }
        Ok(arriving.sequence)
    }

    /// Cuts and paces transfers in another way from now on; bytes do not depend on it.
    pub fn set_pace(&mut self, pace: SwapPace) {
        if let Some(swap) = &mut self.swap {
            swap.pace.rule = pace;
        }
    }

    /// Shares the link between swaps and the weights of a pass that is about to be enqueued, and that streams
    /// `streamed_bytes` of them on `weights`: no more than that is under way to the device at a time (some pieces at
    /// least), and what was enqueued before the pass before comes before this pass's weights. So neither starves,
    /// whatever order the device chooses, and the host need not look within a pass. Without streaming nothing is held
    /// back. [`poll`](Self::poll) enqueues the rest as room appears.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn share_link<D: Ops>(&mut self, device: &D, weights: Stream, streamed_bytes: u64) -> Result<()> {
        let Some(swap) = &mut self.swap else { return Ok(()) };
        let shared = swap.share(device, weights, streamed_bytes);
        shared.map_err(|failure| {
            self.broken(&failure);
            failure.into()
        })
    }

    /// Gives a parked sequence up: its pages are free once copies under way are done.
    pub fn discard(&mut self, parked: Parked) {
        for place in parked.places.into_iter().rev() {
            match (place, &mut self.swap) {
                (Place::Device(page), _) => self.drop_reference(page),
                (Place::Host(page), Some(swap)) => swap.drop_host(page),
                (Place::Host(page), None) => panic!("host page {page} of a segment without any"),
            }
        }
    }

    /// Gives a sequence up that is on its way back: its pages are free once the copies are done.
    pub fn cancel(&mut self, arriving: Arriving) {
        self.drop_references(arriving.sequence.pages);
    }

    /// Takes in which copies are done: frees the pages that they came from, and gives the transfers that ended since.
    /// A few microseconds; call it between steps, and before giving up for lack of pages.
    ///
    /// # Errors
    /// In check mode, [`Error::KvCorrupt`](crate::Error::KvCorrupt) for a page that came back with other bytes: its
    /// sequence is lost, everything else goes on; poll again for what else there is to tell. A failure of the device;
    /// a copy that was held back ([`share_link`](Self::share_link)) and is refused although none is under way.
    pub fn poll<D: Ops>(&mut self, device: &D) -> Result<Vec<Transfer>> {
        let Some(swap) = &mut self.swap else { return Ok(Vec::new()) };
        let mut idle = Vec::new();
        let seen = swap.poll(device, &mut self.pages, &mut idle);
        if let Err(Failure::Broken(_)) = seen {
            swap.give_up(&mut self.pages, &mut idle);
        }
        let (corrupt, transfers) = (swap.corrupt.pop_front(), &mut swap.transfers);
        let told = if corrupt.is_none() { std::mem::take(transfers) } else { Vec::new() };
        idle.into_iter().for_each(|page| self.idle(page));
        seen?;
        corrupt.map_or(Ok(told), Err)
    }

    /// Blocks the host until all copies under way are done, then [`poll`](Self::poll)s: for a host with nothing else
    /// to do.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn settle<D: Ops>(&mut self, device: &D) -> Result<Vec<Transfer>> {
        let mut told = Vec::new();
        loop {
            let Some(swap) = &mut self.swap else { return Ok(told) };
            let more = match swap.settle(device) {
                Ok(more) => more,
                Err(failure) => {
                    self.broken(&failure);
                    return Err(failure.into());
                }
            };
            told.append(&mut self.poll(device)?);
            if !more {
                return Ok(told);
            }
        }
    }

    /// What swapping did so far, of transfers that [`poll`](Self::poll) saw end.
    pub fn swap_stats(&self) -> SwapStats {
        self.swap.as_ref().map(|swap| swap.stats).unwrap_or_default()
    }

    /// Pinned pages that can be had: those that hold nothing, and clean copies of pages that came back.
    pub fn free_host_pages(&self) -> u32 {
        self.swap.as_ref().map_or(0, Swap::free_host)
    }

    /// Pinned pages that can be had once copies under way are done.
    pub fn leaving_host_pages(&self) -> u32 {
        self.swap.as_ref().map_or(0, Swap::leaving_host)
    }

    /// Lets go of the copies that host memory keeps of pages that came back: who parks next is copied whole.
    pub fn forget_copies(&mut self) {
        if let Some(swap) = &mut self.swap {
            swap.forget_copies();
        }
    }

    /// A transfer was not enqueued: the sequence stays where it is, or is lost with the device.
    fn stays<S>(&mut self, failure: Failure, sequence: S, lose: fn(&mut Self, S)) -> Result<NotMoved<S>> {
        match failure {
            Failure::Refused(error) => Ok(NotMoved { sequence, why: Refusal::Copy(error) }),
            Failure::Broken(error) => {
                self.give_up();
                lose(self, sequence);
                Err(error.into())
            }
        }
    }

    /// If the device failed, no copy is waited for any more.
    fn broken(&mut self, failure: &Failure) {
        if let Failure::Broken(_) = failure {
            self.give_up();
        }
    }

    /// The device failed: no copy is waited for any more.
    fn give_up(&mut self) {
        let mut idle = Vec::new();
        if let Some(swap) = &mut self.swap {
            swap.give_up(&mut self.pages, &mut idle);
        }
        idle.into_iter().for_each(|page| self.idle(page));
    }
}
