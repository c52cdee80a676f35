//! An answer that a server computes, or a chat with it.

use super::prompt::Prompt;
use super::show::Show;
use super::{Output, chat};
use crate::args::RunArgs;
use crate::interrupt::{INTERRUPTED, Interrupt};
use crate::{output, remote};
use anyhow::Result;
use djinn_host::Generation;
use djinn_host::remote::{RemoteAnswer, generate_body};
use serde::Serialize;
use std::process::ExitCode;

/// Times as this machine saw them, and as the server did: the difference is the network's.
#[derive(Debug, Serialize)]
pub(super) struct RemoteStats<'a> {
    server: &'a str,
    seed: Option<u64>,
    /// Prompt tokens that were computed.
    prompt_tokens: u64,
    /// Prompt tokens whose keys and values were still there.
    reused_tokens: u64,
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
    let server = if quiet { server } else { server.showing() };
    let (raw, system) = (args.raw, args.system.clone());
    let generation = Generation { raw, system, ..args.sampling.generation(Generation::MAX_TOKENS) };
    let mut body = generate_body(&args.model, &generation);
    match Prompt::read(args)? {
        Prompt::Text(text) => body["prompt"] = text.into(),
        Prompt::Tokens(tokens) => body["prompt_tokens"] = tokens.into(),
        Prompt::Chat => return chat::run_at(server, args, interrupt, quiet).map(|()| ExitCode::SUCCESS),
    }
    if args.sampling.seed_is_asked_for {
        let defaults = server.generation_defaults(&args.model)?;
        args.sampling.check_seed(&generation.sampling(&defaults))?;
    }
    let mut show = Show::new(interrupt, !args.json);
    let answered = server.generate(&body, &mut |piece| show.piece(piece));
    let answer = show.end(answered)?;
    // Only Ctrl-C breaks off.
    let ended = if answer.is_cancelled() { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS };
    if answer.is_cancelled() && answer.came == 0 {
        output::remark("interrupted before the first token");
        return Ok(ended);
    }
    let stats = RemoteStats::new(server.url(), &answer);
    let RemoteAnswer { prompt_tokens, tokens, text, finish, .. } = &answer;
    if args.json {
        let (model, text) = (&args.model, text.as_deref());
        output::json(&Output { model, prompt_tokens, tokens, text, finish, stats })?;
        return Ok(ended);
    }
    if text.is_none() {
        let numbers: Vec<String> = tokens.iter().map(u32::to_string).collect();
        output::piece(&numbers.join(" "))?;
    }
    output::piece("\n")?;
    if !quiet {
        stats.remark();
    }
    Ok(ended)
}

impl<'a> RemoteStats<'a> {
    pub(super) fn new(server: &'a str, answer: &RemoteAnswer) -> Self {
        RemoteStats {
            server,
            seed: answer.seed,
            prompt_tokens: (answer.prompt_tokens.len() as u64).saturating_sub(answer.cached_tokens),
            reused_tokens: answer.cached_tokens,
            ttft_ms: answer.ttft_ms,
            tpot_ms: answer.tpot_ms,
            server_ttft_ms: answer.server_ttft_ms,
            server_tpot_ms: answer.server_tpot_ms,
            sent_bytes: answer.sent_bytes,
            received_bytes: answer.received_bytes,
        }
    }

    /// Prints the report for people to standard error.
    pub(super) fn remark(&self) {
        let mut line = format!("{} prompt tokens", self.prompt_tokens);
        if self.reused_tokens > 0 {
            line += &format!(" (+ {} reused)", self.reused_tokens);
        }
        let time = |here: f64, there: Option<f64>| match there {
            Some(there) => format!("{here:.1} ms ({there:.1} at the server)"),
            None => format!("{here:.1} ms"),
        };
        if let Some(here) = self.ttft_ms {
            line += &format!(", first token after {}", time(here, self.server_ttft_ms));
        }
        if let Some(here) = self.tpot_ms {
            line += &format!(", then {} per token", time(here, self.server_tpot_ms));
        }
        if let Some(seed) = self.seed {
            line += &format!(", seed {seed}");
        }
        output::remark(&format!("{line}; {}", self.server));
    }
}
