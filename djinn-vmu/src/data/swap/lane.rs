//! One direction of copies: transfers cut into pieces of bounded size and runs of pages that lie together, and which
//! of them are under way.

use crate::Result;
use djinn_device::{Device, Event, Stream};
use std::collections::VecDeque;

/// A page's place in both memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) device: u32,
    pub(crate) host: u32,
}

/// `moves` in order, in pieces of at most `most` bytes, or of one page.
pub(super) fn pieces(moves: &[Move], page_bytes: u64, most: u64) -> impl Iterator<Item = &[Move]> {
    let pages = usize::try_from(most / page_bytes.max(1)).unwrap_or(usize::MAX);
    moves.chunks(pages.max(1))
}

/// The first page of each run that is contiguous in both memories, and its length.
pub(super) fn runs(moves: &[Move]) -> impl Iterator<Item = (Move, u32)> {
    let follows = |a: &Move, b: &Move| a.device + 1 == b.device && a.host + 1 == b.host;
    moves.chunk_by(follows).map(|run| (run[0], run.len() as u32))
}

/// A part of a transfer that ends with an event.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) moves: Vec<Move>,
    /// Pages that leave without a copy: the host has their bytes.
    pub(super) kept: Vec<Move>,
    /// Device pages to poison once the copies are enqueued.
    pub(super) poison: Vec<u32>,
    /// The piece of the way out that it comes after, if it is the first of the way back.
    pub(super) left: Option<u64>,
    /// The transfer's begin, if it is its first piece.
    pub(super) begin: Option<Event>,
    pub(super) end: Event,
    /// The transfer that it is the last of.
    pub(super) last: Option<Whole>,
    pub(super) ticket: u64,
    /// Whether the piece was enqueued as a whole: if not, its transfer was refused.
    pub(super) complete: bool,
}

impl Piece {
    /// All pages that it holds.
    pub(super) fn pages(&self) -> impl Iterator<Item = Move> {
        self.moves.iter().chain(&self.kept).copied()
    }
}

/// A transfer under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole {
    /// Pages that are copied.
    pub(super) pages: u32,
    /// Pages that leave without a copy.
    pub(super) kept: u32,
    pub(super) asked: Event,
    pub(super) begin: Event,
}

/// One direction: its stream, and the pieces under way in order. Pieces are numbered from 0.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) stream: Stream,
    /// Pieces seen to be done.
    pub(super) done: u64,
    /// Enqueued on the stream.
    pub(super) under_way: VecDeque<Piece>,
    /// To be enqueued after these.
    pub(super) pending: VecDeque<Piece>,
}

impl Lane {
    pub(super) fn new<D: Device>(device: &D) -> Result<Self> {
        let (under_way, pending) = (VecDeque::new(), VecDeque::new());
        Ok(Lane { stream: device.stream()?, done: 0, under_way, pending })
    }

    /// The event at the end of a piece that is under way.
    pub(super) fn end(&self, piece: u64) -> Option<Event> {
        let at = piece.checked_sub(self.done)?;
        Some(self.under_way.get(at as usize)?.end)
    }

    /// How many pieces were enqueued so far.
    pub(super) fn enqueued(&self) -> u64 {
        self.done + self.under_way.len() as u64
    }

    /// The number of the piece that comes last.
    pub(super) fn latest(&self) -> Option<u64> {
        (self.enqueued() + self.pending.len() as u64).checked_sub(1)
    }

    /// Pages under way.
    pub(super) fn pages_under_way(&self) -> u64 {
        self.under_way.iter().map(|piece| piece.moves.len() as u64).sum()
    }
}
