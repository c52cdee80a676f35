//! An answer that a server computes.

use super::Output;
use super::prompt::Prompt;
use super::show::Show;
use crate::args::RunArgs;
use crate::interrupt::{INTERRUPTED, Interrupt};
use crate::output;
use crate::remote::Remote;
use anyhow::{Context, Result, bail};
use djinn_models::printable;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Instant;

/// Times as this machine saw them, and as the server did: the difference is the network's.
#[derive(Debug, Serialize)]
struct RemoteStats {
    server: String,
    seed: Option<u64>,
    prompt_tokens: usize,
    ttft_ms: Option<f64>,
    tpot_ms: Option<f64>,
    server_ttft_ms: Option<f64>,
    server_tpot_ms: Option<f64>,
}

/// What the server tells first.
#[derive(Deserialize)]
struct Began {
    prompt_tokens: Vec<u32>,
    seed: Option<u64>,
}

/// What it tells at the end.
#[derive(Deserialize)]
struct Ended {
    tokens: Vec<u32>,
    has_text: bool,
    finish: String,
    ttft_ms: Option<f64>,
    tpot_ms: Option<f64>,
}

pub(super) fn run(args: &RunArgs, url: &str, interrupt: &Interrupt, quiet: bool) -> Result<ExitCode> {
    let server = Remote::new("--server", url, &args.server.api_key, None)?;
    let body = body(args)?;
    let asked = Instant::now();
    let answer = server.post_for("/v1/generate", &body)?;
    let mut show = Show::new(interrupt, !args.json);
    let (mut began, mut ended) = (None::<Began>, None::<Ended>);
    let (mut text, mut first, mut last) = (String::new(), None, asked);
    let broke_off = || format!("the answer of {} broke off", server.url());
    for line in BufReader::new(answer.into_body().into_reader()).lines() {
        let line = line.with_context(broke_off)?;
        let Some(data) = line.strip_prefix("data: ") else { continue };
        if data == "[DONE]" {
            break;
        }
        let event: Value = serde_json::from_str(data).with_context(broke_off)?;
        if let Some(message) = event["error"]["message"].as_str() {
            bail!("the server says: {}", printable::one_line(message));
        }
        if let Some(piece) = event["text"].as_str() {
            last = Instant::now();
            first.get_or_insert(last);
            text += piece;
            if show.piece(piece) == ControlFlow::Break(()) {
                break;
            }
        } else if began.is_none() {
            began = Some(serde_json::from_value(event).with_context(broke_off)?);
        } else {
            ended = Some(serde_json::from_value(event).with_context(broke_off)?);
        }
    }
    show.end(Ok(()))?;
    let (began, ended) = match (began, ended) {
        (Some(began), Some(ended)) => (began, ended),
        _ if interrupt.asked() => return Ok(ExitCode::from(INTERRUPTED)),
        _ => bail!(broke_off()),
    };
    let later = ended.tokens.len().saturating_sub(1);
    let ms = |from: Instant, to: Instant| (to - from).as_secs_f64() * 1e3;
    let stats = RemoteStats {
        server: server.url().to_owned(),
        seed: began.seed,
        prompt_tokens: began.prompt_tokens.len(),
        ttft_ms: first.map(|first| ms(asked, first)),
        tpot_ms: first.filter(|_| later > 0).map(|first| ms(first, last) / later as f64),
        server_ttft_ms: ended.ttft_ms,
        server_tpot_ms: ended.tpot_ms,
    };
    if args.json {
        output::json(&Output {
            model: &args.model,
            prompt_tokens: &began.prompt_tokens,
            tokens: &ended.tokens,
            text: ended.has_text.then_some(text.as_str()),
            finish: &ended.finish,
            stats,
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    if !ended.has_text {
        let numbers: Vec<String> = ended.tokens.iter().map(u32::to_string).collect();
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

impl RemoteStats {
    fn remark(&self) {
        let RemoteStats { server, prompt_tokens, ttft_ms, tpot_ms, server_ttft_ms, server_tpot_ms, .. } =
            self;
        let here = |here: &Option<f64>, there: &Option<f64>| match (here, there) {
            (Some(here), Some(there)) => format!("{here:.1} ms ({there:.1} at the server)"),
            _ => "no time".to_owned(),
        };
        output::remark(&format!(
            "{prompt_tokens} prompt tokens, first token after {}, then {} per token; {server}",
            here(ttft_ms, server_ttft_ms),
            here(tpot_ms, server_tpot_ms)
        ));
    }
}
