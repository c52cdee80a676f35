//! The graph for people and programs: JSON and DOT, annotated with costs.

use crate::cost::{self, Bound, Cost, Machine, Work};
use crate::{Graph, Lifecycle, NodeId, Owner};
use serde::Serialize;
use std::fmt::Write;

#[derive(Serialize)]
struct Export<'a> {
    #[serde(flatten)]
    graph: &'a Graph,
    work: &'a Work,
    machine: &'a Machine,
    owners: Vec<Owner>,
    annotations: Vec<Annotation>,
    total: Cost,
}

#[derive(Serialize)]
struct Annotation {
    #[serde(flatten)]
    cost: Cost,
    bound: Bound,
    seconds: f64,
}

impl Graph {
    /// The graph as one JSON object: `values`, `nodes`, and for each node its cost in a step of `work` on
    /// `machine` (`annotations`).
    pub fn to_json(&self, work: &Work, machine: &Machine) -> serde_json::Value {
        let annotate = |i| {
            let cost = cost::node(self, NodeId(i as u32), work);
            Annotation { cost, bound: cost.bound(machine), seconds: cost.seconds(machine) }
        };
        let export = Export {
            graph: self,
            work,
            machine,
            owners: self.values.iter().map(|v| v.owner()).collect(),
            annotations: (0..self.nodes.len()).map(annotate).collect(),
            total: cost::pass(self, work),
        };
        serde_json::to_value(export).expect("names and numbers serialise")
    }

    /// The graph in Graphviz's DOT: one box for each node (compute-bound ones filled), weights as their
    /// labels, blocks as clusters.
    pub fn to_dot(&self, work: &Work, machine: &Machine) -> String {
        let mut dot = String::from("digraph srg {\n  rankdir=TB;\n  node [shape=box, fontname=monospace];\n");
        let mut layers: Vec<_> = self.nodes.iter().map(|n| n.layer).collect();
        layers.dedup();
        for layer in layers {
            if let Some(layer) = layer {
                let _ = writeln!(dot, "  subgraph cluster_{layer} {{\n    label=\"block {layer}\";");
            }
            for (i, node) in self.nodes.iter().enumerate().filter(|(_, n)| n.layer == layer) {
                let cost = cost::node(self, NodeId(i as u32), work);
                let style = match cost.bound(machine) {
                    Bound::Compute => ", style=filled, fillcolor=lightsalmon",
                    Bound::Memory => "",
                };
                let label = format!("{}\\n{}", escape(&node.name), node.op.name());
                let _ = writeln!(
                    dot,
                    "    n{i} [label=\"{label}\\n{:.3e} FLOP, {:.3e} B\"{style}];",
                    cost.flops,
                    cost.bytes()
                );
            }
            if layer.is_some() {
                dot.push_str("  }\n");
            }
        }
        self.edges(&mut dot);
        dot.push_str("}\n");
        dot
    }

    /// An edge from the latest writer of each operand; dashed through the KV cache.
    fn edges(&self, dot: &mut String) {
        let mut writer = vec![None; self.values.len()];
        for (i, node) in self.nodes.iter().enumerate() {
            for &input in &node.inputs {
                if let Some(from) = writer[input.0 as usize] {
                    let data = self.value(input).lifecycle == Lifecycle::Data;
                    let style = if data { " [style=dashed]" } else { "" };
                    let _ = writeln!(dot, "  n{from} -> n{i}{style};");
                }
            }
            for output in node.outputs() {
                writer[output.0 as usize] = Some(i);
            }
        }
    }
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, cost::tests::h200, graph::tests::decoder};

    #[test]
    fn json_and_dot_name_every_node() {
        let graph = decoder(2, 2, 8, 16, 24, 30);
        let (work, machine) = (Work::decode(1, 8, DType::F16), h200());
        let json = graph.to_json(&work, &machine);
        assert_eq!(json["nodes"].as_array().unwrap().len(), graph.nodes.len());
        assert_eq!(json["annotations"].as_array().unwrap().len(), graph.nodes.len());
        assert_eq!(json["annotations"][0]["bound"], "memory");
        let dot = graph.to_dot(&work, &machine);
        assert!(graph.nodes.iter().all(|n| dot.contains(&n.name)));
        assert_eq!(dot.matches("subgraph").count(), 2);
        assert!(dot.contains("style=dashed"));
    }
}
