//! `djinn srg`: the graph with its annotations.

use crate::args::{Phase, SrgArgs};
use crate::{loaded, output, profile, size};
use anyhow::{Result, ensure};
use djinn_srg::cost::{self, Bound, Cost, Machine, Work};
use djinn_srg::{Graph, Node, NodeId};

pub(super) fn run(args: &SrgArgs, quiet: bool) -> Result<()> {
    ensure!(
        args.phase == Phase::Decode || args.work.batch == 1,
        "--batch is for decoding; a prefill is of one sequence: drop it, or take --phase decode"
    );
    let target = profile::choose(&args.work)?;
    let model = loaded::open(&args.model, args.dtype, quiet)?;
    let kv_dtype = args.kv_dtype.unwrap_or_else(|| target.kv_dtype(&model));
    let (machine, tokens) = (target.machine, u64::from(args.work.prompt_len));
    let work = match args.phase {
        Phase::Prefill => Work::prefill(tokens, kv_dtype),
        Phase::Decode => Work::decode(args.work.batch as u64, tokens, kv_dtype),
    };
    if args.json {
        return output::json(&model.graph.to_json(&work, &machine));
    }
    if args.dot {
        return output::line(model.graph.to_dot(&work, &machine).trim_end());
    }
    let phase = match args.phase {
        Phase::Prefill => format!("prefill of {tokens} tokens"),
        Phase::Decode => format!("decode of {} x 1 token at {tokens} tokens", args.work.batch),
    };
    output::line(&table(&model.graph, &work, &machine, &phase))
}

/// A run of nodes of the same block, or of none.
struct Group {
    layer: Option<u32>,
    nodes: std::ops::Range<usize>,
}

fn groups(graph: &Graph) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (i, node) in graph.nodes.iter().enumerate() {
        match groups.last_mut() {
            Some(last) if last.layer == node.layer => last.nodes.end = i + 1,
            _ => groups.push(Group { layer: node.layer, nodes: i..i + 1 }),
        }
    }
    groups
}

/// Columns of the table.
struct Table<'a> {
    machine: &'a Machine,
    /// Widths of the first two.
    name: usize,
    op: usize,
}

impl Table<'_> {
    fn head(&self) -> String {
        let Table { name, op, .. } = *self;
        format!(
            "{:<name$} {:<op$} {:>10} {:>11} {:>11} {:>11} {:>13}  bound",
            "node", "op", "FLOP", "text", "data", "stack", "us"
        )
    }

    fn row(&self, node: &str, kind: &str, cost: &Cost, seconds: f64) -> String {
        let Table { name, op, machine } = *self;
        let bytes = |bytes: f64| size::human(bytes as u64);
        let bound = match cost.bound(machine) {
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

fn table(graph: &Graph, work: &Work, machine: &Machine, phase: &str) -> String {
    let groups = groups(graph);
    let cost = |i: usize| cost::node(graph, NodeId(i as u32), work);
    let kinds = |group: &Group| -> Vec<_> {
        group.nodes.clone().map(|i| (graph.nodes[i].op.name(), cost(i))).collect()
    };
    let widest = |width: fn(&Node) -> usize| graph.nodes.iter().map(width).max().unwrap_or(0);
    let table = Table { machine, name: widest(|n| n.name.len()), op: widest(|n| n.op.name().len()) };
    let mut lines = vec![
        format!(
            "{}: {} nodes in {} blocks, {} parameters, {} of weights",
            graph.model,
            graph.nodes.len(),
            graph.kv.layers,
            output::count(graph.parameters()),
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
            let entry = &graph.nodes[node];
            lines.push(table.row(&entry.name, entry.op.name(), &cost(node), cost(node).seconds(machine)));
        }
        i += alike;
    }
    let seconds = (0..graph.nodes.len()).map(|i| cost(i).seconds(machine)).sum();
    lines.push(table.row("all", "", &cost::pass(graph, work), seconds));
    lines.join("\n")
}
