//! Workloads of the experiment: what agents do, and for how long it is measured.

mod trace;

use crate::args::Exp1Args;
use anyhow::{Result, ensure};
use djinn_scheduler::sim::{Distribution, Hint, RunSpan, Shape, Tool, Workload};
use std::path::Path;
use std::time::Duration;
use trace::Trace;

/// Prompt tokens of a turn after the first, where contexts are fixed.
const NEXT_PROMPT: u64 = 16;
/// The context of the published coding agents' longest sessions, which their token counts are scaled from.
const CODING_CONTEXT: u64 = 65_536;
/// Turns of one agent alone, for the unloaded latency.
const ALONE_SESSIONS: u64 = 3;

/// Who comes, and when.
#[derive(Clone, Debug)]
enum Source {
    /// Agents that run one session after another.
    Closed(Shape),
    /// Sessions that come at random; the rate per second.
    Poisson(Shape, f64),
    Trace(Trace),
}

/// A workload of any number of agents.
#[derive(Clone, Debug)]
pub(super) struct Load {
    source: Source,
    pub(super) description: String,
    /// What readers of a result should know of it.
    pub(super) notes: Vec<String>,
    /// Agents, or sessions of an open workload.
    pub(super) agents: u32,
    sessions: Option<u32>,
    ramp: Duration,
    seed: u64,
    /// Tokens that a session may have.
    pub(super) context: u64,
    /// Tokens that all first prompts begin with.
    pub(super) shared: u64,
    pub(super) span: RunSpan,
}

impl Load {
    /// Reads the flags for a model of `max_context` tokens.
    pub(super) fn new(args: &Exp1Args, max_context: u64) -> Result<Self> {
        let mut load = match args.workload.as_str() {
            "closed" => thinkers(args, "closed loop", 2_048)?,
            "hard" => thinkers(args, "hard closed loop", 32_768)?,
            "reported" => reported(args)?,
            "coding" => coding(args, max_context)?,
            path => replayed(args, Path::new(path), max_context)?,
        };
        ensure!(
            load.context <= max_context,
            "the workload {} has contexts of {} tokens and {} takes {max_context}; give --context {max_context}, or \
             another --model",
            args.workload,
            load.context,
            args.model()
        );
        ensure!(
            args.density.is_empty() || matches!(load.source, Source::Closed(_)),
            "--density is of closed loops; leave it out, or give --workload closed, hard or coding"
        );
        load.share(args)?;
        Ok(load)
    }

    /// Sets the prefix that `--shared-prefix` asks for. The last token of a prompt is every session's own.
    fn share(&mut self, args: &Exp1Args) -> Result<()> {
        let share = args.shared_prefix;
        ensure!((0.0..=1.0).contains(&share), "--shared-prefix {share} is out of range; give 0 to 1");
        if let Source::Closed(shape) | Source::Poisson(shape, _) = &self.source
            && let Distribution::Fixed(first) | Distribution::LogNormal(first, _) = shape.first_prompt
        {
            self.shared = ((first * share) as u64).min((first as u64).saturating_sub(1));
        } else {
            refuse(args, &[("--shared-prefix", share > 0.0)])?;
        }
        self.description += &match self.shared {
            0 => "; distinct prompts".to_owned(),
            shared => format!("; first prompts begin with the same {shared} tokens"),
        };
        Ok(())
    }

    /// `agents` of them, always the same.
    pub(super) fn workload(&self, agents: u32) -> Workload {
        let Load { ramp, seed, .. } = *self;
        let mut workload = match (&self.source, self.sessions) {
            (Source::Closed(shape), None) => Workload::closed_loop(shape, agents, ramp, seed),
            (Source::Closed(shape), Some(each)) => Workload::finite(shape, agents, each.into(), ramp, seed),
            (Source::Poisson(shape, rate), _) => Workload::poisson(shape, agents, *rate, seed),
            (Source::Trace(trace), _) => trace.workload.clone(),
        };
        workload.share(self.shared);
        workload
    }

