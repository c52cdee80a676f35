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
    pub(super) end: Event,
    /// The transfer that it is the last of.
    pub(super) last: Option<Whole>,
    pub(super) ticket: u64,
    /// Whether the piece was enqueued as a whole: if not, its transfer was refused.
    pub(super) complete: bool,
}

/// A transfer under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole {
    pub(super) pages: u32,
    pub(super) asked: Event,
    pub(super) begin: Event,
}

/// One direction: its stream, and the pieces under way in order. Pieces are numbered from 0.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) stream: Stream,
    pub(super) under_way: VecDeque<Piece>,
    /// Pieces seen to be done.
    pub(super) done: u64,
}

impl Lane {
    pub(super) fn new<D: Device>(device: &D) -> Result<Self> {
        Ok(Lane { stream: device.stream()?, under_way: VecDeque::new(), done: 0 })
    }

    /// The event at the end of a piece, unless it was seen to be done.
    pub(super) fn end(&self, piece: u64) -> Option<Event> {
        let at = piece.checked_sub(self.done)?;
        Some(self.under_way.get(at as usize)?.end)
    }

    /// The number of the piece that was enqueued last.
    pub(super) fn latest(&self) -> Option<u64> {
        (self.done + self.under_way.len() as u64).checked_sub(1)
    }
}
