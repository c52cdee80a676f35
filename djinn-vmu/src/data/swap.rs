//! Copies of pages between device and host memory: a stream each way, and the pinned pages.
//!
//! What a transfer enqueues is cut into pieces, so that copies of weights on the same link come between, and pages
//! are free piece by piece. Each piece ends with an event; the host looks at events and never waits for them.

mod check;
mod lane;
#[cfg(test)]
mod tests;

pub(super) use check::SUM_BYTES;
pub(super) use lane::Move;

use super::pool::PagePool;
use super::{Direction, KvLayout, POISON, SwapStats, Transfer};
use crate::{Error, Result};
use check::Check;
use djinn_device::{Buffer, Device, Error as DeviceError, Event, Ops, Space, Span, Stream};
use lane::{Lane, Piece, Whole, pieces, runs};
use std::collections::VecDeque;

/// The most bytes of one copy: at this size a link runs at full speed, and whoever else copies waits for no more than
/// a third of a millisecond on a link of 50 GB/s.
pub const SWAP_PIECE_BYTES: u64 = 16 << 20;

/// Equal pages, one after another in a buffer.
#[derive(Clone, Copy, Debug)]
struct Slab {
    buffer: Buffer,
    page_bytes: u64,
}

impl Slab {
    fn span(self, page: u32, count: u32) -> Span {
        self.buffer.slice(page as u64 * self.page_bytes, count as u64 * self.page_bytes)
    }
}

/// Why a transfer was not enqueued as a whole.
#[derive(Debug)]
pub(super) enum Failure {
    /// The device refused a call and is sound: what was enqueued before ends as usual.
    Refused(DeviceError),
    /// The device failed.
    Broken(DeviceError),
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Resource { .. } => Failure::Refused(error),
            _ => Failure::Broken(error),
        }
    }
}

/// The lanes, the pinned pages, and what orders them.
#[derive(Debug)]
pub(super) struct Swap {
    device: Slab,
    host: Slab,
    pub(super) host_pages: PagePool,
    out: Lane,
    back: Lane,
    /// Does nothing but record when the host called.
    bell: Stream,
    /// The compute stream's work on pages that are about to leave.
    used: Event,
    /// The compute stream's work on pages that a sequence grew by.
    grown: Event,
    spare: Vec<Event>,
    check: Option<Check>,
    pub(super) stats: SwapStats,
    /// What ended and was not told yet.
    pub(super) transfers: Vec<Transfer>,
    /// Pages that came back with other bytes, not told yet.
    pub(super) corrupt: VecDeque<Error>,
}

impl Swap {
    pub(super) fn new<D: Device>(
        device: &D,
        layout: &KvLayout,
        pages: Buffer,
        alloc: &mut impl FnMut(Space, u64) -> Result<Buffer>,
    ) -> Result<Self> {
        let page_bytes = layout.page_bytes();
        let buffer = alloc(Space::Host, page_bytes.saturating_mul(layout.host_pages as u64))?;
        Ok(Swap {
            device: Slab { buffer: pages, page_bytes },
            host: Slab { buffer, page_bytes },
            host_pages: PagePool::new(layout.host_pages),
            out: Lane::new(device)?,
            back: Lane::new(device)?,
            bell: device.stream()?,
            used: device.event()?,
            grown: device.event()?,
            spare: Vec::new(),
            check: layout.check.then(|| Check::new(layout, alloc)).transpose()?,
            stats: SwapStats::default(),
            transfers: Vec::new(),
            corrupt: VecDeque::new(),
        })
    }

    /// The compute stream has work on fresh pages: copies to them come after it.
    pub(super) fn grown<D: Device>(&self, device: &D, compute: Stream) -> djinn_device::Result<()> {
        device.record(compute, self.grown)
    }

    /// Enqueues the way out, after all work so far on `compute`. The last piece's number.
    pub(super) fn leave<D: Ops>(
        &mut self,
        device: &D,
        compute: Stream,
        pages: &mut PagePool,
        ticket: u64,
        moves: &[Move],
        poison: &[u32],
    ) -> Result<Option<u64>, Failure> {
        device.record(compute, self.used)?;
        device.wait(self.out.stream, self.used)?;
        self.send(device, pages, Direction::Out, ticket, moves, poison)
    }

