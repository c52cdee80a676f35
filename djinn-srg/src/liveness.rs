//! Lifetimes of activations, and the stack segment's offsets that follow from them.

use crate::{Graph, Lifecycle, Op, Rows, ValueId};
use std::ops::RangeInclusive;

#[cfg(test)]
mod tests;

/// Every offset is a multiple of this.
const ALIGN: u64 = 256;

/// Offsets of all stack values in one arena, for steps of up to a given size. Smaller steps use the same
/// offsets. Two values share bytes only if no node needs both. A sum takes the place of the older of the terms that
/// nothing reads later: a residual stream stays where it is.
///
/// Greedy by size (Pisarchyk & Lee 2020, "Efficient memory management for deep neural net inference"):
/// the largest value first, each at the lowest offset that is free during its whole life. The step's inputs
/// come before all others, side by side and for the whole step, so that one copy uploads them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackPlan {
    /// Sizes that the plan is made for.
    pub rows: Rows,
    /// Bytes of the arena.
    pub bytes: u64,
    /// Leading bytes of the arena that hold the step's inputs.
    pub input_bytes: u64,
    /// Offset of each value, by [`ValueId`]; `None` for text and data.
    offsets: Vec<Option<u64>>,
}

impl StackPlan {
    /// Plans the stack of `graph` for steps of up to `rows`.
    pub fn new(graph: &Graph, rows: Rows) -> Self {
        let mut lives = lifetimes(graph);
        let inputs = inputs(graph);
        let places = places(graph, &mut lives);
        let mut order: Vec<ValueId> = lives.iter().flatten().map(|&(id, _)| id).collect();
        order.retain(|id| !inputs.contains(id));
        order.sort_by_key(|&id| (std::cmp::Reverse(graph.value(id).bytes(rows)), id));
        let mut plan = StackPlan { rows, bytes: 0, input_bytes: 0, offsets: vec![None; graph.values.len()] };
        for id in inputs {
            plan.offsets[id.0 as usize] = Some(plan.input_bytes);
            plan.input_bytes += graph.value(id).bytes(rows).next_multiple_of(ALIGN);
        }
        plan.bytes = plan.input_bytes;
        // Bytes and lives of the values placed so far, by offset.
        let mut placed: Vec<(u64, u64, RangeInclusive<u32>)> = Vec::new();
        for id in order {
            let (_, life) = lives[id.0 as usize].clone().expect("only stack values are ordered");
            let len = graph.value(id).bytes(rows).next_multiple_of(ALIGN);
            let mut offset = plan.input_bytes;
            for (start, end, other) in &placed {
                let meet = life.start() <= other.end() && other.start() <= life.end();
                if meet && *start < offset + len {
                    offset = offset.max(*end);
                } else if meet && *start >= offset + len {
                    break;
                }
            }
            plan.offsets[id.0 as usize] = Some(offset);
            plan.bytes = plan.bytes.max(offset + len);
            let at = placed.partition_point(|p| p.0 <= offset);
            placed.insert(at, (offset, offset + len, life));
        }
        plan.offsets = places.iter().map(|first| plan.offsets[first.0 as usize]).collect();
        plan
    }

    /// Offset of a stack value in the arena, in bytes.
    ///
    /// # Panics
    /// If the value is no stack value.
    pub fn offset(&self, id: ValueId) -> u64 {
        self.offsets[id.0 as usize].unwrap_or_else(|| panic!("value {} is not on the stack", id.0))
    }
}

/// The first value at the place of each value: another one only for sums that take the place of a term. The first then
/// lives as long as its sums, which are left out of `lives`.
fn places(graph: &Graph, lives: &mut [Option<(ValueId, RangeInclusive<u32>)>]) -> Vec<ValueId> {
    let mut places: Vec<ValueId> = graph.ids().map(|(id, _)| id).collect();
    for (at, node) in graph.nodes.iter().enumerate().filter(|(_, node)| node.op == Op::Add) {
        let sum = node.outputs[0];
        let ending = |term: &ValueId| {
            let first = places[term.0 as usize];
            let life = lives[first.0 as usize].as_ref().map(|(_, life)| life)?;
            let fits = *life.end() == at as u32 && graph.value(first).shape == graph.value(sum).shape;
            fits.then_some((*life.start(), first))
        };
        let Some((start, first)) = node.inputs.iter().filter_map(ending).min() else { continue };
        let Some((_, life)) = lives[sum.0 as usize].take() else { continue };
        lives[first.0 as usize] = Some((first, start..=*life.end()));
        places[sum.0 as usize] = first;
    }
    places
}

fn inputs(graph: &Graph) -> [ValueId; 4] {
    [graph.tokens, graph.positions, graph.row_seq, graph.logit_rows]
}

/// First and last node that touches each stack value. Step inputs live throughout, the logits to the end.
fn lifetimes(graph: &Graph) -> Vec<Option<(ValueId, RangeInclusive<u32>)>> {
    let mut lives: Vec<Option<RangeInclusive<u32>>> = vec![None; graph.values.len()];
    let last = graph.nodes.len() as u32;
    for input in inputs(graph) {
        lives[input.0 as usize] = Some(0..=last);
    }
    for (at, node) in graph.nodes.iter().enumerate() {
        for id in node.inputs.iter().copied().chain(node.outputs.iter().copied()) {
            let life = &mut lives[id.0 as usize];
            let start = life.as_ref().map_or(at as u32, |l| *l.start());
            let end = life.as_ref().map_or(0, |l| *l.end());
            *life = Some(start..=end.max(at as u32));
        }
    }
    if let Some(life) = lives.get_mut(graph.logits.0 as usize).and_then(Option::as_mut) {
        *life = *life.start()..=last;
    }
    let with_ids = graph.ids().zip(lives);
    with_ids
        .map(|((id, value), life)| match value.lifecycle {
            Lifecycle::Stack => life.map(|life| (id, life)),
            _ => None,
        })
        .collect()
}
