//! Predicts the time of a pass by simulating its program's copies and launches.

#[cfg(test)]
mod tests;

use crate::program::{Detail, Launch, Program};
use crate::{Bound, Busy, ChunkId, CpuRouter, Machine, MemoryPlan, Placement};
use djinn_ringbuf::BlockerPass;
use djinn_srg::cost::Work;
use djinn_srg::{Graph, NodeId, Op};
use serde::Serialize;
use std::collections::BTreeMap;

/// A predicted pass in steady state.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// Wall time of the pass.
    pub seconds: f64,
    /// Time in which the link is busy.
    pub copy_seconds: f64,
    /// Time in which the device computes.
    pub compute_seconds: f64,
    /// Time in which the CPU computes with weights in host memory.
    pub cpu_seconds: f64,
    /// What limits the pass.
    pub bottleneck: Bottleneck,
}

/// What a pass waits for most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bottleneck {
    /// Copies of weights from host to device.
    Link,
    /// Device memory.
    Memory,
    /// Arithmetic.
    Compute,
    /// Products on the CPU.
    Cpu,
}

/// The speed of experts' copies, in that of the link: kernels make them, of the sections that some row chose. Copies of Mixtral
/// and Qwen3 reach 0.79 to 0.92 of it on an H200 machine (`copy_gbps` in `results/exp2-*-cpu-share-h200.json`).
const EXPERT_COPIES: f64 = 0.9;

/// Predicts a pass that does `work` on `machine`. Passes follow one another. Copies run ahead as far as the ring
/// allows, so a pass begins with a full ring, unless the plan delays copies until they are needed. Copies and
/// operations of experts are weighted by how often a pass uses them, and the copies wait for their router. The CPU is taken to
/// read weights as fast as the link does.
pub fn predict(graph: &Graph, plan: &MemoryPlan, work: &Work, machine: &Machine) -> Prediction {
    let placement = &plan.placement;
    let slots = placement.ring.slots();
    let slot = |chunk: ChunkId| placement.slots[chunk.0 as usize].expect("it is streamed") as usize;
    let copying = |chunk: ChunkId| {
        let of_experts = placement.chunks[chunk.0 as usize].router().is_some();
        let speed = machine.link * if of_experts { EXPERT_COPIES } else { 1.0 };
        placement.expected_copy(chunk, work.rows.rows) / speed
    };
    // By the sum of a router's experts: the router's node, and how long the CPU computes with some of them.
    let routers = placement.cpu_routers.iter().filter(|_| work.rows.rows <= Placement::CPU_ROWS);
    let computing =
        |router: &CpuRouter| router.expected_bytes(work.rows.rows) / machine.link + machine.launch;
    let experts: BTreeMap<NodeId, (NodeId, f64)> =
        routers.map(|router| (router.combine, (router.group, computing(router)))).collect();
    let program = Program::new(graph, plan, Detail::Fused);
    let timed = |launch| (launch, seconds(graph, plan, launch, work, machine));
    let launches: Vec<(&Launch, f64)> = program.launches.iter().map(timed).collect();
    // By router node: when its choice was known.
    let mut known = vec![0.0f64; graph.nodes.len()];
    // A slot is copied as soon as the link is free and its blocker's use is done.
    let (mut clock, mut link) = (0.0f64, 0.0f64);
    let (mut used, mut previous) = (vec![0.0; slots.len()], vec![0.0; slots.len()]);
    let mut start = 0.0;
    for pass in 0..3 {
        start = clock;
        for &(launch, seconds) in &launches {
            if let Some(chunk) = launch.acquire {
                let blocker = slots[slot(chunk)].blocker;
                let free = match blocker.pass {
                    _ if placement.blocking_copies => clock,
                    BlockerPass::Same => used[blocker.index],
                    BlockerPass::Previous if pass > 0 => previous[blocker.index],
                    BlockerPass::Previous => 0.0,
                };
                let router = placement.chunks[chunk.0 as usize].router();
                let free = router.map_or(free, |router| free.max(known[router.0 as usize]));
                link = link.max(free) + copying(chunk);
                clock = clock.max(link);
            }
            if let Some((group, seconds)) = experts.get(&launch.node) {
                clock = clock.max(known[group.0 as usize] + seconds);
            }
            clock += seconds;
            launch.nodes().for_each(|node| known[node.0 as usize] = clock);
            if let Some(chunk) = launch.release {
                used[slot(chunk)] = clock;
            }
        }
        std::mem::swap(&mut used, &mut previous);
    }
    let on_cpu = |launch: &Launch| cpu_seconds(graph, plan, launch, work, machine);
    // An empty sum is -0, which would be printed.
    let total = |seconds: &mut dyn Iterator<Item = f64>| seconds.fold(0.0, |sum, seconds| sum + seconds);
    let device = launches.iter().filter(|(launch, _)| on_cpu(launch).is_none());
    let compute_seconds = total(&mut device.map(|(_, seconds)| *seconds));
    let copy_seconds = total(&mut placement.streamed().map(copying));
    let products = program.launches.iter().filter_map(on_cpu);
    let cpu_seconds = total(&mut products.chain(experts.values().map(|(_, seconds)| *seconds)));
    let nodes = (0..graph.nodes.len()).map(|i| NodeId(i as u32));
    let bottleneck = match nodes.map(|node| machine.busy(graph, node, work)).sum::<Busy>().bound() {
        _ if cpu_seconds > copy_seconds.max(compute_seconds) => Bottleneck::Cpu,
        _ if copy_seconds > compute_seconds => Bottleneck::Link,
        Bound::Compute => Bottleneck::Compute,
        Bound::Memory => Bottleneck::Memory,
    };
    Prediction { seconds: clock - start, copy_seconds, compute_seconds, cpu_seconds, bottleneck }
}