    /// Enqueues the way back, after the piece `left` of the way out. The last piece's number.
    pub(super) fn come_back<D: Ops>(
        &mut self,
        device: &D,
        pages: &mut PagePool,
        ticket: u64,
        moves: &[Move],
        left: Option<u64>,
    ) -> Result<Option<u64>, Failure> {
        if let Some(end) = left.and_then(|piece| self.out.end(piece)) {
            device.wait(self.back.stream, end)?;
        }
        device.wait(self.back.stream, self.grown)?;
        self.send(device, pages, Direction::In, ticket, moves, &[])
    }

    /// Makes `compute` wait for a piece of the way back.
    pub(super) fn join<D: Device>(
        &self,
        device: &D,
        compute: Stream,
        piece: u64,
    ) -> djinn_device::Result<()> {
        self.back.end(piece).map_or(Ok(()), |end| device.wait(compute, end))
    }

    /// Whether a piece of the way back was seen to be done.
    pub(super) fn is_back(&self, piece: u64) -> bool {
        self.back.end(piece).is_none()
    }

    fn lane(&mut self, direction: Direction) -> &mut Lane {
        match direction {
            Direction::Out => &mut self.out,
            Direction::In => &mut self.back,
        }
    }

    fn send<D: Ops>(
        &mut self,
        device: &D,
        pages: &mut PagePool,
        direction: Direction,
        ticket: u64,
        moves: &[Move],
        poison: &[u32],
    ) -> Result<Option<u64>, Failure> {
        // Poison comes once every copy is enqueued: one that is refused leaves the pages as they were.
        let piece_bytes = if poison.is_empty() { SWAP_PIECE_BYTES } else { u64::MAX };
        let pieces: Vec<&[Move]> = pieces(moves, self.host.page_bytes, piece_bytes).collect();
        while self.spare.len() < pieces.len() + 2 {
            self.spare.push(device.event()?);
        }
        let (asked, begin) = (self.event(), self.event());
        let whole = Whole { pages: moves.len() as u32, asked, begin };
        let stream = self.lane(direction).stream;
        device.record(self.bell, asked)?;
        device.record(stream, begin)?;
        for (i, &piece) in pieces.iter().enumerate() {
            let end = self.event();
            let enqueued = self.copies(device, stream, direction, piece, poison);
            // What was enqueued ends with the event, also where the rest was refused.
            device.record(stream, end).map_err(Failure::Broken)?;
            for &Move { device, host } in piece {
                pages.begin_move(device);
                self.host_pages.begin_move(host);
            }
            let complete = enqueued.is_ok();
            let last = (i + 1 == pieces.len() && complete).then_some(whole);
            let moves = piece.to_vec();
            self.lane(direction).under_way.push_back(Piece { moves, end, last, ticket, complete });
            if let Err(failure) = enqueued {
                self.spare.extend([asked, begin]);
                return Err(failure);
            }
        }
        Ok(self.lane(direction).latest())
    }

    /// Enqueues one piece: a plain copy for each run of pages that lie together on both sides.
    fn copies<D: Ops>(
        &self,
        device: &D,
        stream: Stream,
        direction: Direction,
        piece: &[Move],
        poison: &[u32],
    ) -> Result<(), Failure> {
        if let (Some(check), Direction::Out) = (&self.check, direction) {
            check.sum(device, stream, direction, piece, |page| self.device.span(page, 1))?;
        }
        for (first, count) in runs(piece) {
            let (here, there) = (self.device.span(first.device, count), self.host.span(first.host, count));
            let mut at = 0;
            while at < here.len() {
                let bytes = SWAP_PIECE_BYTES.min(here.len() - at);
                let (here, there) = (here.slice(at, bytes), there.slice(at, bytes));
                match direction {
                    Direction::Out => device.copy(stream, here, there)?,
                    Direction::In => device.copy(stream, there, here)?,
                }
                at += bytes;
            }
        }
        if let (Some(check), Direction::In) = (&self.check, direction) {
            check.sum(device, stream, direction, piece, |page| self.device.span(page, 1))?;
        }
        for &page in poison {
            device.fill(stream, self.device.span(page, 1), POISON).map_err(Failure::Broken)?;
        }
        Ok(())
    }

