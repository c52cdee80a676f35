//! A graph as text.

use super::count;
use djinn_srg::cost::{self, Cost, Work};
use djinn_srg::{Graph, Node, NodeId};
use djinn_vmu::{Bound, Busy, Machine, size};

/// A run of nodes of the same block, or of no block.
struct Block {
    layer: Option<u32>,
    nodes: std::ops::Range<usize>,
}

fn groups(graph: &Graph) -> Vec<Block> {
    let mut groups: Vec<Block> = Vec::new();
    for (i, node) in graph.nodes.iter().enumerate() {
        match groups.last_mut() {
            Some(last) if last.layer == node.layer => last.nodes.end = i + 1,
            _ => groups.push(Block { layer: node.layer, nodes: i..i + 1 }),
        }
    }
    groups
}

/// Columns of the table.
struct Table {
    /// Widths of the first two.
    name: usize,
    op: usize,
}

impl Table {
    fn head(&self) -> String {
        let Table { name, op } = *self;
        format!(
            "{:<name$} {:<op$} {:>10} {:>11} {:>11} {:>11} {:>13}  bound",
            "node", "op", "FLOP", "text", "data", "stack", "us"
        )
    }

    fn row(&self, node: &str, kind: &str, cost: &Cost, busy: &Busy, seconds: f64) -> String {
        let Table { name, op } = *self;
        let bytes = |bytes: f64| size::human(bytes as u64);
        let bound = match busy.bound() {
            Bound::Compute => "compute",
            Bound::Memory => "memory",
        };
        format!(
            "{node:<name$} {kind:<op$} {:>10.3e} {:>11} {:>11} {:>11} {:>13.2}  {bound}",
            cost.flops,
            bytes(cost.text_bytes),
            bytes(cost.data_bytes),
            bytes(cost.stack_bytes),
            seconds * 1e6
        )
    }
}

/// The graph as text: a row for each node with its costs; equal blocks are shown once. `phase` names the costs' phase.
pub(super) fn table(graph: &Graph, work: &Work, machine: &Machine, phase: &str) -> String {
    let groups = groups(graph);
    let cost = |i: usize| cost::node(graph, NodeId(i as u32), work);
    let busy = |i: usize| machine.busy(graph, NodeId(i as u32), work);
    let kinds = |group: &Block| -> Vec<_> {
        group.nodes.clone().map(|i| (graph.nodes[i].op.name(), cost(i))).collect()
    };
    let widest = |width: fn(&Node) -> usize| graph.nodes.iter().map(width).max().unwrap_or(0);
    let table = Table { name: widest(|n| n.name.len()), op: widest(|n| n.op.name().len()) };
    let mut lines = vec![
        format!(
            "{}: {} nodes in {} blocks, {} parameters, {} of weights",
            graph.model,
            graph.nodes.len(),
            graph.nodes.iter().filter_map(|n| n.layer).max().map_or(0, |last| last + 1),
            count(graph.parameters()),
            size::human(graph.text_bytes())
        ),
        format!("{phase}, on {}", machine.name),
        table.head(),
    ];
    let mut i = 0;
    while i < groups.len() {
        let first = &groups[i];
        let alike = groups[i..].iter().take_while(|g| kinds(g) == kinds(first)).count().max(1);
        if let (Some(layer), true) = (first.layer, alike > 1) {
            lines.push(format!("blocks {layer} to {}, {alike} alike:", layer as usize + alike - 1));
        }
        for node in first.nodes.clone() {
            let (entry, busy) = (&graph.nodes[node], busy(node));
            lines.push(table.row(&entry.name, entry.op.name(), &cost(node), &busy, machine.seconds(&busy)));
        }
        i += alike;
    }
    let all: Vec<Busy> = (0..graph.nodes.len()).map(busy).collect();
    let seconds = all.iter().map(|busy| machine.seconds(busy)).sum();
    lines.push(table.row("all", "", &cost::pass(graph, work), &all.into_iter().sum(), seconds));
    lines.join("\n")
}
