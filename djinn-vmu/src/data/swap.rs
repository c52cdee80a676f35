//! Swaps: copies of pages between device and host memory, with a stream each way.
//!
//! A transfer is cut into pieces, so that copies of weights on the same link come between them. Each piece ends with
//! an event; the host polls events and never waits for them.
//!
//! ```text
//! host     │ share_link, pass n   │ share_link, pass n+1 │      waiting pieces are enqueued here, and in `poll`
//! weights  ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓○▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓        ○ waits for what was enqueued before pass n
//! swaps in   ▓   ▓▓     ▓     ▓▓▓▓╯ ▓▓▓   ▓                     never more under way than a pass streams
//! ```
//!
//! **What if a copy fails?** A refused call ([`djinn_device::Error::Resource`]) leaves the device sound. The rest of
//! the transfer is dropped, and its end is reported with [`SwapFault::Refused`] once its earlier copies are done. A
//! later failure is a failure of the whole device (on GPUs it ends the context): every method then returns the error,
//! and the host's pages are lost.

mod check;
mod lane;
#[cfg(test)]
mod tests;

pub(super) use check::SUM_BYTES;

use super::{Direction, KvLayout, POISON, SwapFault, SwapStats, Transfer};
use crate::{Allocations, Error, Result};
use check::Check;
use djinn_device::{Buffer, Device, Error as DeviceError, Event, Ops, Space, Span, Stream};
use djinn_pages::{PageCopies, PagePair};
use lane::{Lane, Piece, Whole, pieces, runs};

/// The most bytes of one copy. At this size a link runs at full speed, and other copies wait for at most a third of a
/// millisecond on a link of 50 GB/s.
pub const SWAP_PIECE_BYTES: u64 = 16 << 20;

/// How transfers are cut, and how many of their bytes may be under way while weights stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapPace {
    /// The most bytes of one copy, unless a page has more. [`SWAP_PIECE_BYTES`] by default.
    pub piece_bytes: u64,
    /// Bytes that may always be under way to the device; 256 MiB by default, 5 ms of a link of 50 GB/s. With less,
    /// swaps would wait for an idle link if a pass streams little.
    pub least_bytes: u64,
}

impl Default for SwapPace {
    fn default() -> Self {
        SwapPace { piece_bytes: SWAP_PIECE_BYTES, least_bytes: 256 << 20 }
    }
}

/// How swaps to the device share the link with weights. Whatever order a device chooses between two streams, neither
/// starves: swaps are ahead of a pass's weights by no more than the limit, and weights wait for swaps that are a whole
/// pass old.
#[derive(Debug, Default)]
pub(super) struct Pace {
    pub(super) rule: SwapPace,
    /// The most bytes under way to the device, but at least one piece; `None` while no weights stream.
    limit: Option<u64>,
    /// Pieces to the device that were enqueued before the latest pass.
    before_pass: u64,
}

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

/// The two directions, the pinned pages, and the events that order them.
#[derive(Debug)]
pub(super) struct Swap {
    device: Slab,
    host: Slab,
    out: Lane,
    back: Lane,
    pub(super) pace: Pace,
    /// Carries no work: its events time-stamp the host's calls.
    calls: Stream,
    /// The compute stream's last work on pages that will leave.
    used: Event,
    /// The compute stream's work on fresh pages.
    grown: Event,
    spare: Vec<Event>,
    check: Option<Check>,
    pub(super) stats: SwapStats,
    /// Ended transfers that were not returned yet.
    ended: Vec<Transfer>,
}

impl Swap {
    pub(super) fn new<D: Device>(
        device: &D,
        layout: &KvLayout,
        pages: Buffer,
        held: &mut Allocations,
    ) -> Result<Self> {
        let page_bytes = layout.page_bytes();
        let host_bytes = page_bytes.saturating_mul(layout.host_pages as u64);
        let buffer = held.alloc(device, Space::Host, host_bytes)?;
        Ok(Swap {
            device: Slab { buffer: pages, page_bytes },
            host: Slab { buffer, page_bytes },
            out: Lane::new(held.stream(device)?),
            back: Lane::new(held.stream(device)?),
            pace: Pace::default(),
            calls: held.stream(device)?,
            used: held.event(device)?,
            grown: held.event(device)?,
            spare: Vec::new(),
            check: layout.check.then(|| Check::new(device, layout, held)).transpose()?,
            stats: SwapStats::default(),
            ended: Vec::new(),
        })
    }

    /// Records the compute stream's work on fresh pages, so that copies to them come after it.
    pub(super) fn grown<D: Device>(&self, device: &D, compute: Stream) -> djinn_device::Result<()> {
        device.record(compute, self.grown)
    }