    fn event(&mut self) -> Event {
        self.spare.pop().expect("a transfer's events are made before it begins")
    }

    /// Takes in what is done by now; `idle` gets the device pages that nothing uses any more.
    pub(super) fn poll<D: Device>(
        &mut self,
        device: &D,
        pages: &mut PagePool,
        idle: &mut Vec<u32>,
    ) -> djinn_device::Result<()> {
        for direction in [Direction::Out, Direction::In] {
            while let Some(piece) = self.lane(direction).under_way.front() {
                if !device.is_done(piece.end)? {
                    break;
                }
                let piece = self.lane(direction).under_way.pop_front().expect("it is at the front");
                self.end(device, pages, direction, piece, idle);
            }
        }
        Ok(())
    }

    fn end<D: Device>(
        &mut self,
        device: &D,
        pages: &mut PagePool,
        direction: Direction,
        piece: Piece,
        idle: &mut Vec<u32>,
    ) {
        if let (Some(check), Direction::In, true) = (&self.check, direction, piece.complete) {
            self.corrupt.extend(check.verify(device, piece.ticket, &piece.moves).err());
        }
        if let Some(Whole { pages, asked, begin }) = piece.last {
            let (bytes, ticket) = (pages as u64 * self.host.page_bytes, piece.ticket);
            let [asked, begin, end] = [asked, begin, piece.end].map(|event| device.timestamp(event));
            let transfer = Transfer { ticket, direction, pages, bytes, asked, begin, end };
            let moved = match direction {
                Direction::Out => &mut self.stats.out,
                Direction::In => &mut self.stats.back,
            };
            moved.transfers += 1;
            moved.pages += pages as u64;
            moved.bytes += bytes;
            moved.busy += transfer.moved().unwrap_or_default();
            self.transfers.push(transfer);
        }
        self.retire(pages, direction, piece, idle);
    }

    /// The copies of a piece that left the lane touch its pages no more.
    fn retire(&mut self, pages: &mut PagePool, direction: Direction, piece: Piece, idle: &mut Vec<u32>) {
        self.lane(direction).done += 1;
        self.spare.push(piece.end);
        self.spare.extend(piece.last.iter().flat_map(|whole| [whole.asked, whole.begin]));
        for Move { device, host } in piece.moves {
            if pages.end_move(device) {
                idle.push(device);
            }
            if self.host_pages.end_move(host) {
                self.host_pages.give(host);
            }
        }
    }

    /// The device failed: no copy runs any more, and none is waited for.
    pub(super) fn give_up(&mut self, pages: &mut PagePool, idle: &mut Vec<u32>) {
        for direction in [Direction::Out, Direction::In] {
            while let Some(piece) = self.lane(direction).under_way.pop_front() {
                self.retire(pages, direction, piece, idle);
            }
        }
    }

    /// Blocks the host until all copies under way are done.
    pub(super) fn settle<D: Device>(&self, device: &D) -> djinn_device::Result<()> {
        let mut ends = [&self.out, &self.back].into_iter().filter_map(|lane| lane.under_way.back());
        ends.try_for_each(|piece| device.sync_event(piece.end))
    }

    /// The bytes of a pinned page.
    #[cfg(test)]
    pub(super) fn host_page(&self, page: u32) -> Span {
        self.host.span(page, 1)
    }

    pub(super) fn drop_host(&mut self, page: u32) {
        if self.host_pages.drop_reference(page) {
            self.host_pages.give(page);
        }
    }

    pub(super) fn free<D: Device>(self, device: &D) {
        for lane in [self.out, self.back] {
            // A failure is sticky: the next sync of the device returns it.
            let _ = device.sync(lane.stream);
        }
        device.free(self.host.buffer);
        if let Some(check) = self.check {
            check.free(device);
        }
    }
}
