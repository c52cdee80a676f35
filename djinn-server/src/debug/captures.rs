//! `/v1/sessions/{id}/captures`: values that breakpoints have read. Each is returned once.

use super::engine::debug;
use super::tensors::{self, Lists, WithLists};
use crate::debug::hooks;
use crate::reply::{self, Answered};
use crate::request::Pairs;
use crate::sessions::Named;
use djinn_engine::debug::Captures;
use djinn_models::safetensors::TensorWriter;
use djinn_srg::Graph;
use serde::Serialize;
use serde_json::json;

/// Answers `GET /v1/sessions/{id}/captures`.
pub(crate) async fn take(named: Named, query: Pairs) -> Answered {
    let as_tensors = tensors::is_asked(&query)?;
    let graph = named.model.graph();
    let captures = debug(named.engine()?, graph, |debugger, id| debugger.take_captures(id)).await?;
    named.touch();
    named
        .model
        .work(move |model| {
            let read = AtHook::all(&captures, model.graph());
            match as_tensors {
                true => file(&read, captures.dropped),
                false => {
                    let shapes: Vec<_> = read.iter().map(|read| [read.tokens.len(), read.width()]).collect();
                    reply::ok(&Taken::new(&read, &shapes, captures.dropped))
                }
            }
        })
        .await
}

/// All values of one hook, in order of time.
struct AtHook {
    hook: String,
    layer: Option<u64>,
    /// The hook's name in its block.
    kind: Option<String>,
    positions: Vec<u64>,
    tokens: Vec<u32>,
    /// f32 `[tokens, width]`.
    values: Vec<f32>,
}

impl AtHook {
    /// In order of execution.
    fn all(captures: &Captures, graph: &Graph) -> Vec<Self> {
        let mut all: Vec<AtHook> = Vec::new();
        for capture in &captures.captures {
            let at = all.iter().position(|known| known.hook == capture.hook).unwrap_or_else(|| {
                let hook = graph.hook(&capture.hook);
                all.push(AtHook {
                    hook: capture.hook.clone(),
                    layer: hook.and_then(hooks::layer),
                    kind: hook.and_then(hooks::in_block).map(str::to_owned),
                    positions: Vec::new(),
                    tokens: Vec::new(),
                    values: Vec::new(),
                });
                all.len() - 1
            });
            all[at].positions.extend(&capture.positions);
            all[at].tokens.extend(&capture.tokens);
            all[at].values.extend(&capture.values);
        }
        all.sort_by_key(|read| graph.hook(&read.hook).map(|hook| hook.after));
        all
    }

    fn width(&self) -> usize {
        self.values.len() / self.tokens.len().max(1)
    }
}

/// The list of all that was read.
#[derive(Serialize)]
struct Taken<'a> {
    object: &'static str,
    data: Vec<WithLists<'a, 1>>,
    dropped: u64,
}

impl<'a> Taken<'a> {
    fn new(read: &'a [AtHook], shapes: &'a [[usize; 2]], dropped: u64) -> Self {
        let one = |(read, shape): (&'a AtHook, &'a [usize; 2])| {
            let about = json!({
                "hook": read.hook,
                "positions": read.positions,
                "token_ids": read.tokens,
                "shape": shape,
            });
            WithLists { about, lists: [("values", Lists::new(&read.values, shape))] }
        };
        Taken { object: "list", data: read.iter().zip(shapes).map(one).collect(), dropped }
    }
}

/// A tensor for each hook, and lists of tokens and positions. If hooks have read different tokens, these lists are
/// empty and each hook has its own. If all hooks are of one kind in different layers, `hidden_states` has them
/// together.
fn file(read: &[AtHook], dropped: u64) -> Answered {
    let mut file = TensorWriter::default();
    let same = read
        .windows(2)
        .all(|pair| (&pair[0].positions, &pair[0].tokens) == (&pair[1].positions, &pair[1].tokens));
    let lists = |prefix: &str, tokens: &[u32], positions: &[u64], file: &mut TensorWriter| {
        file.integers(&format!("{prefix}token_ids"), tokens.iter().map(|&token| i64::from(token)));
        // Positions are within a context, which is far below 2^63.
        file.integers(&format!("{prefix}positions"), positions.iter().map(|&position| position as i64));
    };
    match read.first().filter(|_| same) {
        Some(all) => lists("", &all.tokens, &all.positions, &mut file),
        None => lists("", &[], &[], &mut file),
    }
    for one in read {
        file.floats(&one.hook, &[one.tokens.len(), one.width()], &one.values);
        if !same {
            lists(&format!("{}.", one.hook), &one.tokens, &one.positions, &mut file);
        }
    }
    let ascending = read.windows(2).all(|pair| {
        pair[0].layer < pair[1].layer && pair[0].kind == pair[1].kind && pair[0].width() == pair[1].width()
    });
    if let [first, ..] = read
        && first.layer.is_some()
        && same
        && ascending
    {
        let width = first.width();
        let rows = (0..first.tokens.len()).flat_map(|token| {
            read.iter().flat_map(move |one| &one.values[token * width..(token + 1) * width])
        });
        let states: Vec<f32> = rows.copied().collect();
        file.floats("hidden_states", &[first.tokens.len(), read.len(), width], &states);
    }
    let names: Vec<&str> = read.iter().map(|one| one.hook.as_str()).collect();
    tensors::file(file, [("hooks", names.join(",")), ("dropped", dropped.to_string())])
}