    /// One agent that does not wait between turns, for some sessions; of a trace there is none.
    pub(super) fn alone(&self) -> Option<Workload> {
        let (Source::Closed(shape) | Source::Poisson(shape, _)) = &self.source else { return None };
        let mut shape = shape.clone();
        shape.tools.iter_mut().for_each(|tool| tool.seconds = Distribution::Fixed(0.0));
        let mut workload = Workload::finite(&shape, 1, ALONE_SESSIONS, Duration::ZERO, self.seed);
        workload.share(self.shared);
        Some(workload)
    }
}

/// Flags that a workload does not read would be ignored without a word.
fn refuse(args: &Exp1Args, flags: &[(&str, bool)]) -> Result<()> {
    for (flag, given) in flags {
        ensure!(!given, "{flag} has no meaning for the workload {}; leave it out", args.workload);
    }
    Ok(())
}

/// Least and most seconds between turns.
fn think(args: &Exp1Args) -> Result<(f64, f64)> {
    match args.think[..] {
        [] => Ok((10.0, 20.0)),
        [low, high] if 0.0 <= low && low <= high && high <= 86_400.0 => Ok((low, high)),
        _ => anyhow::bail!("--think wants two ascending numbers of seconds, e.g. 10,20"),
    }
}

/// Sessions of `turns` turns whose context ends at `--context` tokens.
fn shape(args: &Exp1Args, turns: u32, context: u64) -> Result<Shape> {
    let (context, output) = (args.context.unwrap_or(context), args.turn_tokens.unwrap_or(128));
    let turns = args.turns.unwrap_or(turns);
    let (low, high) = think(args)?;
    let rest =
        NEXT_PROMPT.saturating_mul(turns as u64 - 1).saturating_add(output.saturating_mul(turns as u64));
    let first = context.checked_sub(rest).filter(|&first| first > 0 && output > 0);
    let Some(first) = first else {
        anyhow::bail!(
            "{turns} turns of {output} tokens with prompts between take {rest} tokens or more of a context of {context}; \
             change --turns, --turn-tokens or --context"
        );
    };
    let tool = Tool { name: "think".to_owned(), weight: 1.0, seconds: Distribution::Uniform(low, high) };
    Ok(Shape {
        first_prompt: Distribution::Fixed(first as f64),
        next_prompt: Distribution::Fixed(NEXT_PROMPT as f64),
        output: Distribution::Fixed(output as f64),
        turns: Distribution::Fixed(turns as f64),
        tools: vec![tool],
        hint: Hint::Noisy(0.1),
        max_context: context,
    })
}

fn described(shape: &Shape, (low, high): (f64, f64)) -> String {
    let Distribution::Fixed(output) = shape.output else { return String::new() };
    let Distribution::Fixed(turns) = shape.turns else { return String::new() };
    format!(
        "sessions of {turns} turns of {output} tokens, contexts that end at {} tokens, think U({low}, {high}) s",
        shape.max_context
    )
}

fn thinkers(args: &Exp1Args, name: &str, context: u64) -> Result<Load> {
    refuse(args, &[("--rate", args.rate.is_some())])?;
    let shape = shape(args, 3, context)?;
    let (agents, think) = (args.agents.unwrap_or(80), think(args)?);
    Ok(Load {
        description: format!("{name} of {agents} agents: {}", described(&shape, think)),
        notes: vec![],
        agents,
        sessions: args.sessions,
        ramp: seconds("--think", think.1)?,
        seed: args.seed,
        context: shape.max_context,
        shared: 0,
        span: span(args, 120.0, if args.sessions.is_some() { 0.0 } else { 30.0 })?,
        source: Source::Closed(shape),
    })
}

