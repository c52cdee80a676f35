//! The program of a model: its graph, lowered once to the launches of a pass.
//!
//! ```text
//! graph      embed │ norm │ qkv                  │ rope  kv_write │ attention │ …
//! launches   embed │ norm │ tile 0 │ tiles 1, 2  │ rope+kv_write  │ attention │ …
//! chunks       resident c0         ╰ acquire c1 … release c1
//! ```

use crate::{ChunkId, MemoryPlan, Placement};
use djinn_srg::{Graph, Node, NodeId, Op, Rows, ValueId};
use serde::Serialize;
use std::ops::Range;

/// How much one launch may compute. Results do not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// As much as the device can compute at once.
    Fused,
    /// One node with one tile of its weights: for traces, and to observe or change every value.
    Apart,
}

/// One launch of a pass, for any number of rows. Its tiles are of one chunk, or of several resident ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Launch {
    /// The node that it computes.
    pub node: NodeId,
    /// The next node, if one operation computes both.
    pub fused: Option<Fused>,
    /// Its tiles, as indices into [`Placement::tiles`].
    pub tiles: Range<usize>,
    /// The streamed chunk that it is the first to read, if any.
    pub acquire: Option<ChunkId>,
    /// The streamed chunk that it is the last to read, if any.
    pub release: Option<ChunkId>,
    /// The node that groups a router's choice, if that is known after the launch. Copies of experts' chunks wait for it.
    pub announces: Option<NodeId>,
    /// The product that is the next launch and reads what this one completes, if one does.
    pub read_by: Option<NextProduct>,
    /// The addition that begins the next launch, if it alone reads what this one, a product with its whole weight, gives.
    pub added_by: Option<NodeId>,
    /// Whether the device may compute the next launch together with this one: products of experts with the same inputs and
    /// output, in the order of experts and tiles, where no chunk is released or acquired between the two.
    pub joins_next: bool,
}

impl Launch {
    /// Its node, and the one fused with it.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        [Some(self.node), self.fused.map(|fused| fused.node)].into_iter().flatten()
    }
}

/// A product that reads what the launch before it completes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NextProduct {
    /// The product.
    pub node: NodeId,
    /// The tiles of its first launch, as indices into [`Placement::tiles`].
    pub tiles: Range<usize>,
    /// Nothing else reads it, and one launch has all tiles of the product, with no chunk acquired or released before it.
    pub alone: bool,
}

/// The second node of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Fused {
    /// The node.
    pub node: NodeId,
    /// With more rows the nodes are launched one after the other: the stack then places the second one's output over
    /// inputs of the first.
    pub most_rows: u64,
}

/// The launches of a pass, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// The launches.
    pub launches: Vec<Launch>,
}

impl Program {
    /// Lowers `graph` as `plan` lays it out.
    pub fn new(graph: &Graph, plan: &MemoryPlan, detail: Detail) -> Self {
        let placement = &plan.placement;
        let mut launches = Vec::new();
        let (mut node, mut tile) = (0, 0);
        while node < graph.nodes.len() {
            let id = NodeId(node as u32);
            let fused = if detail == Detail::Fused { fused(graph, plan, id, tile) } else { None };
            let last = fused.map_or(id, |fused| fused.node);
            // Only one of a pair has weights.
            let reader =
                if placement.tiles.get(tile).is_some_and(|next| next.tile.node == id) { id } else { last };
            let first = tile;
            loop {
                let tiles = tile..run_end(graph, placement, tile, reader, detail);
                tile = tiles.end;
                let announces =
                    [id, last].into_iter().find(|&id| graph.node(id).op.announces_choice().is_some());
                let (acquire, release) = brackets(placement, &tiles);
                let ends = placement.tiles.get(tile).is_none_or(|next| next.tile.node != reader);
                let told = ends && detail == Detail::Fused;
                let next = if told { next_product(graph, placement, last, tile) } else { None };
                let read_by = next.map(|next| NextProduct { alone: next.alone && release.is_none(), ..next });
                let whole = told && fused.is_none() && tiles.start == first;
                let added_by = if whole { next_sum(graph, id) } else { None };
                launches.push(Launch {
                    node: id,
                    fused,
                    tiles,
                    acquire,
                    release,
                    announces,
                    read_by,
                    added_by,
                    joins_next: false,
                });
                if ends {
                    break;
                }
            }
            node = last.0 as usize + 1;
        }
        assert_eq!(tile, placement.tiles.len(), "a pass uses every tile");
        if detail == Detail::Fused {
            for at in 1..launches.len() {
                launches[at - 1].joins_next = join(graph, &launches[at - 1], &launches[at]);
            }
        }
        Program { launches }
    }

    /// The index of the launch after which a value of the stack is complete and not overwritten yet. With
    /// [`Detail::Apart`], all its readers come later.
    pub fn completes(&self, graph: &Graph, value: ValueId) -> Option<usize> {
        let writes = |id: NodeId| graph.node(id).outputs.contains(&value);
        self.launches.iter().rposition(|launch| launch.nodes().any(writes))
    }
}

