//! `djinn logits`: the logits of every position.

use crate::args::LogitsArgs;
use crate::trace::TraceFile;
use crate::{loaded, output};
use anyhow::Result;
use djinn_host::{check_prompt, context_for};
use serde::Serialize;

/// Bytes of logits that are computed at once, at most.
const MAX_LOGIT_BYTES: u64 = 64 << 20;
/// Tokens that are shown of each position.
const BEST: usize = 5;

#[derive(Serialize)]
struct Output<'a> {
    /// One row for each position. Numbers are the shortest decimals that give the same f32 back.
    logits: Vec<&'a [f32]>,
}

pub(super) fn run(args: &LogitsArgs, quiet: bool) -> Result<()> {
    args.device.device.find()?;
    let trace = TraceFile::open(args.trace.as_deref())?;
    let model = loaded::open(&args.model, &args.device.with(&args.memory).open_options(), quiet)?;
    let vocab = model.graph.vocab as usize;
    let tokens = args.tokens.len() as u64;
    check_prompt(&model, args.memory.context, &args.tokens)?;
    let setup = args.device.with(&args.memory);
    let mut options = setup.options(&model, context_for(tokens, &model));
    let rows = (MAX_LOGIT_BYTES / (model.graph.vocab * 4)).clamp(1, options.prefill_rows as u64) as u32;
    (options.prefill_rows, options.logit_rows) = (rows, rows);
    let mut loaded = loaded::load(&model, &setup, &options, args.trace.is_some(), quiet, &|| false)?;
    let logits = loaded.engine.logits(&args.tokens);
    let logits = trace.write(&mut *loaded.engine, logits.map_err(Into::into))?;
    if args.json {
        return output::json(&Output { logits: logits.chunks_exact(vocab).collect() });
    }
    let rows = logits.chunks_exact(vocab).enumerate().map(|(position, row)| {
        let best = best(row).into_iter().map(|token| {
            let name = model.tokenizer.as_ref().and_then(|t| t.id_to_token(token));
            let name = name.map_or_else(String::new, |name| format!(" {name:?}"));
            format!("{token}{name} {:.4}", row[token as usize])
        });
        format!("{position}: {}", best.collect::<Vec<_>>().join(", "))
    });
    output::line(&rows.collect::<Vec<_>>().join("\n"))
}

/// The tokens with the largest logits, best first; of equals the lower id.
fn best(row: &[f32]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..row.len() as u32).collect();
    order.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]).then(a.cmp(&b)));
    order.truncate(BEST);
    order
}