    /// Cuts a transfer into pieces and enqueues those that are allowed.
    pub(super) fn begin<D: Ops>(
        &mut self,
        device: &D,
        compute: Stream,
        direction: Direction,
        ticket: u64,
        way: &PageCopies,
        held: &mut Allocations,
    ) -> Result<()> {
        match self.line_up(device, compute, direction, ticket, way, held) {
            Err(Error::Device(DeviceError::Resource { .. })) => {
                let fault = Some(SwapFault::Refused);
                self.ended.push(Transfer { fault, ..Transfer::new(ticket, direction) });
                Ok(())
            }
            Err(error) => Err(error),
            Ok(()) => match direction {
                Direction::Out => self.advance(device, direction, |_| true),
                Direction::In => self.advance_paced(device),
            },
        }
    }

    fn line_up<D: Ops>(
        &mut self,
        device: &D,
        compute: Stream,
        direction: Direction,
        ticket: u64,
        way: &PageCopies,
        held: &mut Allocations,
    ) -> Result<()> {
        // Pages that the host has already are compared; if they differ, the device's must be intact.
        let poison = if self.check.is_some() && way.kept.is_empty() { way.emptied.as_slice() } else { &[] };
        // Poison is written after every copy is enqueued: a refused copy leaves the pages as they were.
        let most = if poison.is_empty() { self.pace.rule.piece_bytes } else { u64::MAX };
        let mut cut: Vec<&[_]> = pieces(&way.copies, self.host.page_bytes, most).collect();
        if cut.is_empty() {
            cut.push(&[]);
        }
        while self.spare.len() < cut.len() + 2 {
            self.spare.push(held.event(device)?);
        }
        match direction {
            Direction::Out => {
                device.record(compute, self.used)?;
                device.wait(self.out.stream, self.used)?;
            }
            Direction::In => device.wait(self.back.stream, self.grown)?,
        }
        // A refused call leaves the events here.
        let asked = *self.spare.last().expect("a transfer's events are made before it begins");
        device.record(self.calls, asked)?;
        let mut event = || self.spare.pop().expect("a transfer's events are made before it begins");
        let (asked, begin) = (event(), event());
        // Pages that several sessions leave with are compared once.
        let compared: Vec<PagePair> = match (&self.check, direction) {
            (Some(_), Direction::Out) => {
                way.kept.iter().filter(|pair| !self.out.compares(pair.device)).copied().collect()
            }
            _ => Vec::new(),
        };
        let last = cut.len() - 1;
        let (pages, kept) = (way.copies.len() as u32, way.kept.len() as u32);
        for (i, copies) in cut.into_iter().enumerate() {
            let piece = Piece {
                copies: copies.to_vec(),
                kept: if i == last { compared.clone() } else { Vec::new() },
                poison: if i == last { poison.to_vec() } else { Vec::new() },
                begin: (i == 0).then_some(begin),
                end: event(),
                last: (i == last).then_some(Whole { pages, kept, asked, begin }),
                ticket,
                refused: false,
            };
            let lane = if direction == Direction::Out { &mut self.out } else { &mut self.back };
            lane.pending.push_back(piece);
        }
        Ok(())
    }

    fn lane(&mut self, direction: Direction) -> &mut Lane {
        match direction {
            Direction::Out => &mut self.out,
            Direction::In => &mut self.back,
        }
    }

    /// Enqueues the pieces to the device that the pace allows.
    fn advance_paced<D: Ops>(&mut self, device: &D) -> Result<()> {
        let (limit, page_bytes) = (self.pace.limit, self.host.page_bytes);
        self.advance(device, Direction::In, |lane| {
            let Some((limit, next)) = limit.zip(lane.pending.front()) else { return true };
            let (now, next) = (lane.pages_under_way(), next.copies.len() as u64);
            now == 0 || (now + next).saturating_mul(page_bytes) <= limit
        })
    }

    /// Enqueues pieces in order as long as one `may`. A refused piece ends its transfer.
    fn advance<D: Ops>(
        &mut self,
        device: &D,
        direction: Direction,
        may: impl Fn(&Lane) -> bool,
    ) -> Result<()> {
        while may(self.lane(direction)) {
            let Some(mut piece) = self.lane(direction).pending.pop_front() else { break };
            let stream = self.lane(direction).stream;
            match self.enqueue(device, stream, direction, &piece) {
                Err(DeviceError::Resource { .. }) => {
                    piece.refused = true;
                    while piece.last.is_none() {
                        let next = self.lane(direction).pending.pop_front();
                        let next = next.expect("a transfer has a last piece");
                        self.spare.push(next.end);
                        piece.last = next.last;
                    }
                    // The event comes after what was enqueued of it.
                    device.record(stream, piece.end)?;
                }
                enqueued => enqueued?,
            }
            self.lane(direction).under_way.push_back(piece);
        }
        Ok(())
    }

