//! `djinn run`: one answer to a prompt, or a chat.

mod answer;
mod chat;
mod interrupt;
mod prompt;
mod sampling;

use crate::args::RunArgs;
use crate::loaded::{self, Loaded};
use crate::output;
use crate::stats::Report;
use crate::trace::TraceFile;
use answer::{Answer, Speaker};
use anyhow::Result;
use djinn_engine::{Finish, Options, Request, Session};
use djinn_models::Model;
use interrupt::Interrupt;
use prompt::{Prompt, Speech};
use serde::Serialize;
use std::process::ExitCode;

/// As a shell reports a process that SIGINT ended.
const INTERRUPTED: u8 = 130;
const MAX_TOKENS: u32 = 256;
const MAX_CHAT_TOKENS: u32 = 1024;
const MAX_CHAT_CONTEXT: u64 = 4096;

#[derive(Serialize)]
struct Output<'a> {
    model: &'a str,
    prompt_tokens: &'a [u32],
    tokens: &'a [u32],
    text: Option<&'a str>,
    finish: &'static str,
    stats: Report,
}

pub(super) fn run(args: &RunArgs, quiet: bool) -> Result<ExitCode> {
    loaded::check_device(args.device.device)?;
    loaded::refuse_prompt(&args.model)?;
    let trace = TraceFile::open(args.device.trace.as_deref())?;
    let prompt = Prompt::read(args)?;
    let model = loaded::open(&args.model, args.memory.dtype, quiet)?;
    let speech = Speech::new(&model, args)?;
    match prompt {
        Prompt::Chat => {
            let context = args.memory.ctx.unwrap_or(model.graph.max_context.min(MAX_CHAT_CONTEXT));
            let mut loaded = load(args, &model, context, quiet)?;
            let (template, _) = request(args, &model, Vec::new(), MAX_CHAT_TOKENS);
            let talked = chat::run(&mut loaded, &speech, &template, args, quiet);
            trace.write(&mut *loaded.engine, talked)?;
            Ok(ExitCode::SUCCESS)
        }
        Prompt::Text(text) => once(args, &model, &speech, speech.tokens(&text)?, trace, quiet),
        Prompt::Tokens(tokens) => once(args, &model, &speech, tokens, trace, quiet),
    }
}

fn load(args: &RunArgs, model: &Model, context: u64, quiet: bool) -> Result<Loaded> {
    let options = Options {
        force_park_every: args.force_park_every,
        ..loaded::options(&args.memory, loaded::kv_dtype(args.device.device, model), context)
    };
    loaded::load(model, &args.device, &options, quiet)
}

/// What to generate after `prompt`, and the seed where there is randomness.
fn request(args: &RunArgs, model: &Model, prompt: Vec<u32>, max_tokens: u32) -> (Request, Option<u64>) {
    let (sampling, seed) = sampling::choose(&args.sampling, &model.defaults);
    let mut stop_tokens = Vec::new();
    if !args.sampling.ignore_eos {
        stop_tokens.extend_from_slice(&model.defaults.eos);
        stop_tokens.extend(model.tokenizer.iter().flat_map(|t| t.end_tokens()));
    }
    let max_tokens = args.sampling.max_tokens.unwrap_or(max_tokens) as usize;
    (Request { prompt, max_tokens, sampling, stop_tokens }, seed)
}

fn once(
    args: &RunArgs,
    model: &Model,
    speech: &Speech<'_>,
    tokens: Vec<u32>,
    trace: TraceFile,
    quiet: bool,
) -> Result<ExitCode> {
    loaded::check_tokens(model, &tokens)?;
    let (request, seed) = request(args, model, tokens, MAX_TOKENS);
    let room = request.prompt.len() as u64 + request.max_tokens as u64;
    let context = args.memory.ctx.unwrap_or_else(|| loaded::context_for(room, model));
    let Loaded { mut engine, time } = load(args, model, context, quiet)?;
    let speaker = Speaker::new(speech, &args.sampling.stop, !args.json)?;
    let interrupt = Interrupt::install()?;
    let answer = speaker.answer(&mut *engine, &mut Session::default(), &request, &interrupt);
    let answer = trace.write(&mut *engine, answer)?;
    let Answer { tokens, text, finish, stats } = answer;
    let stats = Report::new(&*engine, &stats, time, seed);
    if args.json {
        let (text, prompt_tokens) = (text.as_deref(), &request.prompt[..]);
        let finish_name = name(finish);
        let tokens = &tokens[..];
        output::json(&Output {
            model: &model.name,
            prompt_tokens,
            tokens,
            text,
            finish: finish_name,
            stats,
        })?;
    } else {
        output::piece("\n")?;
        if !quiet {
            stats.remark();
        }
    }
    Ok(if finish == Finish::Cancelled { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

fn name(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
        Finish::Cancelled => "cancelled",
    }
}
