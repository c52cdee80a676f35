//! Logits as text and as JSON.

use djinn_models::Model;
use serde::Serialize;

/// Tokens shown for each position.
const BEST: usize = 5;

/// Logits as a JSON object.
#[derive(Debug, Serialize)]
pub struct LogitRows<'a> {
    /// One row for each position. Numbers are the shortest decimals that give the same f32 back.
    logits: Vec<&'a [f32]>,
}

impl<'a> LogitRows<'a> {
    /// Of f32 `[positions, vocab]`, row-major.
    pub fn new(model: &Model, logits: &'a [f32]) -> Self {
        LogitRows { logits: logits.chunks_exact(model.graph.vocab as usize).collect() }
    }
}

/// The best tokens of each position of logits, f32 `[positions, vocab]`, row-major: a line for each.
pub fn logits_table(model: &Model, logits: &[f32]) -> String {
    let rows = logits.chunks_exact(model.graph.vocab as usize).enumerate().map(|(position, row)| {
        let best = best(row).into_iter().map(|token| {
            let name = model.tokenizer.as_ref().and_then(|t| t.id_to_token(token));
            let name = name.map_or_else(String::new, |name| format!(" {name:?}"));
            format!("{token}{name} {:.4}", row[token as usize])
        });
        format!("{position}: {}", best.collect::<Vec<_>>().join(", "))
    });
    rows.collect::<Vec<_>>().join("\n")
}

/// The tokens with the largest logits, best first; of equals the lower id.
fn best(row: &[f32]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..row.len() as u32).collect();
    order.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]).then(a.cmp(&b)));
    order.truncate(BEST);
    order
}
