//! The graph for programs: JSON and DOT, annotated with costs.

use djinn_srg::cost::{self, Cost, Work};
use djinn_srg::{Graph, Lifecycle, NodeId};
use djinn_vmu::{Bound, Launch, Machine, Program};
use serde::Serialize;
use std::fmt::Write;

#[derive(Serialize)]
pub(super) struct Export<'a> {
    #[serde(flatten)]
    graph: &'a Graph,
    work: &'a Work,
    machine: &'a Machine,
    annotations: Vec<Annotation>,
    launches: &'a [Launch],
    total: Cost,
}

#[derive(Serialize)]
struct Annotation {
    #[serde(flatten)]
    cost: Cost,
    bound: Bound,
    seconds: f64,
}

/// The graph as one object: `values`, `nodes`, and for each node its cost in a step of `work` on `machine`
/// (`annotations`); and the launches of `program`.
pub(super) fn json<'a>(
    graph: &'a Graph,
    program: &'a Program,
    work: &'a Work,
    machine: &'a Machine,
) -> Export<'a> {
    let annotate = |i| {
        let (cost, busy) = (cost::node(graph, NodeId(i), work), machine.busy(graph, NodeId(i), work));
        Annotation { cost, bound: busy.bound(), seconds: machine.seconds(&busy) }
    };
    let annotations = (0..graph.nodes.len() as u32).map(annotate).collect();
    Export { graph, work, machine, annotations, launches: &program.launches, total: cost::pass(graph, work) }
}

/// The graph in Graphviz's DOT: one box for each node (compute-bound ones filled), weights as their labels, blocks as
/// clusters.
pub(super) fn dot(graph: &Graph, work: &Work, machine: &Machine) -> String {
    let mut dot = String::from("digraph srg {\n  rankdir=TB;\n  node [shape=box, fontname=monospace];\n");
    let mut layers: Vec<_> = graph.nodes.iter().map(|n| n.layer).collect();
    layers.dedup();
    for layer in layers {
        if let Some(layer) = layer {
            let _ = writeln!(dot, "  subgraph cluster_{layer} {{\n    label=\"block {layer}\";");
        }
        for (i, node) in graph.nodes.iter().enumerate().filter(|(_, n)| n.layer == layer) {
            let id = NodeId(i as u32);
            let cost = cost::node(graph, id, work);
            let style = match machine.busy(graph, id, work).bound() {
                Bound::Compute => ", style=filled, fillcolor=lightsalmon",
                Bound::Memory => "",
            };
            let label = format!("{}\\n{}", escape(&node.name), node.op.name());
            let (flops, bytes) = (cost.flops, cost.bytes());
            let _ = writeln!(dot, "    n{i} [label=\"{label}\\n{flops:.3e} FLOP, {bytes:.3e} B\"{style}];");
        }
        if layer.is_some() {
            dot.push_str("  }\n");
        }
    }
    edges(graph, &mut dot);
    dot.push_str("}\n");
    dot
}

/// An edge from the latest writer of each operand; dashed through the KV cache.
fn edges(graph: &Graph, dot: &mut String) {
    let mut writer = vec![None; graph.values.len()];
    for (i, node) in graph.nodes.iter().enumerate() {
        for &input in &node.inputs {
            if let Some(from) = writer[input.0 as usize] {
                let data = graph.value(input).lifecycle == Lifecycle::Data;
                let style = if data { " [style=dashed]" } else { "" };
                let _ = writeln!(dot, "  n{from} -> n{i}{style};");
            }
        }
        for output in &node.outputs {
            writer[output.0 as usize] = Some(i);
        }
    }
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