fn reported(args: &Exp1Args) -> Result<Load> {
    refuse(args, &[("--sessions", args.sessions.is_some())])?;
    let rate = args.rate.unwrap_or(0.2);
    ensure!(
        rate.is_finite() && rate > 0.0,
        "--rate {rate} is not above 0; give sessions per second, e.g. 0.2"
    );
    let shape = shape(args, 2, 2_048)?;
    let agents = args.agents.unwrap_or(80);
    Ok(Load {
        description: format!("{agents} sessions, Poisson {rate}/s: {}", described(&shape, think(args)?)),
        notes: vec![],
        agents,
        sessions: None,
        ramp: Duration::ZERO,
        seed: args.seed,
        context: shape.max_context,
        shared: 0,
        span: span(args, 900.0, 0.0)?,
        source: Source::Poisson(shape, rate),
    })
}

fn coding(args: &Exp1Args, max_context: u64) -> Result<Load> {
    let fixed = [
        ("--rate", args.rate.is_some()),
        ("--think", !args.think.is_empty()),
        ("--turns", args.turns.is_some()),
        ("--turn-tokens", args.turn_tokens.is_some()),
    ];
    refuse(args, &fixed)?;
    let context = args.context.unwrap_or(max_context.min(CODING_CONTEXT));
    ensure!(context >= 64, "--context {context} is too short for coding agents; give 64 or more");
    let mut shape = Shape { max_context: context, ..Shape::coding_agents() };
    let mut notes = Vec::new();
    if context < CODING_CONTEXT {
        let scale = context as f64 / CODING_CONTEXT as f64;
        for tokens in [&mut shape.first_prompt, &mut shape.next_prompt, &mut shape.output] {
            if let Distribution::LogNormal(median, _) = tokens {
                *median *= scale;
            }
        }
        notes.push(format!(
            "Token counts of coding agents are scaled by {scale:.3}: contexts end at {context} tokens instead of \
             {CODING_CONTEXT}. Waits are as published."
        ));
    }
    let agents = args.agents.unwrap_or(80);
    Ok(Load {
        description: format!(
            "closed loop of {agents} coding agents: published waits and token counts, contexts up to {context} tokens, \
             clients name tools but no times"
        ),
        notes,
        agents,
        sessions: args.sessions,
        ramp: Duration::from_secs(20),
        seed: args.seed,
        context,
        shared: 0,
        span: span(args, 120.0, if args.sessions.is_some() { 0.0 } else { 30.0 })?,
        source: Source::Closed(shape),
    })
}

fn replayed(args: &Exp1Args, path: &Path, max_context: u64) -> Result<Load> {
    let fixed = [
        ("--rate", args.rate.is_some()),
        ("--think", !args.think.is_empty()),
        ("--turns", args.turns.is_some()),
        ("--turn-tokens", args.turn_tokens.is_some()),
        ("--agents", args.agents.is_some()),
        ("--sessions", args.sessions.is_some()),
    ];
    ensure!(
        path.extension().is_some_and(|extension| extension == "csv") || path.exists(),
        "--workload: there is no `{}`; known are closed, hard, reported, coding, or the name of a CSV file",
        path.display()
    );
    refuse(args, &fixed)?;
    let trace = Trace::read(path, args.context.unwrap_or(max_context).min(max_context))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Load {
        description: format!("{} sessions of {name} ({})", trace.workload.len(), trace.columns),
        notes: vec![],
        agents: trace.workload.len() as u32,
        sessions: None,
        ramp: Duration::ZERO,
        seed: args.seed,
        context: args.context.unwrap_or(trace.longest),
        shared: 0,
        span: span(args, 900.0, 0.0)?,
        source: Source::Trace(trace),
    })
}

fn span(args: &Exp1Args, measured: f64, warm_up: f64) -> Result<RunSpan> {
    let warm_up = seconds("--warm-up", args.warm_up.unwrap_or(warm_up))?;
    let measured = seconds("--seconds", args.seconds.unwrap_or(measured))?;
    ensure!(!measured.is_zero(), "--seconds 0 measures nothing; give more");
    Ok(RunSpan { warm_up, end: warm_up + measured })
}

fn seconds(flag: &str, value: f64) -> Result<Duration> {
    ensure!((0.0..=86_400.0).contains(&value), "{flag} {value} is out of range; give 0 to 86400 seconds");
    Ok(Duration::from_secs_f64(value))
}
