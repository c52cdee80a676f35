//! Keys and values in the pages, read and written over beside a pass.
//!
//! A page has a layer's keys, by head and token, and then its values:
//!
//! ```text
//! page │ … other layers … │ K head 0: t0 t1 … │ K head 1 │ V head 0 │ V head 1 │ … │
//! ```
//!
//! Where the type has scales, those of a head's tokens follow its elements. Beside the pages, each vector has its scale
//! after it ([`encode_vectors`](djinn_device::reference::encode_vectors)).

use crate::debug::{KvHalf, KvRange, KvValues, KvWritten};
use crate::parts::Parts;
use djinn_device::reference::decode_vectors;
use djinn_device::{Device, Span};
use djinn_srg::{Graph, KvPlace, NodeId, Op};
use djinn_vmu::KvLayout;
use std::ops::Range;

/// An access of a step to keys and values in an entry's pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvAccess<'a> {
    /// Index of the batch's entry.
    pub(crate) entry: usize,
    pub(crate) act: KvAct<'a>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum KvAct<'a> {
    /// Reads them after the step has written its own.
    Read(&'a KvRange),
    /// Overwrites them before the step. The pages belong to the entry alone.
    Write(&'a KvWritten),
}

/// A layer's part of the cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerCache {
    /// The node that writes to it.
    pub(crate) writer: NodeId,
    place: KvPlace,
    layout: KvLayout,
}

impl LayerCache {
    /// The part of a block, if the block exists.
    pub(crate) fn of(parts: &Parts, layer: u32) -> Option<Self> {
        let (writer, cache) = writer(&parts.graph, layer)?;
        let place = parts.plan.kv_places.place(cache);
        Some(LayerCache { writer, place, layout: *parts.data.layout() })
    }

    /// Number of heads, and values per head.
    pub(crate) fn heads(&self) -> [u32; 2] {
        [self.place.kv_heads, self.place.head_dim]
    }

    /// Bytes of a vector, its scale included.
    fn vector_bytes(&self) -> u64 {
        self.layout.dtype.vector_bytes(self.place.head_dim.into())
    }

    /// What a vector consists of, elements and perhaps a scale: its bytes in the vector, and where those of a page's
    /// first vector lie in a head's keys or values.
    fn pieces(&self) -> impl Iterator<Item = (Range<u64>, u64)> + use<> {
        let (dtype, tokens) = (self.layout.dtype, u64::from(self.layout.page_tokens));
        let elements = u64::from(self.place.head_dim) * dtype.bytes();
        let scale = elements..elements + dtype.scale_bytes();
        [(0..elements, 0), (scale, tokens * elements)].into_iter().filter(|(bytes, _)| !bytes.is_empty())
    }

    /// Bytes of a head's keys or values in a page.
    fn plane_bytes(&self) -> u64 {
        u64::from(self.layout.page_tokens) * self.vector_bytes()
    }

    /// Bytes of a layer's keys and values in a page.
    fn page_bytes(&self) -> u64 {
        2 * u64::from(self.place.kv_heads) * self.plane_bytes()
    }

    /// Indices in a page table of the pages that hold some positions.
    fn pages(&self, positions: &Range<u64>) -> Range<usize> {
        let page_tokens = u64::from(self.layout.page_tokens);
        (positions.start / page_tokens) as usize..positions.end.div_ceil(page_tokens) as usize
    }

    /// Bytes of hook memory that a read takes.
    pub(crate) fn staged_bytes(&self, positions: &Range<u64>) -> u64 {
        self.pages(positions).len() as u64 * self.page_bytes()
    }

    /// The layer's part of a page.
    fn in_page(&self, parts: &Parts, page: u32) -> Span {
        let first = self.place.first_byte(self.layout.dtype) * u64::from(self.layout.page_tokens);
        parts.data.page(page).slice(first, self.page_bytes())
    }

    /// Bytes of new contents for keys or values.
    pub(crate) fn written_bytes(&self, positions: &Range<u64>) -> u64 {
        (positions.end - positions.start) * u64::from(self.place.kv_heads) * self.vector_bytes()
    }

    /// Copies whole parts of pages to `staged`.
    pub(super) fn read(
        &self,
        parts: &Parts,
        table: &[u32],
        positions: &Range<u64>,
        staged: Span,
        copy: &mut impl FnMut(Span, Span),
    ) {
        for (at, &page) in (0..).zip(&table[self.pages(positions)]) {
            let staged = staged.slice(at * self.page_bytes(), self.page_bytes());
            copy(self.in_page(parts, page), staged);
        }
    }

    /// Copies new contents to the pages, head by head. They are put into `staged` in the order of the copies.
    pub(super) fn write<D: Device>(
        &self,
        device: &D,
        parts: &Parts,
        table: &[u32],
        written: &KvWritten,
        staged: Span,
        copy: &mut impl FnMut(Span, Span),
    ) {
        let (vector, [heads, _]) = (self.vector_bytes(), self.heads());
        let page_tokens = u64::from(self.layout.page_tokens);
        let positions = &written.range.positions;
        let first_plane = match written.half {
            KvHalf::Keys => 0,
            KvHalf::Values => heads,
        };
        let mut copied = 0;
        let mut bytes = Vec::with_capacity(written.bytes.len());
        for index in self.pages(positions) {
            let begin = index as u64 * page_tokens;
            let slots = positions.start.max(begin) - begin..positions.end.min(begin + page_tokens) - begin;
            let part = self.in_page(parts, table[index]);
            for head in 0..heads {
                for (piece, first) in self.pieces() {
                    let width = piece.end - piece.start;
                    for slot in slots.clone() {
                        let token = begin + slot - positions.start;
                        let at = (token * u64::from(heads) + u64::from(head)) * vector + piece.start;
                        bytes.extend_from_slice(&written.bytes[at as usize..(at + width) as usize]);
                    }
                    let run = (slots.end - slots.start) * width;
                    let to = u64::from(first_plane + head) * self.plane_bytes() + first + slots.start * width;
                    copy(staged.slice(copied, run), part.slice(to, run));
                    copied += run;
                }
            }
        }
        device.write_host(staged, |host| host.copy_from_slice(&bytes));
    }

    /// The values for some positions, from whole parts of pages.
    pub(super) fn values(&self, range: KvRange, bytes: &[u8]) -> KvValues {
        let [kv_heads, head_dim] = self.heads();
        let page_tokens = u64::from(self.layout.page_tokens);
        let first = range.positions.start / page_tokens;
        let half = |first_plane: u32| {
            let mut half = Vec::new();
            for position in range.positions.clone() {
                let page = (position / page_tokens - first) * self.page_bytes();
                for plane in first_plane..first_plane + kv_heads {
                    for (piece, first) in self.pieces() {
                        let width = piece.end - piece.start;
                        let at =
                            u64::from(plane) * self.plane_bytes() + first + position % page_tokens * width;
                        half.extend_from_slice(&bytes[(page + at) as usize..][..width as usize]);
                    }
                }
            }
            decode_vectors(&half, self.layout.dtype, head_dim as usize)
        };
        let (keys, values) = (half(0), half(kv_heads));
        KvValues { range, kv_heads, head_dim, keys, values }
    }
}

/// The node that writes a block's keys and values, and the cache.
fn writer(graph: &Graph, layer: u32) -> Option<(NodeId, djinn_srg::ValueId)> {
    let mut nodes = (0..).map(NodeId).zip(&graph.nodes);
    let (id, node) =
        nodes.find(|(_, node)| node.layer == Some(layer) && matches!(node.op, Op::KvWrite { .. }))?;
    Some((id, node.outputs[0]))
}
