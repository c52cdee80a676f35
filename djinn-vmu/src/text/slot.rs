//! Slots of the ring, and how their chunks are moved.

use crate::ChunkId;
use djinn_device::Span;
use djinn_ringbuf::Blocker;
use djinn_srg::Condition;

/// One streamed chunk's place in the ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) chunk: ChunkId,
    pub(crate) host: Span,
    pub(crate) ring: Span,
    /// Where the chunk goes on if it straddles the wrap, and where it is joined before its use.
    pub(crate) wrapped: Option<Wrapped>,
    pub(crate) blocker: Blocker,
    pub(crate) checksum: u64,
    /// When a pass uses the chunk; every pass does without one.
    pub(crate) condition: Option<Condition>,
}

/// The second part of a chunk that straddles the wrap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wrapped {
    /// In the ring, from offset 0.
    pub(crate) ring: Span,
    /// The whole chunk, contiguous, in the bounce buffer that all such chunks share.
    pub(crate) joined: Span,
}

impl Slot {
    /// Each part in host memory, in the ring, and where it is joined if there are two.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (Span, Span, Option<Span>)> {
        let (host, before) = (self.host, self.ring.len());
        let joined = self.wrapped.map(|w| w.joined);
        let part = move |at, ring: Span| {
            (host.slice(at, ring.len()), ring, joined.map(|joined| joined.slice(at, ring.len())))
        };
        let second = self.wrapped.map(|w| part(before, w.ring));
        [part(0, self.ring)].into_iter().chain(second)
    }

    /// Where operations read the chunk.
    pub(crate) fn contiguous(&self) -> Span {
        self.wrapped.map_or(self.ring, |w| w.joined)
    }
}

/// How a pass's chunks are moved.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mode {
    /// Verify every chunk and poison freed ring space.
    pub(crate) check: bool,
    /// Begin a copy only when it is needed.
    pub(crate) blocking: bool,
}
