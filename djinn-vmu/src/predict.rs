//! Predicts the time of a pass over a plan, by playing its copies and operations on a clock.

#[cfg(test)]
mod tests;

use crate::{Chunk, MemoryPlan};
use djinn_ringbuf::BlockerPass;
use djinn_srg::cost::{self, Bound, Machine, Work};
use djinn_srg::{Graph, NodeId};
use serde::Serialize;

/// A predicted pass in steady state.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// Wall time of the pass.
    pub seconds: f64,
    /// Time in which the link is busy.
    pub copy_seconds: f64,
    /// Time in which operations run.
    pub compute_seconds: f64,
    /// What limits the pass.
    pub bottleneck: Bottleneck,
}

/// What a pass waits for most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bottleneck {
    /// Weights crossing from host to device.
    Link,
    /// Device memory.
    Memory,
    /// Arithmetic.
    Compute,
}

/// Predicts a pass that does `work` on `machine`. Passes follow one another; copies run ahead as far as the
/// ring allows, so the pass begins with a full ring, unless the plan has them wait until they are needed. Copies and
/// operations of experts count by how often a pass uses them, and the copies wait for their router.
pub fn predict(graph: &Graph, plan: &MemoryPlan, work: &Work, machine: &Machine) -> Prediction {
    let (slots, blocking) = (plan.placement.ring.slots(), plan.placement.blocking_copies);
    let steps = steps(graph, plan, work, machine);
    let copies = copies(plan, work);
    // When each router's choice was known, by its node.
    let mut known = vec![0.0f64; graph.nodes.len()];
    // A slot is copied as soon as the link is free and its blocker's use is done.
    let (mut clock, mut link) = (0.0f64, 0.0f64);
    let (mut used, mut previous) = (vec![0.0; slots.len()], vec![0.0; slots.len()]);
    let mut start = 0.0;
    for pass in 0..3 {
        start = clock;
        for step in &steps {
            if let Some(slot) = step.slot.filter(|_| step.first) {
                let blocker = slots[slot].blocker;
                let free = match blocker.pass {
                    BlockerPass::Same => used[blocker.index],
                    BlockerPass::Previous if pass > 0 => previous[blocker.index],
                    BlockerPass::Previous => 0.0,
                };
                let free = if blocking { clock } else { free };
                let Copy { bytes, group } = copies[slot];
                let free = group.map_or(free, |group| free.max(known[group.0 as usize]));
                link = link.max(free) + bytes / machine.link;
                clock = clock.max(link);
            }
            clock += step.seconds + step.join;
            known[step.node.0 as usize] = clock;
            if let Some(slot) = step.slot {
                used[slot] = clock;
            }
        }
        std::mem::swap(&mut used, &mut previous);
    }
    let compute_seconds: f64 = steps.iter().map(|s| s.seconds + s.join).sum();
    // The sum of none is -0, which would be shown.
    let copy_seconds = copies.iter().fold(0.0, |sum, copy| sum + copy.bytes) / machine.link;
    let bottleneck = match cost::pass(graph, work).bound(machine) {
        _ if copy_seconds > compute_seconds => Bottleneck::Link,
        Bound::Compute => Bottleneck::Compute,
        Bound::Memory => Bottleneck::Memory,
    };
    Prediction { seconds: clock - start, copy_seconds, compute_seconds, bottleneck }
}

/// A copy to one of the ring's slots.
#[derive(Clone, Copy)]
struct Copy {
    /// Moved on average.
    bytes: f64,
    /// The router that it waits for.
    group: Option<NodeId>,
}

fn copies(plan: &MemoryPlan, work: &Work) -> Vec<Copy> {
    let chunks = plan.placement.streamed().map(|id| &plan.placement.chunks[id.0 as usize]);
    let copy = |chunk: &Chunk| {
        let bytes = chunk.expected_bytes(work.rows.rows);
        Copy { bytes, group: chunk.condition.map(|condition| condition.group) }
    };
    chunks.map(copy).collect()
}

/// A launch, with the ring slot that it reads.
struct Step {
    node: NodeId,
    slot: Option<usize>,
    /// Whether it is the first launch to read the slot in this pass.
    first: bool,
    seconds: f64,
    /// Joining a chunk that straddles the ring's wrap: the first launch to read it waits for two copies.
    join: f64,
}

fn steps(graph: &Graph, plan: &MemoryPlan, work: &Work, machine: &Machine) -> Vec<Step> {
    let placement = &plan.placement;
    let mut tiles = placement.tiles.iter().peekable();
    let (mut steps, mut current) = (Vec::new(), None);
    for index in 0..graph.nodes.len() {
        let node = NodeId(index as u32);
        let seconds = cost::node(graph, node, work).seconds(machine);
        if tiles.peek().is_none_or(|t| t.tile.node != node) {
            steps.push(Step { node, slot: None, first: false, seconds, join: 0.0 });
            continue;
        }
        let rows = graph.value(graph.node(node).weights[0]).matrix()[0] as f64;
        while let Some(placed) = tiles.next_if(|t| t.tile.node == node) {
            let share = (placed.tile.rows.end - placed.tile.rows.start) as f64 / rows;
            let slot = placement.slots[placed.chunk.0 as usize].map(|s| s as usize);
            let first = current != Some(placed.chunk);
            let join = slot.filter(|_| first).map_or(0.0, |slot| join_seconds(plan, slot, machine));
            steps.push(Step { node, slot, first, seconds: seconds * share, join });
            current = Some(placed.chunk);
        }
    }
    steps
}

/// Time in which the parts of a slot are read and written once more, if there are two.
fn join_seconds(plan: &MemoryPlan, slot: usize, machine: &Machine) -> f64 {
    let ring = &plan.placement.ring;
    if ring.parts(slot)[1].is_empty() {
        return 0.0;
    }
    2.0 * ring.slots()[slot].len as f64 / machine.memory + 2.0 * machine.launch
}