/// The node after `id`, if devices have an operation for both with the same bits. Its tiles, if any, begin with
/// `tile`.
fn fused(graph: &Graph, plan: &MemoryPlan, id: NodeId, tile: usize) -> Option<Fused> {
    let next = NodeId(id.0 + 1);
    let (first, second) = (graph.node(id), graph.nodes.get(next.0 as usize)?);
    match (&first.op, &second.op) {
        (Op::Add, Op::RmsNorm { .. }) if second.inputs[0] == first.outputs[0] => {
            let row_bytes = graph.value(first.outputs[0]).bytes(Rows { rows: 1, logit_rows: 1 });
            let out = plan.stack.offset(second.outputs[0]);
            // Values of one size that begin together are the same memory; others must not overlap.
            let apart = |input: &ValueId| match plan.stack.offset(*input).abs_diff(out) {
                0 => u64::MAX,
                distance => distance / row_bytes,
            };
            let most_rows = first.inputs.iter().map(apart).min().unwrap_or(u64::MAX);
            Some(Fused { node: next, most_rows })
        }
        (Op::Rope { .. }, Op::KvWrite { .. }) if second.inputs[0] == first.inputs[0] => {
            Some(Fused { node: next, most_rows: u64::MAX })
        }
        (Op::Route { .. }, Op::Group { .. }) if second.inputs[0] == first.outputs[1] => {
            Some(Fused { node: next, most_rows: u64::MAX })
        }
        (Op::Linear, Op::SiluMul) if second.inputs[0] == first.outputs[0] && first.weights.len() == 1 => {
            // The whole weight, and no other reader of both halves.
            let end = run_end(graph, &plan.placement, tile, id, Detail::Fused);
            let whole = plan.placement.tiles.get(end).is_none_or(|after| after.tile.node != id);
            let read = |node: &Node| node.inputs.contains(&first.outputs[0]);
            let alone = !graph.nodes[next.0 as usize + 1..].iter().any(read);
            (whole && alone).then_some(Fused { node: next, most_rows: u64::MAX })
        }
        _ => None,
    }
}

/// The next node, if it is a product that reads what `id` gives; its tiles begin with `tile`.
fn next_product(graph: &Graph, placement: &Placement, id: NodeId, tile: usize) -> Option<NextProduct> {
    let (node, given) = (NodeId(id.0 + 1), graph.node(id).outputs[0]);
    let reads = |next: &&Node| matches!(next.op, Op::Linear) && next.inputs[0] == given;
    graph.nodes.get(node.0 as usize).filter(reads)?;
    let tiles = tile..run_end(graph, placement, tile, node, Detail::Fused);
    let whole = placement.tiles.get(tiles.end).is_none_or(|after| after.tile.node != node);
    let (acquire, _) = brackets(placement, &tiles);
    let later = graph.nodes[node.0 as usize + 1..].iter().any(|other| other.inputs.contains(&given));
    Some(NextProduct { node, tiles, alone: whole && acquire.is_none() && !later })
}

/// The next node, if it adds what the product `id` gives to another value, and no other node reads that.
fn next_sum(graph: &Graph, id: NodeId) -> Option<NodeId> {
    let (sum, given) = (NodeId(id.0 + 1), graph.node(id).outputs[0]);
    let (next, later) = graph.nodes[sum.0 as usize..].split_first()?;
    let adds = next.op == Op::Add && next.inputs.iter().filter(|&&term| term == given).count() == 1;
    let alone = || !later.iter().any(|node| node.inputs.contains(&given));
    (graph.node(id).op == Op::Linear && adds && alone()).then_some(sum)
}

/// Whether one launch of the device may compute these two of the program.
fn join(graph: &Graph, launch: &Launch, next: &Launch) -> bool {
    let (first, second) = (graph.node(launch.node), graph.node(next.node));
    let (&Op::ExpertLinear { expert, .. }, &Op::ExpertLinear { expert: other, .. }) = (&first.op, &second.op)
    else {
        return false;
    };
    // An output that is written into is the last input.
    let alike = first.inputs[..3] == second.inputs[..3] && first.outputs == second.outputs;
    let ascends = launch.node == next.node || expert < other;
    alike && ascends && launch.release.is_none() && next.acquire.is_none()
}

/// The end of the run of tiles from `first` on that one launch of `node` reads; empty if the first belongs to another
/// node. A product takes tiles together if none waits for another's chunk.
fn run_end(graph: &Graph, placement: &Placement, first: usize, node: NodeId, detail: Detail) -> usize {
    let Placement { tiles, slots, .. } = placement;
    let of_node = |at: usize| tiles.get(at).filter(|placed| placed.tile.node == node);
    let Some(head) = of_node(first) else { return first };
    let resident = |chunk: ChunkId| slots[chunk.0 as usize].is_none();
    let together = |chunk| chunk == head.chunk || (resident(chunk) && resident(head.chunk));
    let mut end = first + 1;
    if detail == Detail::Fused && matches!(graph.node(node).op, Op::Linear) {
        while of_node(end).is_some_and(|next| together(next.chunk)) {
            end += 1;
        }
    }
    end
}

/// The streamed chunk whose first tile is among `tiles`, and the one whose last tile is.
fn brackets(placement: &Placement, tiles: &Range<usize>) -> (Option<ChunkId>, Option<ChunkId>) {
    let Some(placed) = placement.tiles[tiles.clone()].first() else { return (None, None) };
    let chunk = placed.chunk;
    let (all, slot) = (&placement.chunks[chunk.0 as usize].tiles, placement.slots[chunk.0 as usize]);
    let streamed = slot.map(|_| chunk);
    (streamed.filter(|_| all.start == tiles.start), streamed.filter(|_| all.end == tiles.end))
}

#[cfg(test)]
mod tests;