    /// Enqueues a piece: one copy for each run of pages that is contiguous on both sides.
    fn enqueue<D: Ops>(
        &self,
        device: &D,
        stream: Stream,
        direction: Direction,
        piece: &Piece,
    ) -> djinn_device::Result<()> {
        if let Some(begin) = piece.begin {
            device.record(stream, begin)?;
        }
        let page = |page| self.device.span(page, 1);
        if let (Some(check), Direction::Out) = (&self.check, direction) {
            check.sum_leaving(device, stream, &piece.copies, page)?;
            check.sum_on_device(device, stream, &piece.kept, page)?;
        }
        for (first, count) in runs(&piece.copies) {
            let (here, there) = (self.device.span(first.device, count), self.host.span(first.host, count));
            let mut at = 0;
            while at < here.len() {
                let bytes = self.pace.rule.piece_bytes.max(1).min(here.len() - at);
                let (here, there) = (here.slice(at, bytes), there.slice(at, bytes));
                match direction {
                    Direction::Out => device.copy(stream, here, there)?,
                    Direction::In => device.copy(stream, there, here)?,
                }
                at += bytes;
            }
        }
        if let (Some(check), Direction::In) = (&self.check, direction) {
            check.sum_on_device(device, stream, &piece.copies, page)?;
        }
        for &at in &piece.poison {
            match device.fill(stream, page(at), POISON) {
                // The copies are enqueued, so the transfer is complete without it.
                Err(DeviceError::Resource { .. }) => break,
                filled => filled?,
            }
        }
        device.record(stream, piece.end)
    }

    /// Polls the pieces, enqueues more, and returns the transfers that ended.
    pub(super) fn poll<D: Ops>(&mut self, device: &D) -> Result<Vec<Transfer>> {
        for direction in [Direction::Out, Direction::In] {
            while let Some(piece) = self.lane(direction).under_way.front() {
                if !device.is_done(piece.end)? {
                    break;
                }
                let piece = self.lane(direction).under_way.pop_front().expect("it is at the front");
                self.end(device, direction, piece);
            }
        }
        self.advance_paced(device)?;
        Ok(std::mem::take(&mut self.ended))
    }

    fn end<D: Device>(&mut self, device: &D, direction: Direction, piece: Piece) {
        let compared = if direction == Direction::In { &piece.copies } else { &piece.kept };
        let fault = match &self.check {
            _ if piece.refused => Some(SwapFault::Refused),
            Some(check) => check.compare(device, compared),
            None => None,
        };
        let lane = self.lane(direction);
        lane.done += 1;
        lane.fault = lane.fault.or(fault);
        self.spare.push(piece.end);
        let Some(Whole { pages, kept, asked, begin }) = piece.last else { return };
        let fault = self.lane(direction).fault.take();
        let bytes = pages as u64 * self.host.page_bytes;
        let [asked_at, begin_at, end_at] = [asked, begin, piece.end]
            .map(|event| if fault.is_none() { device.timestamp(event) } else { None });
        // The call is timed on a stream of its own, which may be late.
        let asked_at = asked_at.or(begin_at);
        let transfer = Transfer {
            pages,
            bytes,
            asked: asked_at,
            begin: begin_at,
            end: end_at,
            fault,
            ..Transfer::new(piece.ticket, direction)
        };
        self.spare.extend([asked, begin]);
        if fault.is_none() {
            self.stats.add(&transfer, kept);
        }
        self.ended.push(transfer);
    }

    /// Waits until all copies are done.
    pub(super) fn settle<D: Ops>(&mut self, device: &D) -> Result<Vec<Transfer>> {
        self.advance(device, Direction::In, |_| true)?;
        for lane in [&self.out, &self.back] {
            lane.under_way.back().map_or(Ok(()), |piece| device.sync_event(piece.end))?;
        }
        self.poll(device)
    }

    /// Prepares for a pass that streams `bytes` on `weights`.
    pub(super) fn share<D: Ops>(&mut self, device: &D, weights: Stream, bytes: u64) -> Result<()> {
        self.pace.limit = (bytes > 0).then(|| bytes.max(self.pace.rule.least_bytes));
        let passed = self.pace.before_pass.checked_sub(1).and_then(|piece| self.back.end(piece));
        if let (Some(end), Some(_)) = (passed, self.pace.limit) {
            device.wait(weights, end)?;
        }
        self.advance_paced(device)?;
        self.pace.before_pass = self.back.enqueued();
        Ok(())
    }

    /// The bytes of a pinned page.
    pub(super) fn host_page(&self, page: u32) -> Span {
        self.host.span(page, 1)
    }
}
