//! How transfers are enqueued: piece by piece, those to the device as fast as [`Pace`] allows.
//!
//! ```text
//! host     │ share_link, pass n   │ share_link, pass n+1 │      pieces that wait are enqueued here, and in `poll`
//! weights  ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓○▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓        ○ waits for what was enqueued before pass n
//! swaps in   ▓   ▓▓     ▓     ▓▓▓▓╯ ▓▓▓   ▓                     never more under way than a pass streams
//! ```

use super::lane::{Lane, Move, Piece, Whole, pieces, runs};
use super::{Direction, Failure, PagePool, SWAP_PIECE_BYTES, Swap};
use crate::data::POISON;
use djinn_device::{Device, Ops, Stream};

/// How transfers are cut, and how many bytes of them are under way beside weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapPace {
    /// The most bytes of one copy, unless a page has more. [`SWAP_PIECE_BYTES`] by default.
    pub piece_bytes: u64,
    /// So many bytes may be under way to the device whatever a pass streams; 256 MiB by default, 5 ms of a link of
    /// 50 GB/s. Less would hold swaps back for nothing where a pass streams little and the link is idle.
    pub least_bytes: u64,
}

impl Default for SwapPace {
    fn default() -> Self {
        SwapPace { piece_bytes: SWAP_PIECE_BYTES, least_bytes: 256 << 20 }
    }
}

/// How swaps to the device share the link with weights. No order in which a device carries out what is enqueued on two
/// streams makes one of them starve: swaps are ahead of a pass's weights by no more than the limit, and weights wait
/// for swaps that a whole pass went by.
#[derive(Debug, Default)]
pub(in crate::data) struct Pace {
    pub(in crate::data) rule: SwapPace,
    /// The most bytes under way to the device, unless one piece is more; none while no weights stream.
    limit: Option<u64>,
    /// Pieces to the device that were enqueued before the latest pass.
    before_pass: u64,
}

/// One transfer to enqueue.
pub(in crate::data) struct Order<'a> {
    pub(in crate::data) ticket: u64,
    pub(in crate::data) moves: &'a [Move],
    /// Pages that leave without a copy.
    pub(in crate::data) kept: &'a [Move],
    /// Device pages that hold nothing once they left.
    pub(in crate::data) poison: &'a [u32],
    /// On the way back: the last piece of the way out.
    pub(in crate::data) left: Option<u64>,
}

impl Swap {
    /// Cuts a transfer into pieces and enqueues what may be. The last piece's number.
    pub(super) fn send<D: Ops>(
        &mut self,
        device: &D,
        pages: &mut PagePool,
        direction: Direction,
        order: &Order<'_>,
    ) -> Result<Option<u64>, Failure> {
        let &Order { ticket, moves, kept, poison, left } = order;
        // Poison comes once every copy is enqueued: one that is refused leaves the pages as they were.
        let most = if poison.is_empty() { self.pace.rule.piece_bytes } else { u64::MAX };
        let mut cut: Vec<&[Move]> = pieces(moves, self.host.page_bytes, most).collect();
        if cut.is_empty() {
            cut.push(&[]);
        }
        while self.spare.len() < cut.len() + 2 {
            self.spare.push(device.event()?);
        }
        let (asked, begin) = (self.event(), self.event());
        device.record(self.bell, asked)?;
        let last = cut.len() - 1;
        for (i, moves) in cut.into_iter().enumerate() {
            let whole =
                Whole { pages: order.moves.len() as u32, kept: order.kept.len() as u32, asked, begin };
            let piece = Piece {
                moves: moves.to_vec(),
                kept: if i == last { kept.to_vec() } else { Vec::new() },
                poison: if i == last { poison.to_vec() } else { Vec::new() },
                left: left.filter(|_| i == 0),
                begin: (i == 0).then_some(begin),
                end: self.event(),
                last: (i == last).then_some(whole),
                ticket,
                complete: true,
            };
            for Move { device, host } in piece.pages() {
                pages.begin_move(device);
                self.host_pages.begin_move(host);
            }
            self.lane(direction).pending.push_back(piece);
        }
        let advanced = match direction {
            Direction::Out => self.advance(device, direction, |_| true),
            Direction::In => self.advance_paced(device),
        };
        match advanced {
            // What was refused is of an earlier transfer and is tried again; this one waits behind it.
            Err(Failure::Refused(_)) if self.is_waiting_for_others(direction, ticket) => {}
            Err(failure) => {
                self.withdraw(device, pages, direction, ticket)?;
                return Err(failure);
            }
            Ok(()) => {}
        }
        Ok(self.lane(direction).latest())
    }

    /// Whether the first piece to be enqueued is of an earlier transfer than `ticket`.
    fn is_waiting_for_others(&mut self, direction: Direction, ticket: u64) -> bool {
        self.lane(direction).pending.front().is_some_and(|piece| piece.ticket != ticket)
    }

