//! `djinn logits`: the logits of every position.

use crate::args::LogitsArgs;
use crate::trace::TraceFile;
use crate::{loaded, output, remote};
use anyhow::Result;
use djinn_host::{LogitRows, check_prompt, context_for, logits_table};
use serde_json::json;

/// Bytes of logits that are computed at once, at most.
const MAX_LOGIT_BYTES: u64 = 64 << 20;
pub(super) fn run(args: &LogitsArgs, quiet: bool) -> Result<()> {
    if let Some(url) = &args.server.server {
        return asked(args, url);
    }
    args.device.device.find()?;
    let trace = TraceFile::open(args.trace.as_deref())?;
    let model = loaded::open(&args.model, &args.device.with(&args.memory).open_options(), quiet)?;
    let tokens = args.tokens.len() as u64;
    check_prompt(&model, args.memory.context, &args.tokens)?;
    let setup = loaded::setup(&args.device, &args.memory, &model, quiet);
    let mut options = setup.options(&model, context_for(tokens, &model));
    let rows = (MAX_LOGIT_BYTES / (model.graph.vocab * 4)).clamp(1, options.prefill_rows as u64) as u32;
    (options.prefill_rows, options.logit_rows) = (rows, rows);
    let mut loaded = loaded::load(&model, &setup, &options, args.trace.is_some(), quiet, &|| false)?;
    let logits = loaded.engine.logits(&args.tokens);
    let logits = trace.write(&mut *loaded.engine, logits.map_err(Into::into))?;
    match args.json {
        true => output::json(&LogitRows::new(&model, &logits)),
        false => output::line(&logits_table(&model, &logits)),
    }
}

/// The same from a server.
fn asked(args: &LogitsArgs, url: &str) -> Result<()> {
    let server = remote::at("--server", url, &args.server.api_key, None)?;
    let format = if args.json { "json" } else { "text" };
    let body = json!({ "model": args.model, "tokens": args.tokens, "format": format });
    output::line(&server.post_text("/v1/logits", &body)?)
}
