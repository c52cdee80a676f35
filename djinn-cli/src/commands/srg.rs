//! `djinn srg`: the graph with its annotations.

mod export;

use crate::args::{CostPhase, SrgArgs};
use crate::{loaded, output, profile, size};
use anyhow::{Result, ensure};
use djinn_engine::Options;
use djinn_host::Setup;
use djinn_srg::cost::{self, Cost, Work};
use djinn_srg::{Graph, Node, NodeId};
use djinn_vmu::{Bound, Detail, Machine, Program};

pub(super) fn run(args: &SrgArgs, quiet: bool) -> Result<()> {
    ensure!(
        args.phase == CostPhase::Decode || args.work.batch == 1,
        "--batch is for decoding; a prefill is of one sequence: drop it, or take --phase decode"
    );
    let target = profile::choose(&args.work)?;
    let model = loaded::open(
        &args.model,
        &target.open_options(&Setup { dtype: args.dtype, ..Setup::default() }),
        quiet,
    )?;
    let kv_dtype = args.kv_dtype.unwrap_or_else(|| target.kv_dtype(&model));
    let (machine, tokens) = (target.machine, u64::from(args.work.prompt_len));
    let work = match args.phase {
        CostPhase::Prefill => Work::prefill(tokens, kv_dtype),
        CostPhase::Decode => Work::decode(args.work.batch as u64, tokens, kv_dtype),
    };
    if args.json {
        // All weights resident: where they are changes nothing but the chunks.
        let plan = Options { context: 1, ..Options::default() }.plan(&model.graph, 0)?;
        let program = Program::new(&model.graph, &plan, Detail::Fused);
        return output::json(&export::json(&model.graph, &program, &work, &machine));
    }
    if args.dot {
        return output::line(export::dot(&model.graph, &work, &machine).trim_end());
    }
    let phase = match args.phase {
        CostPhase::Prefill => format!("prefill of {tokens} tokens"),
        CostPhase::Decode => format!("decode of {} x 1 token at {tokens} tokens", args.work.batch),
    };
    output::line(&table(&model.graph, &work, &machine, &phase))
}

/// A run of nodes of the same block, or of none.
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
        let bound = match machine.bound(cost) {
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
    let kinds = |group: &Block| -> Vec<_> {
        group.nodes.clone().map(|i| (graph.nodes[i].op.name(), cost(i))).collect()
    };
    let widest = |width: fn(&Node) -> usize| graph.nodes.iter().map(width).max().unwrap_or(0);
    let table = Table { machine, name: widest(|n| n.name.len()), op: widest(|n| n.op.name().len()) };
    let mut lines = vec![
        format!(
            "{}: {} nodes in {} blocks, {} parameters, {} of weights",
            graph.model,
            graph.nodes.len(),
            graph.nodes.iter().filter_map(|n| n.layer).max().map_or(0, |last| last + 1),
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
            lines.push(table.row(&entry.name, entry.op.name(), &cost(node), machine.seconds(&cost(node))));
        }
        i += alike;
    }
    let seconds = (0..graph.nodes.len()).map(|i| machine.seconds(&cost(i))).sum();
    lines.push(table.row("all", "", &cost::pass(graph, work), seconds));
    lines.join("\n")
}
