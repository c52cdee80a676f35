//! Slots of the ring, and how their chunks are copied.

use crate::text::{Chunk, ChunkId, Placement, Section};
use djinn_device::{Buffer, Device, Span, Stream};
use djinn_ringbuf::Blocker;
use djinn_srg::{Condition, NodeId};

/// One streamed chunk's place in the ring.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) chunk: ChunkId,
    /// Whether passes of few rows leave it in host memory.
    pub(crate) on_cpu: bool,
    pub(crate) copy: CopyPlan,
    pub(crate) blocker: Blocker,
    /// The sections of the chunk.
    pub(crate) sections: Vec<SlotSection>,
    /// The number of sections in all slots before it.
    pub(crate) first_section: usize,
    /// Of its sections, in check mode.
    pub(crate) checksums: Vec<u64>,
}

/// A section of a streamed chunk.
#[derive(Clone, Debug)]
pub(crate) struct SlotSection {
    /// When a pass uses it. `None`: always.
    pub(crate) condition: Option<Condition>,
    /// Where operations read it.
    pub(crate) span: Span,
    /// From host memory to the ring, in two parts if it crosses the ring's end.
    pub(crate) parts: Vec<(Span, Span)>,
}

impl Slot {
    /// The router that chooses among its experts. `None`: every pass copies it.
    pub(crate) fn router(&self) -> Option<NodeId> {
        self.sections[0].condition.map(|condition| condition.group)
    }

    /// The sections of `chunk`, each with its copies.
    pub(crate) fn sections(chunk: &Chunk, copy: &CopyPlan) -> Vec<SlotSection> {
        let section = |section: &Section| {
            let &Section { offset, bytes, condition } = section;
            let (mut parts, mut at) = (Vec::new(), 0);
            for (host, ring) in &copy.parts {
                let (first, end) = (offset.max(at), (offset + bytes).min(at + ring.len()));
                if first < end {
                    parts.push((host.slice(first - at, end - first), ring.slice(first - at, end - first)));
                }
                at += ring.len();
            }
            SlotSection { condition, span: copy.destination().slice(offset, bytes), parts }
        };
        chunk.sections.iter().map(section).collect()
    }
}

/// How a chunk is copied. Only this type knows both ablations.
#[derive(Clone, Debug)]
pub(crate) struct CopyPlan {
    /// From host memory to the ring, in two parts if the chunk crosses the ring's end.
    pub(crate) parts: Vec<(Span, Span)>,
    /// Where two parts are joined before their use: a bounce buffer that all such chunks share.
    joined: Option<Span>,
    /// Whether the copy begins only when the chunk is needed.
    pub(crate) when_needed: bool,
}

impl CopyPlan {
    /// From `host` to the slot `index` of `ring`.
    pub(crate) fn new(
        host: Span,
        ring: Buffer,
        placement: &Placement,
        index: usize,
        bounce: Option<Buffer>,
    ) -> Self {
        let (mut parts, mut at) = (Vec::new(), 0);
        for part in placement.ring.parts(index).into_iter().filter(|part| !part.is_empty()) {
            let len = part.end - part.start;
            parts.push((host.slice(at, len), ring.slice(part.start, len)));
            at += len;
        }
        let join = || bounce.expect("planned for chunks that straddle").slice(0, host.len());
        let joined = (parts.len() > 1).then(join);
        CopyPlan { parts, joined, when_needed: placement.blocking_copies }
    }

    /// Where operations read the chunk.
    pub(crate) fn destination(&self) -> Span {
        self.joined.unwrap_or(self.parts[0].1)
    }

    /// Enqueues the joining of two parts. It also joins a chunk that the pass skipped, which nothing reads.
    pub(crate) fn join<D: Device>(&self, device: &D, compute: Stream) -> djinn_device::Result<()> {
        let Some(joined) = self.joined else { return Ok(()) };
        let mut at = 0;
        self.parts.iter().try_for_each(|(_, ring)| {
            let to = joined.slice(at, ring.len());
            at += ring.len();
            device.copy(compute, *ring, to)
        })
    }
}
