//! `djinn debug`: stops a model at its hooks; reads and changes activations; continues.

mod changes;
mod command;
mod compare;
mod looks;
mod running;
mod show;
mod stops;
mod tensors;
#[cfg(test)]
mod tests;
mod usage;
mod words;

use super::editor::{Asked, Editor, Lines};
use crate::args::DebugArgs;
use crate::interrupt::{INTERRUPTED, Interrupt};
use crate::loaded::{self, Loaded};
use crate::{output, terminal};
use anyhow::{Context, Result, anyhow, bail, ensure};
use command::Command;
use djinn_engine::debug::{AttentionPattern, HookPoint};
use djinn_engine::{Options, Request};
use djinn_host::{AnyEngine, Error, Generation, Speaker, Speech, check_prompt, context_for, seed};
use running::Session;
use std::io::{BufRead, IsTerminal, Read};
use std::process::ExitCode;
use stops::{Armed, Steered};

/// The number of sessions whose keys and values fit on the device. Others are computed again after a stop.
const SESSIONS: u32 = 4;
/// The longest line of a script, in bytes.
const MAX_LINE: u64 = 1 << 20;

pub(super) fn run(args: &DebugArgs, interrupt: &Interrupt, quiet: bool) -> Result<ExitCode> {
    args.device.device.find()?;
    loaded::refuse_prompt(&args.model)?;
    let prompt = match args.prompt.as_deref() {
        None | Some("") => bail!("the prompt is missing: djinn debug MODEL PROMPT"),
        Some("-") => bail!("the prompt comes as an argument; standard input has the commands"),
        Some(prompt) => prompt,
    };
    let model = loaded::open(&args.model, &args.device.with(&args.memory).open_options(), quiet)?;
    let speech = if args.chat { Speech::chat(&model, None)? } else { Speech::raw(&model) };
    ensure!(!args.chat || model.chat.is_some(), "--chat needs a chat template, which {} lacks", model.name);
    let tokens = speech.tokens(prompt)?;
    check_prompt(&model, args.memory.context, &tokens)?;
    Speaker::new(&speech, &args.sampling.stop)?;
    let request = args.sampling.request(&model, tokens, Generation::MAX_TOKENS)?;
    let room = request.prompt.len() as u64 + request.max_tokens as u64;
    let setup = loaded::setup(&args.device, &args.memory, &model, quiet);
    let context = args.memory.context.unwrap_or_else(|| context_for(room, &model));
    let options =
        Options { hook_bytes: args.hook_memory, ..setup.options(&model, context).serving(SESSIONS) };
    let loading = interrupt.work();
    let loaded = loaded::load(&model, &setup, &options, false, quiet, &|| interrupt.asked());
    drop(loading);
    let loaded = loaded.map_err(|error| match error.downcast::<Error>() {
        Ok(error) => loaded::blame(error, &[("--hook-memory", args.hook_memory)]),
        Err(error) => error,
    });
    let Loaded { engine, .. } = match loaded {
        Err(error) if matches!(error.downcast_ref(), Some(Error::Engine(djinn_engine::Error::Cancelled))) => {
            output::remark("interrupted while loading");
            return Ok(ExitCode::from(INTERRUPTED));
        }
        loaded => loaded?,
    };
    if let Some(seed) = seed(&request.sampling).filter(|_| !quiet) {
        output::remark(&format!("seed {seed}"));
    }
    let debug = Debug::new(engine, speech, request, &args.sampling.stop, interrupt);
    match std::io::stdin().is_terminal() {
        true => talk(debug, quiet),
        false => obey_script(debug),
    }
}

/// Runs the user's commands until Ctrl-D or `quit`. Errors are printed.
fn talk(mut debug: Debug<'_>, quiet: bool) -> Result<ExitCode> {
    debug.interrupt.chat();
    let _hushed = terminal::hush();
    if !quiet {
        let (model, device) = (&debug.speech.model().name, debug.engine.device_info().name);
        let (tokens, hooks) = (debug.request.prompt.len(), debug.points.len());
        output::remark(&format!(
            "{model} on {device}, a prompt of {tokens} tokens, {hooks} hooks; `run` begins, `help` lists what can be done"
        ));
    }
    let names = debug.points.iter().flat_map(|point| {
        let canonical = std::iter::once(&point.hook.name);
        canonical.chain(&point.aliases).cloned()
    });
    let mut editor = Editor::new("(djinn) ", "debug-history", Typed { hooks: names.collect() })?;
    loop {
        let line = match editor.ask()? {
            Asked::End => return Ok(ExitCode::SUCCESS),
            Asked::Dropped => continue,
            Asked::Text(line) => line,
        };
        match debug.hear(&line) {
            Ok(true) => {}
            Ok(false) => return Ok(ExitCode::SUCCESS),
            Err(error) if output::reader_left(&error) => return Err(error),
            Err(error) => output::remark(&output::one_line(error.as_ref())),
        }
    }
}