/// Time of a launch, as its share of its nodes' costs. Before the first use of a chunk that crosses the ring's end,
/// its parts are joined, which reads and writes it once more.
fn seconds(graph: &Graph, plan: &MemoryPlan, launch: &Launch, work: &Work, machine: &Machine) -> f64 {
    let placement = &plan.placement;
    if let Some(seconds) = cpu_seconds(graph, plan, launch, work, machine) {
        return seconds;
    }
    let whole: f64 = launch.nodes().map(|node| machine.seconds(&machine.busy(graph, node, work))).sum();
    let share = match &placement.tiles[launch.tiles.clone()] {
        [] => 1.0,
        [first, ..] => {
            let last = &placement.tiles[launch.tiles.end - 1];
            let rows = graph.value(first.tile.parts[0].value).matrix()[0];
            (last.tile.rows.end - first.tile.rows.start) as f64 / rows as f64
        }
    };
    let join = match launch.acquire.filter(|&chunk| placement.straddles(chunk)) {
        Some(chunk) => {
            let bytes = placement.chunks[chunk.0 as usize].bytes;
            2.0 * bytes as f64 / machine.memory + 2.0 * machine.launch
        }
        None => 0.0,
    };
    whole * share + join
}

/// Time of a launch if the CPU computes it.
fn cpu_seconds(
    graph: &Graph,
    plan: &MemoryPlan,
    launch: &Launch,
    work: &Work,
    machine: &Machine,
) -> Option<f64> {
    let placement = &plan.placement;
    let tiles = &placement.tiles[launch.tiles.clone()];
    let is_on_cpu = tiles.first().is_some_and(|first| placement.is_on_cpu(first.chunk, work.rows.rows));
    let is_product = tiles.first().is_some_and(|first| graph.node(first.tile.node).op == Op::Linear);
    let bytes: u64 = tiles.iter().flat_map(|placed| &placed.tile.parts).map(|part| part.bytes).sum();
    (is_on_cpu && is_product).then(|| bytes as f64 / machine.link + machine.launch)
}
