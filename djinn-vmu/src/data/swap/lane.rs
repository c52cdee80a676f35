//! One direction of swaps: its transfers cut into pieces of bounded size and contiguous runs of pages, and the pieces
//! under way.

use crate::data::SwapFault;
use djinn_device::{Event, Stream};
use djinn_pages::PagePair;
use std::collections::VecDeque;

/// `copies` in order, in pieces of at most `most` bytes, or of one page.
pub(super) fn pieces(copies: &[PagePair], page_bytes: u64, most: u64) -> impl Iterator<Item = &[PagePair]> {
    let pages = usize::try_from(most / page_bytes.max(1)).unwrap_or(usize::MAX);
    copies.chunks(pages.max(1))
}

/// The first page of each run that is contiguous in both memories, and its length.
pub(super) fn runs(copies: &[PagePair]) -> impl Iterator<Item = (PagePair, u32)> {
    let follows = |a: &PagePair, b: &PagePair| a.device + 1 == b.device && a.host + 1 == b.host;
    copies.chunk_by(follows).map(|run| (run[0], run.len() as u32))
}

/// A part of a transfer that ends with an event.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) copies: Vec<PagePair>,
    /// In check mode, pages that leave without a copy; they are compared with the host's.
    pub(super) kept: Vec<PagePair>,
    /// Device pages to poison once the copies are enqueued.
    pub(super) poison: Vec<u32>,
    /// The transfer's begin, in its first piece.
    pub(super) begin: Option<Event>,
    pub(super) end: Event,
    /// The transfer, in its last piece.
    pub(super) last: Option<Whole>,
    pub(super) ticket: u64,
    /// Whether the device refused a part of it.
    pub(super) refused: bool,
}

/// A transfer under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole {
    /// Pages that are copied.
    pub(super) pages: u32,
    /// Pages without a copy, since the other side has them.
    pub(super) kept: u32,
    pub(super) asked: Event,
    pub(super) begin: Event,
}

/// One direction: its stream, and the pieces under way in order. Pieces are numbered from 0.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) stream: Stream,
    /// Pieces that are done.
    pub(super) done: u64,
    /// Enqueued on the stream.
    pub(super) under_way: VecDeque<Piece>,
    /// Pieces to be enqueued after these.
    pub(super) pending: VecDeque<Piece>,
    /// The fault of the oldest transfer, if any.
    pub(super) fault: Option<SwapFault>,
}

impl Lane {
    pub(super) fn new(stream: Stream) -> Self {
        Lane { stream, done: 0, under_way: VecDeque::new(), pending: VecDeque::new(), fault: None }
    }

    /// The event at the end of a piece that is under way.
    pub(super) fn end(&self, piece: u64) -> Option<Event> {
        let at = piece.checked_sub(self.done)?;
        Some(self.under_way.get(at as usize)?.end)
    }

    /// Pieces that were enqueued so far.
    pub(super) fn enqueued(&self) -> u64 {
        self.done + self.under_way.len() as u64
    }

    /// Whether a page will be compared with the host's.
    pub(super) fn compares(&self, device: u32) -> bool {
        self.under_way
            .iter()
            .chain(&self.pending)
            .any(|piece| piece.kept.iter().any(|pair| pair.device == device))
    }

    /// Pages under way.
    pub(super) fn pages_under_way(&self) -> u64 {
        self.under_way.iter().map(|piece| piece.copies.len() as u64).sum()
    }
}
