//! What the CPU computes in passes of few rows: whole chunks, and experts of routers whose weights stream.

use crate::text::{Chunk, PlacedTile, Placement};
use djinn_device::args::CpuSlots;
use djinn_device::{Buffer, Span};
use djinn_srg::{Condition, Graph, NodeId, Op};
use std::ops::Range;

/// Alignment of the parts of an exchange, in bytes.
const ALIGN: u64 = 256;

/// A router that leaves some slots to the CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuRouter {
    /// The [`Op::Group`] that lists its slots.
    pub group: NodeId,
    /// The sum of its slots.
    pub combine: NodeId,
    /// Those slots.
    pub slots: CpuSlots,
    /// The tiles of the first products of its experts that the CPU can compute, as indices into [`Placement::tiles`].
    pub up: Vec<usize>,
    /// The same of their last products.
    pub down: Vec<usize>,
    /// The bytes of each of these experts.
    pub bytes: Vec<u64>,
    experts: u32,
}

impl CpuRouter {
    fn starts_bytes(&self) -> u64 {
        4 * (u64::from(self.experts) + 1)
    }

    /// The part of each router in that of all in an exchange.
    pub(crate) fn starts(routers: &[CpuRouter], all: Span) -> impl Iterator<Item = Span> {
        routers.iter().scan(0, move |at, router| {
            let first = *at;
            *at += router.starts_bytes().next_multiple_of(ALIGN);
            Some(all.slice(first, router.starts_bytes()))
        })
    }

    /// Mean bytes that the CPU reads in a pass of `rows` rows, if all experts are equally likely.
    pub(crate) fn expected_bytes(&self, rows: u64) -> f64 {
        let all: u64 = self.bytes.iter().sum();
        let CpuSlots { top_k, first, .. } = self.slots;
        let condition =
            Condition { group: self.group, expert: 0, experts: self.experts, top_k: top_k - first };
        all as f64 * condition.probability(rows)
    }
}

/// Parts of host memory through which the CPU gets its inputs, and gives its results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuExchange<T> {
    /// f32: rows that products multiply.
    pub x: T,
    /// f32: what they give: of a product, or of experts' last ones.
    pub out: T,
    /// f32 `[slots, 2 · width]`: what experts' first products give.
    pub up: T,
    /// f32 `[slots, width]`: what their last products multiply.
    pub act: T,
    /// u32 `[slots]`: the expert of each slot.
    pub ids: T,
    /// u32 `[slots]`: the slots of the CPU, by expert.
    pub order: T,
    /// u32 `[routers, experts + 1]`: where each expert's begin.
    pub starts: T,
}

impl<T> CpuExchange<T> {
    fn each<U>(self, mut of: impl FnMut(T) -> U) -> CpuExchange<U> {
        let CpuExchange { x, out, up, act, ids, order, starts } = self;
        CpuExchange {
            x: of(x),
            out: of(out),
            up: of(up),
            act: of(act),
            ids: of(ids),
            order: of(order),
            starts: of(starts),
        }
    }
}

impl CpuExchange<u64> {
    /// The bytes of the parts that products and routers on the CPU need, in passes of up to `most_rows` rows.
    pub(crate) fn new(graph: &Graph, placement: &Placement, most_rows: u64) -> Self {
        let rows = most_rows.min(Placement::CPU_ROWS);
        let mut bytes = CpuExchange::<u64>::default();
        let whole = placement.tiles.iter().filter(|placed| placement.on_cpu[placed.chunk.0 as usize]);
        for placed in whole.filter(|placed| graph.node(placed.tile.node).op == Op::Linear) {
            let [n, k] = graph.value(placed.tile.parts[0].value).matrix();
            bytes.x = bytes.x.max(4 * rows * k);
            bytes.out = bytes.out.max(4 * rows * n);
        }
        for router in &placement.cpu_routers {
            let slots = rows * u64::from(router.slots.top_k);
            let [up, down] = [&router.up, &router.down].map(|tiles| &placement.tiles[tiles[0]].tile.parts[0]);
            let [[_, k], [n, inner]] = [up, down].map(|weight| graph.value(weight.value).matrix());
            bytes.x = bytes.x.max(4 * rows * k);
            bytes.out = bytes.out.max(4 * slots * n);
            bytes.up = bytes.up.max(8 * slots * inner);
            bytes.act = bytes.act.max(4 * slots * inner);
            bytes.ids = bytes.ids.max(4 * slots);
            bytes.order = bytes.ids;
            bytes.starts += router.starts_bytes().next_multiple_of(ALIGN);
        }
        bytes
    }

