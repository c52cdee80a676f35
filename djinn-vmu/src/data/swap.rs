//! Copies of pages between device and host memory: a stream each way, and the pinned pages.
//!
//! A transfer is cut into pieces, so that copies of weights on the same link come between (`send`), and pages are free
//! piece by piece. Each piece ends with an event; the host looks at events and never waits for them. What came back and
//! was not written since need not leave again (`clean`).

mod check;
mod clean;
mod lane;
mod send;
#[cfg(test)]
mod tests;

pub(super) use check::SUM_BYTES;
pub(super) use lane::Move;

use super::pool::PagePool;
use super::{Direction, KvLayout, SwapStats, Transfer};
use crate::{Error, Result};
use check::Check;
use clean::CleanCopies;
use djinn_device::{Buffer, Device, Error as DeviceError, Event, Ops, Space, Span, Stream};
use lane::{Lane, Piece, Whole};
pub(super) use send::Order;
use send::Pace;
pub use send::SwapPace;
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

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(error) | Failure::Broken(error) => error.into(),
        }
    }
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
    clean: CleanCopies,
    out: Lane,
    back: Lane,
    pub(super) pace: Pace,
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
            clean: CleanCopies::default(),
            out: Lane::new(device)?,
            back: Lane::new(device)?,
            pace: Pace::default(),
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
        order: &Order<'_>,
    ) -> Result<Option<u64>, Failure> {
        device.record(compute, self.used)?;
        device.wait(self.out.stream, self.used)?;
        self.send(device, pages, Direction::Out, order)
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
        device.wait(self.back.stream, self.grown)?;
        self.send(device, pages, Direction::In, &Order { ticket, moves, kept: &[], poison: &[], left })
    }

    /// Makes `compute` wait for a piece of the way back, which is enqueued if it was not yet.
    pub(super) fn join<D: Ops>(&mut self, device: &D, compute: Stream, piece: u64) -> Result<(), Failure> {
        self.advance_to(device, piece)?;
        match self.back.end(piece) {
            Some(end) => Ok(device.wait(compute, end).map_err(Failure::Broken)?),
            None => Ok(()),
        }
    }

    /// Whether a piece of the way back was seen to be done.
    pub(super) fn is_back(&self, piece: u64) -> bool {
        piece < self.back.done
    }

    fn lane(&mut self, direction: Direction) -> &mut Lane {
        match direction {
            Direction::Out => &mut self.out,
            Direction::In => &mut self.back,
        }
    }

    fn event(&mut self) -> Event {
        self.spare.pop().expect("a transfer's events are made before it begins")
    }

    /// Takes in what is done by now, and enqueues what may follow; `idle` gets the device pages that nothing uses any
    /// more.
    pub(super) fn poll<D: Ops>(
        &mut self,
        device: &D,
        pages: &mut PagePool,
        idle: &mut Vec<u32>,
    ) -> Result<(), Failure> {
        for direction in [Direction::Out, Direction::In] {
            while let Some(piece) = self.lane(direction).under_way.front() {
                if !device.is_done(piece.end).map_err(Failure::Broken)? {
                    break;
                }
                let piece = self.lane(direction).under_way.pop_front().expect("it is at the front");
                self.end(device, pages, direction, piece, idle);
            }
        }
        self.try_advance(device)
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
        if let Some(Whole { pages, kept, asked, begin }) = piece.last {
            let (bytes, ticket) = (pages as u64 * self.host.page_bytes, piece.ticket);
            let [asked, begin, end] = [asked, begin, piece.end].map(|event| device.timestamp(event));
            // What notes the call is a stream of its own, which may be late.
            let asked = asked.or(begin);
            let transfer = Transfer { ticket, direction, pages, bytes, asked, begin, end };
            let moved = match direction {
                Direction::Out => &mut self.stats.out,
                Direction::In => &mut self.stats.back,
            };
            moved.transfers += 1;
            moved.pages += pages as u64;
            moved.bytes += bytes;
            moved.busy += transfer.moved().unwrap_or_default();
            self.stats.kept += kept as u64;
            self.transfers.push(transfer);
        }
        self.retire(pages, direction, piece, idle);
    }

    /// The copies of a piece that left the lane touch its pages no more.
    fn retire(&mut self, pages: &mut PagePool, direction: Direction, piece: Piece, idle: &mut Vec<u32>) {
        self.lane(direction).done += 1;
        self.spare.push(piece.end);
        self.spare.extend(piece.last.iter().flat_map(|whole| [whole.asked, whole.begin]));
        for Move { device, host } in piece.pages() {
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
            let lane = self.lane(direction);
            let mut all = std::mem::take(&mut lane.under_way);
            all.append(&mut lane.pending);
            all.into_iter().for_each(|piece| self.retire(pages, direction, piece, idle));
        }
    }

    /// Blocks the host until all copies under way are done. Whether others wait behind them, which were refused.
    pub(super) fn settle<D: Ops>(&mut self, device: &D) -> Result<bool, Failure> {
        match self.advance_to(device, u64::MAX) {
            Err(Failure::Refused(_)) if !self.back.under_way.is_empty() => {}
            advanced => advanced?,
        }
        let mut ends = [&self.out, &self.back].into_iter().filter_map(|lane| lane.under_way.back());
        ends.try_for_each(|piece| device.sync_event(piece.end)).map_err(Failure::Broken)?;
        Ok(!self.back.pending.is_empty())
    }

    /// Pages of copies under way or held back, each as often as it is touched.
    pub(super) fn moves(&self) -> impl Iterator<Item = Move> {
        let pieces =
            [&self.out, &self.back].into_iter().flat_map(|lane| lane.under_way.iter().chain(&lane.pending));
        pieces.flat_map(Piece::pages)
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
