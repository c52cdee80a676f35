//! `djinn run`: one answer to a prompt, or a chat.

mod chat;
mod elsewhere;
mod prompt;
mod show;

use crate::args::RunArgs;
use crate::interrupt::{INTERRUPTED, Interrupt};
use crate::loaded::{self, Loaded};
use crate::output;
use crate::stats::RunStats;
use crate::trace::TraceFile;
use anyhow::{Result, bail};
use djinn_engine::Finish;
use djinn_host::{
    Answer, DEFAULT_CONTEXT, Error, Generation, Speaker, Speech, check_prompt, context_for, seed,
};
use djinn_models::Model;
use djinn_models::tokenizer::StopStrings;
use prompt::Prompt;
use serde::Serialize;
use show::Show;
pub(super) use show::name;
use std::process::ExitCode;

const MAX_CHAT_TOKENS: u32 = 1024;

#[derive(Serialize)]
struct Output<'a, S> {
    model: &'a str,
    prompt_tokens: &'a [u32],
    tokens: &'a [u32],
    text: Option<&'a str>,
    finish: &'a str,
    stats: S,
}

pub(super) fn run(args: &RunArgs, interrupt: &Interrupt, quiet: bool) -> Result<ExitCode> {
    loaded::refuse_prompt(&args.model)?;
    if let Some(url) = &args.server.server {
        return elsewhere::run(args, url, interrupt, quiet);
    }
    args.device.device.find()?;
    let trace = TraceFile::open(args.trace.as_deref())?;
    let prompt = Prompt::read(args)?;
    let model = loaded::open(&args.model, &args.device.with(&args.memory).open_options(), quiet)?;
    let speech = speech(args, &model)?;
    if !quiet && !model.defaults.ignored.is_empty() {
        let keys = model.defaults.ignored.join(", ");
        output::remark(&format!("{} asks for {keys}, which has no effect here", model.name));
    }
    let done = match prompt {
        Prompt::Chat => {
            chat::check_seed(args, &model.defaults)?;
            let context = args.memory.context.unwrap_or(model.graph.max_context.min(DEFAULT_CONTEXT));
            let mut loaded = load(args, &model, context, interrupt, quiet)?;
            let talked = chat::run(&mut loaded, speech, args, interrupt, quiet);
            trace.write(&mut *loaded.engine, talked)?;
            Ok(ExitCode::SUCCESS)
        }
        Prompt::Text(text) => {
            let tokens = speech.tokens(&text)?;
            once(args, &speech, tokens, trace, interrupt, quiet)
        }
        Prompt::Tokens(tokens) => once(args, &speech, tokens, trace, interrupt, quiet),
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
    let setup = loaded::setup(&args.device, &args.memory, model, quiet);
    let options = setup.options(model, context);
    let _work = interrupt.work();
    loaded::load(model, &setup, &options, args.trace.is_some(), quiet, &|| interrupt.asked())
}

/// The model's way from text to tokens, as the flags want it.
fn speech<'a>(args: &'a RunArgs, model: &'a Model) -> Result<Speech<'a>> {
    if !args.sampling.stop.is_empty() && model.tokenizer.is_none() {
        bail!("--stop needs a tokenizer, which {} lacks; drop it", model.name);
    }
    StopStrings::new(args.sampling.stop.iter().cloned())?;
    match args.raw || !args.prompt_tokens.is_empty() && model.chat.is_none() {
        true => Ok(Speech::raw(model)),
        false => Ok(Speech::chat(model, args.system.as_deref())?),
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
    check_prompt(model, args.memory.context, &tokens)?;
    let request = args.sampling.request(model, tokens, Generation::MAX_TOKENS)?;
    let room = request.prompt.len() as u64 + request.max_tokens as u64;
    let context = args.memory.context.unwrap_or_else(|| context_for(room, model));
    // Of one piece of work with loading: a Ctrl-C at the end of that cancels the answer.
    let mut show = Show::new(interrupt, !args.json);
    let Loaded { mut engine, time } = load(args, model, context, interrupt, quiet)?;
    let speaker = Speaker::new(speech, &args.sampling.stop)?;
    let answered = speaker.answer(&mut *engine, &mut None, &request, &mut |text| show.piece(text));
    let answer = trace.write(&mut *engine, show.end(answered))?;
    let Answer { tokens, text, finish, stats } = answer;
    if finish == Finish::Cancelled && tokens.is_empty() {
        let (done, all) = (stats.reused_tokens + stats.prompt_tokens, request.prompt.len());
        output::remark(&format!("interrupted after {done} of {all} prompt tokens"));
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let stats = RunStats::new(&*engine, &stats, time, seed(&request.sampling));
    if args.json {
        output::json(&Output {
            model: &model.name,
            prompt_tokens: &request.prompt,
            tokens: &tokens,
            text: text.as_deref(),
            finish: name(finish),
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