    /// Enqueues the pieces to the device that the pace allows.
    pub(super) fn advance_paced<D: Ops>(&mut self, device: &D) -> Result<(), Failure> {
        let (limit, page_bytes, out) = (self.pace.limit, self.host.page_bytes, self.out.done);
        self.advance(device, Direction::In, |lane| {
            let Some(limit) = limit else { return true };
            // Weights may come to wait for this piece; they need not wait for the other direction.
            let next = lane.pending.front().filter(|piece| piece.left.is_none_or(|left| left < out));
            let (now, next) = (lane.pages_under_way(), next.map(|piece| piece.moves.len() as u64));
            next.is_some_and(|next| now == 0 || (now + next).saturating_mul(page_bytes) <= limit)
        })
    }

    /// Enqueues pieces to the device up to the given one, whatever the pace; what is refused is tried once more.
    pub(super) fn advance_to<D: Ops>(&mut self, device: &D, piece: u64) -> Result<(), Failure> {
        let to = |lane: &Lane| lane.enqueued() <= piece;
        match self.advance(device, Direction::In, to) {
            Err(Failure::Refused(_)) => self.advance(device, Direction::In, to),
            advanced => advanced,
        }
    }

    /// Enqueues pieces in order as long as one `may`. A refused one stays where it is.
    fn advance<D: Ops>(
        &mut self,
        device: &D,
        direction: Direction,
        may: impl Fn(&Lane) -> bool,
    ) -> Result<(), Failure> {
        while !self.lane(direction).pending.is_empty() && may(self.lane(direction)) {
            let lane = self.lane(direction);
            let (stream, piece) = (lane.stream, lane.pending.pop_front().expect("one waits"));
            if let Err(failure) = self.enqueue(device, stream, direction, &piece) {
                self.lane(direction).pending.push_front(piece);
                return Err(failure);
            }
            self.lane(direction).under_way.push_back(piece);
        }
        Ok(())
    }

    /// Takes back what of a transfer waits, whose first piece may be enqueued in part.
    fn withdraw<D: Device>(
        &mut self,
        device: &D,
        pages: &mut PagePool,
        direction: Direction,
        ticket: u64,
    ) -> Result<(), Failure> {
        let lane = self.lane(direction);
        let stream = lane.stream;
        let first = lane.pending.iter().position(|piece| piece.ticket == ticket).unwrap_or(0);
        let mut withdrawn = lane.pending.split_off(first);
        let mut recorded = Ok(());
        if let Some(mut piece) = withdrawn.pop_front() {
            self.return_whole(&piece);
            (piece.complete, piece.last) = (false, None);
            // What was enqueued ends with the event.
            recorded = device.record(stream, piece.end).map_err(Failure::Broken);
            self.lane(direction).under_way.push_back(piece);
        }
        for piece in withdrawn {
            self.return_whole(&piece);
            self.spare.push(piece.end);
            for Move { device, host } in piece.pages() {
                let idle = pages.end_move(device) | self.host_pages.end_move(host);
                assert!(!idle, "page {device} of a transfer that is withdrawn belongs to no one");
            }
        }
        recorded
    }

    fn return_whole(&mut self, piece: &Piece) {
        self.spare.extend(piece.last.iter().flat_map(|whole| [whole.asked, whole.begin]));
    }

    /// Enqueues one piece: a plain copy for each run of pages that lie together on both sides.
    fn enqueue<D: Ops>(
        &self,
        device: &D,
        stream: Stream,
        direction: Direction,
        piece: &Piece,
    ) -> Result<(), Failure> {
        if let Some(end) = piece.left.and_then(|left| self.out.end(left)) {
            device.wait(stream, end)?;
        }
        if let Some(begin) = piece.begin {
            device.record(stream, begin)?;
        }
        let page = |page| self.device.span(page, 1);
        if let (Some(check), Direction::Out) = (&self.check, direction) {
            check.sum(device, stream, direction, piece.pages(), page)?;
        }
        for (first, count) in runs(&piece.moves) {
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
            check.sum(device, stream, direction, piece.pages(), page)?;
        }
        for &at in &piece.poison {
            device.fill(stream, page(at), POISON).map_err(Failure::Broken)?;
        }
        device.record(stream, piece.end).map_err(Failure::Broken)
    }

    /// A pass that streams `bytes` is about to be enqueued, its weights on `weights`.
    pub(in crate::data) fn share<D: Ops>(
        &mut self,
        device: &D,
        weights: Stream,
        bytes: u64,
    ) -> Result<(), Failure> {
        self.pace.limit = (bytes > 0).then(|| bytes.max(self.pace.rule.least_bytes));
        let passed = self.pace.before_pass.checked_sub(1).and_then(|piece| self.back.end(piece));
        if let (Some(end), Some(_)) = (passed, self.pace.limit) {
            device.wait(weights, end)?;
        }
        self.try_advance(device)?;
        self.pace.before_pass = self.back.enqueued();
        Ok(())
    }

    /// As [`advance_paced`](Self::advance_paced); what is refused is tried once more, and again later while copies are
    /// under way.
    pub(super) fn try_advance<D: Ops>(&mut self, device: &D) -> Result<(), Failure> {
        let mut advanced = self.advance_paced(device);
        if let Err(Failure::Refused(_)) = advanced {
            advanced = self.advance_paced(device);
        }
        match advanced {
            Err(Failure::Refused(_)) if !self.back.under_way.is_empty() => Ok(()),
            advanced => advanced,
        }
    }
}