/// Runs the commands of standard input until its end or `quit`. An error ends it.
fn obey_script(mut debug: Debug<'_>) -> Result<ExitCode> {
    let mut input = std::io::stdin().lock();
    for number in 1.. {
        let mut line = String::new();
        let read = input.by_ref().take(MAX_LINE).read_line(&mut line);
        let read = read.with_context(|| format!("cannot read line {number} of standard input"))?;
        ensure!(read < MAX_LINE as usize, "line {number} of standard input is too long");
        if read == 0 || !debug.hear(&line).with_context(|| format!("line {number}"))? {
            break;
        }
        if debug.interrupt.asked() {
            return Ok(ExitCode::from(INTERRUPTED));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Completion and continuation of the debugger's lines.
struct Typed {
    hooks: Vec<String>,
}

impl Lines for Typed {
    fn complete(&self, begun: &str) -> (usize, Vec<String>) {
        usage::complete(begun, &self.hooks)
    }

    fn is_open(&self, _: &str) -> bool {
        false
    }
}

/// A debugger at work.
struct Debug<'a> {
    engine: Box<dyn AnyEngine>,
    speech: Speech<'a>,
    request: Request,
    /// Strings that end the text.
    stops: &'a [String],
    interrupt: &'a Interrupt,
    /// The model's hooks, in order of execution.
    points: Vec<HookPoint>,
    /// The outputs of its blocks, in order.
    blocks: Vec<djinn_srg::Hook>,
    breakpoints: Vec<Armed>,
    /// The number of breakpoints so far.
    numbered: u64,
    steering: Vec<Steered>,
    sessions: Vec<Session>,
    /// Index of the session that commands apply to.
    current: usize,
}

impl<'a> Debug<'a> {
    fn new(
        engine: Box<dyn AnyEngine>,
        speech: Speech<'a>,
        request: Request,
        stops: &'a [String],
        interrupt: &'a Interrupt,
    ) -> Self {
        let points = engine.hooks();
        let blocks = (0..).map_while(|block| engine.hook(&format!("blocks.{block}.hook_out")).ok()).collect();
        let (breakpoints, steering, sessions) = (Vec::new(), Vec::new(), Vec::new());
        Debug {
            engine,
            speech,
            request,
            stops,
            interrupt,
            points,
            blocks,
            breakpoints,
            numbered: 0,
            steering,
            sessions,
            current: 0,
        }
    }

    /// Runs a line's command. Returns false if it is the last one.
    fn hear(&mut self, line: &str) -> Result<bool> {
        let Some(command) = Command::parse(line).map_err(|why| anyhow!(why))? else { return Ok(true) };
        match command {
            Command::Break(stop) => self.set_breakpoint(stop)?,
            Command::Delete(number) => self.delete(number)?,
            Command::Info(topic) => self.info(&topic)?,
            Command::Run => self.start()?,
            Command::Continue => self.go_on(None)?,
            Command::Step => self.step()?,
            Command::Next => self.next()?,
            Command::Finish => self.finish()?,
            Command::Print { hook, at, first } => self.print(&hook, at, first)?,
            Command::Lens { of, top } => self.lens(&of, top)?,
            Command::Logits { top } => self.logits(top)?,
            Command::Set { hook, change, at } => self.set(&hook, change, at)?,
            Command::Save { hook, file, at } => self.save(&hook, &file, at)?,
            Command::Load { hook, file } => self.load(&hook, &file)?,
            Command::Steer { name, by } => self.steer(&name, by)?,
            Command::Fork(name) => self.fork(name)?,
            Command::Switch(name) => self.switch(&name)?,
            Command::Diff { names, kind } => self.diff(&names, &kind)?,
            Command::Text => self.text()?,
            Command::Help(of) => output::line(&usage::help(of.as_deref()).map_err(|why| anyhow!(why))?)?,
            Command::Quit => return Ok(false),
        }
        Ok(true)
    }

    /// The hook with a name; the result has its canonical name.
    fn hook(&self, name: &str) -> Result<djinn_srg::Hook> {
        let Ok(hook) = self.engine.hook(name) else {
            let graph = &self.speech.model().graph;
            if AttentionPattern::named(graph, name).is_some() {
                bail!(
                    "an attention pattern is read from a paused session of `djinn serve`; here, take other hooks"
                );
            }
            if let Some(last) = djinn_host::last_layer(name, |name| self.engine.hook(name).is_ok()) {
                bail!("there is no hook {name:?}; the layers are 0 to {last}");
            }
            let known = self.points.iter().map(|point| &*point.hook.name);
            match djinn_host::nearest(name, known) {
                Some(near) => bail!("there is no hook {name:?}; did you mean {near}?"),
                None => bail!("there is no hook {name:?}; `info hooks` lists them"),
            }
        };
        let place = |hook: &djinn_srg::Hook| (hook.value, hook.after, hook.columns);
        let same = self.points.iter().find(|point| place(&point.hook) == place(&hook));
        Ok(same.map_or(hook, |point| point.hook.clone()))
    }
}