    /// The bytes of all parts in one buffer.
    pub fn total(self) -> u64 {
        let mut total = 0;
        self.each(|bytes| total += bytes.next_multiple_of(ALIGN));
        total
    }

    /// The parts in a buffer of [`total`](Self::total) bytes.
    pub(crate) fn within(self, buffer: Buffer) -> CpuExchange<Span> {
        let mut at = 0;
        self.each(|bytes| {
            let part = buffer.slice(at, bytes);
            at += bytes.next_multiple_of(ALIGN);
            part
        })
    }
}

/// By chunk: whether the CPU computes its products in passes of few rows. These are `share` of the bytes that are not
/// resident and that every pass uses, spread evenly.
pub(crate) fn choose_on_cpu(chunks: &[Chunk], resident: &[bool], share: f64) -> Vec<bool> {
    let (mut seen, mut chosen) = (0u64, 0u64);
    let each = chunks.iter().zip(resident).map(|(chunk, resident)| {
        if *resident || chunk.router().is_some() {
            return false;
        }
        seen += chunk.bytes;
        let on_cpu = (chosen + chunk.bytes) as f64 <= seen as f64 * share;
        chosen += if on_cpu { chunk.bytes } else { 0 };
        on_cpu
    });
    each.collect()
}

/// The routers that leave slots to the CPU: of each row's choices the last ones, `share` of them to the nearest whole
/// number. It computes a run of experts with no resident part.
pub(crate) fn choose_routers(
    graph: &Graph,
    tiles: &[PlacedTile],
    resident: &[bool],
    share: f64,
) -> Vec<CpuRouter> {
    let router_of = |placed: &PlacedTile| placed.tile.condition.map(|condition| condition.group);
    let mut routers = Vec::new();
    let mut begin = 0;
    for run in tiles.chunk_by(|a, b| router_of(a) == router_of(b)) {
        let range = begin..begin + run.len();
        begin = range.end;
        let Some(Condition { group, experts, top_k, .. }) = run[0].tile.condition else { continue };
        let first = top_k - (f64::from(top_k) * share).round() as u32;
        let Some([act, combine]) = gated_block(graph, group).filter(|_| first < top_k) else { continue };
        // Of the experts with no resident part.
        let mut bytes = vec![Some(0); experts as usize];
        for placed in run {
            let expert = placed.tile.condition.map_or(0, |of| of.expert as usize);
            let streams = bytes[expert].filter(|_| !resident[placed.chunk.0 as usize]);
            bytes[expert] = streams.map(|bytes| bytes + placed.tile.bytes());
        }
        let Range { start, end } = longest_run(&bytes);
        let bytes: Vec<u64> = bytes[start..end].iter().flatten().copied().collect();
        let (begin, end) = (start as u32, end as u32);
        let is_on_cpu =
            |&tile: &usize| tiles[tile].tile.condition.is_some_and(|of| (begin..end).contains(&of.expert));
        let (up, down) = range.filter(is_on_cpu).partition(|&tile| tiles[tile].tile.node < act);
        let slots = CpuSlots { top_k, first, begin, end };
        routers.push(CpuRouter { group, combine, slots, up, down, bytes, experts });
    }
    routers.retain(|router| !router.bytes.is_empty());
    routers
}

/// The longest run of what there is.
fn longest_run<T>(all: &[Option<T>]) -> Range<usize> {
    let (mut longest, mut at) = (0..0, 0);
    for run in all.chunk_by(|a, b| a.is_some() == b.is_some()) {
        if run[0].is_some() && run.len() > longest.len() {
            longest = at..at + run.len();
        }
        at += run.len();
    }
    longest
}

/// The activation and the sum of a router's experts, if these are gated feed-forward blocks:
/// products, [`Op::SiluMul`], products, [`Op::Combine`].
fn gated_block(graph: &Graph, group: NodeId) -> Option<[NodeId; 2]> {
    let products = |from: u32| {
        let run = graph.nodes[from as usize..].iter();
        let run = run.take_while(|node| matches!(node.op, Op::ExpertLinear { .. })).count();
        NodeId(from + run as u32)
    };
    let act = products(group.0 + 1);
    let of = |id: NodeId| graph.nodes.get(id.0 as usize).map(|node| &node.op);
    let combine = of(act).filter(|op| **op == Op::SiluMul).map(|_| products(act.0 + 1))?;
    of(combine).filter(|op| matches!(op, Op::Combine { .. })).map(|_| [act, combine])
}
