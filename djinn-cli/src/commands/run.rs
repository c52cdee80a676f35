//! `djinn run`: one answer to a prompt, or a chat.

mod chat;
mod interrupt;
mod prompt;
mod show;
mod terminal;

use crate::args::RunArgs;
use crate::loaded::{self, Loaded, in_flags};
use crate::output;
use crate::stats::Report;
use crate::trace::TraceFile;
use anyhow::{Result, bail, ensure};
use djinn_engine::{Finish, Options, Session};
use djinn_host::{Answer, Error, Speaker, Speech, check_prompt, context_for, seed};
use djinn_models::Model;
use djinn_models::tokenizer::StopStrings;
use interrupt::Interrupt;
use prompt::Prompt;
use serde::Serialize;
use show::show;
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
    args.device.device.find().map_err(in_flags)?;
    loaded::refuse_prompt(&args.model)?;
    let trace = TraceFile::open(args.device.trace.as_deref())?;
    let prompt = Prompt::read(args)?;
    let interrupt = Interrupt::install()?;
    let model = loaded::open(&args.model, args.memory.dtype, quiet)?;
    let speech = speech(args, &model)?;
    if !quiet && !model.defaults.ignored.is_empty() {
        let keys = model.defaults.ignored.join(", ");
        output::remark(&format!("{} asks for {keys}, which has no effect here", model.name));
    }
    let done = match prompt {
        Prompt::Chat => {
            let context = args.memory.ctx.unwrap_or(model.graph.max_context.min(MAX_CHAT_CONTEXT));
            let mut loaded = load(args, &model, context, &interrupt, quiet)?;
            let talked = chat::run(&mut loaded, speech, args, &interrupt, quiet);
            trace.write(&mut *loaded.engine, talked)?;
            Ok(ExitCode::SUCCESS)
        }
        Prompt::Text(text) => {
            let tokens = speech.tokens(&text).map_err(in_flags)?;
            once(args, &speech, tokens, trace, &interrupt, quiet)
        }
        Prompt::Tokens(tokens) => once(args, &speech, tokens, trace, &interrupt, quiet),
    };
    match done {
        Err(error) if matches!(error.downcast_ref(), Some(Error::Engine(djinn_engine::Error::Cancelled))) => {
            output::remark("interrupted while loading");
            Ok(ExitCode::from(INTERRUPTED))
        }
        done => done,
    }
}

fn load(args: &RunArgs, model: &Model, context: u64, interrupt: &Interrupt, quiet: bool) -> Result<Loaded> {
    let setup = args.memory.setup(args.device.device, args.device.threads);
    let options = setup.options(model, context).map_err(in_flags)?;
    let options = Options { force_park_every: args.force_park_every, ..options };
    let ended = || interrupt.asked();
    interrupt.during(|| loaded::load(model, &setup, &options, args.device.trace.is_some(), quiet, &ended))
}

/// The model's way from text to tokens, as the flags want it.
fn speech<'a>(args: &'a RunArgs, model: &'a Model) -> Result<Speech<'a>> {
    if !args.sampling.stop.is_empty() && model.tokenizer.is_none() {
        bail!("--stop needs a tokenizer, which {} lacks; drop it", model.name);
    }
    StopStrings::new(args.sampling.stop.iter().cloned())?;
    match args.raw || !args.prompt_tokens.is_empty() && model.chat.is_none() {
        true => Ok(Speech::raw(model)),
        false => Speech::chat(model, args.system.as_deref()).map_err(in_flags),
    }
}

fn once(
    args: &RunArgs,
    speech: &Speech<'_>,
    tokens: Vec<u32>,
    trace: TraceFile,
    interrupt: &Interrupt,
    quiet: bool,
) -> Result<ExitCode> {
    let model = speech.model();
    check_prompt(model, args.memory.ctx, &tokens)?;
    let request = args.sampling.generation(MAX_TOKENS).request(model, tokens);
    ensure!(
        !args.sampling.seed_is_asked_for || seed(&request.sampling).is_some(),
        "--seed has no effect without --temperature, --top-k, --top-p or --min-p, or a model that asks for sampling"
    );
    let room = request.prompt.len() as u64 + request.max_tokens as u64;
    let context = args.memory.ctx.unwrap_or_else(|| context_for(room, model));
    let Loaded { mut engine, time } = load(args, model, context, interrupt, quiet)?;
    let speaker = Speaker::new(speech, &args.sampling.stop)?;
    let answer = show(interrupt, !args.json, |say| {
        speaker.answer(&mut *engine, &mut Session::default(), &request, say)
    });
    let answer = trace.write(&mut *engine, answer)?;
    let Answer { tokens, text, finish, stats } = answer;
    if finish == Finish::Cancelled && tokens.is_empty() {
        let (done, all) = (stats.reused_tokens + stats.prompt_tokens, request.prompt.len());
        output::remark(&format!("interrupted after {done} of {all} prompt tokens"));
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let stats = Report::new(&*engine, &stats, time, seed(&request.sampling));
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
