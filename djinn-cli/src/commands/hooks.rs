//! `djinn hooks`: a model's hook points, as a table or JSON.

use crate::args::HooksArgs;
use crate::{loaded, output};
use anyhow::Result;
use djinn_engine::debug::AttentionPattern;
use djinn_models::OpenOptions;
use djinn_srg::{Dim, Graph, Hook};
use serde_json::{Value, json};

pub(super) fn run(args: &HooksArgs, quiet: bool) -> Result<()> {
    let graph = loaded::open(&args.model, &OpenOptions::default(), quiet)?.graph;
    match args.json {
        true => output::json(&json!({ "model": graph.model, "hooks": points(&graph) })),
        false => output::line(&table(&graph)),
    }
}

/// The shape of a hook's values: the kind of its rows, and its columns.
fn shape(graph: &Graph, hook: &Hook) -> (&'static str, u64) {
    let rows = match graph.value(hook.value).shape.first() {
        Some(Dim::LogitRows) => "tokens whose logits are wanted",
        _ => "tokens",
    };
    (rows, hook.columns.1)
}

fn points(graph: &Graph) -> Vec<Value> {
    let point = |names: Vec<&Hook>| {
        let aliases: Vec<&str> = names[1..].iter().map(|hook| hook.name.as_str()).collect();
        json!({
            "name": names[0].name,
            "aliases": aliases,
            "shape": shape(graph, names[0]),
            "dtype": "f32",
            "writable": true,
            "paused_only": false,
            "computed_on": "device",
        })
    };
    let pattern = |pattern: AttentionPattern| {
        json!({
            "name": pattern.name(),
            "aliases": [],
            "shape": (pattern.heads, "tokens", "keys"),
            "dtype": "f32",
            "writable": false,
            "paused_only": true,
            "computed_on": "host",
        })
    };
    graph.hook_points().into_iter().map(point).chain(AttentionPattern::all(graph).map(pattern)).collect()
}

/// A line for each point: names, then columns and rows. Attention patterns come last.
fn table(graph: &Graph) -> String {
    let line = |names: Vec<&Hook>| {
        let (rows, columns) = shape(graph, names[0]);
        let all: Vec<&str> = names.iter().map(|hook| hook.name.as_str()).collect();
        format!("{}  [{rows}, {columns}] f32", all.join(", "))
    };
    let pattern = |pattern: AttentionPattern| {
        let (name, heads) = (pattern.name(), pattern.heads);
        format!("{name}  [{heads}, tokens, keys] f32, read-only, of paused sessions, computed on the host")
    };
    let lines = graph.hook_points().into_iter().map(line);
    lines.chain(AttentionPattern::all(graph).map(pattern)).collect::<Vec<_>>().join("\n")
}
