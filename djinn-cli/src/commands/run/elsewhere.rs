//! An answer that a server computes.

use super::Output;
use super::prompt::Prompt;
use super::show::Show;
use crate::args::RunArgs;
use crate::interrupt::{INTERRUPTED, Interrupt};
use crate::{output, remote};
use anyhow::{Result, bail};
use djinn_host::remote::RemoteAnswer;
use serde::Serialize;
use serde_json::{Value, json};
use std::process::ExitCode;

/// Times as this machine saw them, and as the server did: the difference is the network's.
#[derive(Debug, Serialize)]
struct RemoteStats<'a> {
    server: &'a str,
    seed: Option<u64>,
    prompt_tokens: usize,
    ttft_ms: Option<f64>,
    tpot_ms: Option<f64>,
    server_ttft_ms: Option<f64>,
    server_tpot_ms: Option<f64>,
    /// Of the request's and the answer's bodies.
    sent_bytes: u64,
    received_bytes: u64,
}

pub(super) fn run(args: &RunArgs, url: &str, interrupt: &Interrupt, quiet: bool) -> Result<ExitCode> {
    let server = remote::at("--server", url, &args.server.api_key, None)?;
    let body = body(args)?;
    let mut show = Show::new(interrupt, !args.json);
    let answered = server.generate(&body, &mut |piece| show.piece(piece));
    // Only Ctrl-C breaks off.
    let Some(answer) = show.end(answered)? else { return Ok(ExitCode::from(INTERRUPTED)) };
    let stats = RemoteStats::new(server.url(), &answer);
    let RemoteAnswer { prompt_tokens, tokens, text, finish, .. } = &answer;
    if args.json {
        let (model, text) = (&args.model, text.as_deref());
        output::json(&Output { model, prompt_tokens, tokens, text, finish, stats })?;
        return Ok(ExitCode::SUCCESS);
    }
    if text.is_none() {
        let numbers: Vec<String> = tokens.iter().map(u32::to_string).collect();
        output::piece(&numbers.join(" "))?;
    }
    output::piece("\n")?;
    if !quiet {
        stats.remark();
    }
    Ok(ExitCode::SUCCESS)
}

/// The request, as the flags say it.
fn body(args: &RunArgs) -> Result<Value> {
    let sampling = &args.sampling;
    let mut body = json!({
        "model": args.model,
        "raw": args.raw,
        "system": args.system,
        "max_tokens": sampling.max_tokens.unwrap_or(super::MAX_TOKENS),
        "greedy": sampling.greedy,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "seed": sampling.seed,
        "stop": sampling.stop,
        "ignore_eos": sampling.ignore_eos,
    });
    match Prompt::read(args)? {
        Prompt::Text(text) => body["prompt"] = text.into(),
        Prompt::Tokens(tokens) => body["prompt_tokens"] = tokens.into(),
        Prompt::Chat => bail!("--server answers one prompt; give one as an argument or on standard input"),
    }
    Ok(body)
}

impl<'a> RemoteStats<'a> {
    fn new(server: &'a str, answer: &RemoteAnswer) -> Self {
        RemoteStats {
            server,
            seed: answer.seed,
            prompt_tokens: answer.prompt_tokens.len(),
            ttft_ms: answer.ttft_ms,
            tpot_ms: answer.tpot_ms,
            server_ttft_ms: answer.server_ttft_ms,
            server_tpot_ms: answer.server_tpot_ms,
            sent_bytes: answer.sent_bytes,
            received_bytes: answer.received_bytes,
        }
    }

    fn remark(&self) {
        let here = |here: &Option<f64>, there: &Option<f64>| match (here, there) {
            (Some(here), Some(there)) => format!("{here:.1} ms ({there:.1} at the server)"),
            _ => "no time".to_owned(),
        };
        output::remark(&format!(
            "{} prompt tokens, first token after {}, then {} per token; {}",
            self.prompt_tokens,
            here(&self.ttft_ms, &self.server_ttft_ms),
            here(&self.tpot_ms, &self.server_tpot_ms),
            self.server
        ));
    }
}
