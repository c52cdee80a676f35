//! Workloads: arrivals, tokens and waits of sessions.

use super::rng::Rng;
use crate::cost::seconds;
use std::time::Duration;

/// A distribution of numbers.
#[derive(Clone, Debug, PartialEq)]
pub enum Distribution {
    /// Always this.
    Fixed(f64),
    /// Uniform between two.
    Uniform(f64, f64),
    /// Log-normal by its median and the standard deviation of the logarithm.
    LogNormal(f64, f64),
    /// One of several, by weight.
    Mix(Vec<(f64, Distribution)>),
}

impl Distribution {
    /// Log-normal by its median and 90th percentile.
    pub fn p50_p90(median: f64, p90: f64) -> Self {
        Distribution::LogNormal(median, (p90 / median).ln() / 1.281_551_6)
    }

    /// One number.
    pub fn sample(&self, rng: &mut Rng) -> f64 {
        match self {
            Distribution::Fixed(value) => *value,
            Distribution::Uniform(low, high) => low + (high - low) * rng.uniform(),
            Distribution::LogNormal(median, sigma) => median * (sigma * rng.normal()).exp(),
            Distribution::Mix(parts) => {
                let total: f64 = parts.iter().map(|(weight, _)| weight).sum();
                let mut at = rng.uniform() * total;
                let chosen = parts.iter().find(|(weight, _)| {
                    at -= weight;
                    at < 0.0
                });
                chosen.or(parts.last()).map_or(0.0, |(_, part)| part.sample(rng))
            }
        }
    }

    /// One whole number of at least 1.
    fn count(&self, rng: &mut Rng) -> u64 {
        (self.sample(rng).round() as u64).max(1)
    }
}

/// A tool that turns end with.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name, as in signals.
    pub name: String,
    /// How often it is called, against the others.
    pub weight: f64,
    /// How long it takes, in seconds.
    pub seconds: Distribution,
}

/// Clients' estimates of their waits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Hint {
    /// Only the tool's name.
    ToolOnly,
    /// The truth.
    Exact,
    /// The truth times a log-normal error; this is the standard deviation of its logarithm.
    Noisy(f64),
}

/// The shape of sessions.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Tokens of the first prompt.
    pub first_prompt: Distribution,
    /// Tokens of each further prompt.
    pub next_prompt: Distribution,
    /// Tokens generated per turn.
    pub output: Distribution,
    /// Turns of a session.
    pub turns: Distribution,
    /// The tools that turns end with.
    pub tools: Vec<Tool>,
    /// Clients' estimates.
    pub hint: Hint,
    /// Sessions end before their context would exceed this.
    pub max_context: u64,
}

/// One turn of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadTurn {
    /// New tokens.
    pub prompt: u64,
    /// Tokens generated.
    pub output: u64,
    /// The tool called at its end.
    pub tool: Option<String>,
    /// Time until the next turn, or until the session is closed.
    pub wait: Duration,
    /// The client's estimate of that time.
    pub hint: Option<Duration>,
}

/// One session.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    /// Lower goes first.
    pub priority: i32,
    /// At least one.
    pub turns: Vec<WorkloadTurn>,
}

impl Script {
    /// Tokens that the context holds at the end.
    pub fn tokens(&self) -> u64 {
        self.turns.iter().map(|turn| turn.prompt + turn.output).sum()
    }
}

impl Shape {
    /// A random session of this shape.
    pub fn script(&self, rng: &mut Rng) -> Script {
        let (mut turns, mut tokens) = (Vec::new(), 0);
        for at in 0..self.turns.count(rng) {
            let prompt = if at == 0 { &self.first_prompt } else { &self.next_prompt }.count(rng);
            let output = self.output.count(rng);
            tokens += prompt + output;
            if at > 0 && tokens > self.max_context {
                break;
            }
            let (tool, wait) = self.wait(rng);
            let hint = match self.hint {
                Hint::ToolOnly => None,
                Hint::Exact => Some(wait),
                Hint::Noisy(sigma) => Some(wait.mul_f64((sigma * rng.normal()).exp())),
            };
            turns.push(WorkloadTurn { prompt, output, tool, wait, hint });
        }
        Script { priority: 0, turns }
    }

    fn wait(&self, rng: &mut Rng) -> (Option<String>, Duration) {
        let total: f64 = self.tools.iter().map(|tool| tool.weight).sum();
        let mut at = rng.uniform() * total;
        let chosen = self.tools.iter().find(|tool| {
            at -= tool.weight;
            at < 0.0
        });
        let Some(tool) = chosen.or(self.tools.last()) else { return (None, Duration::ZERO) };
        (Some(tool.name.clone()), seconds(tool.seconds.sample(rng)))
    }

    /// Agents that think for `U(10, 20)` seconds after each of `turns` turns of 128 tokens, in contexts that end near
    /// 2,048 tokens.
    pub fn thinkers(turns: u32) -> Self {
        let new_tokens = 16;
        let first = 2_000 - turns as u64 * 128 - (turns as u64 - 1) * new_tokens;
        let seconds = Distribution::Uniform(10.0, 20.0);
        Shape {
            first_prompt: Distribution::Fixed(first as f64),
            next_prompt: Distribution::Fixed(new_tokens as f64),
            output: Distribution::Fixed(128.0),
            turns: Distribution::Fixed(turns as f64),
            tools: vec![Tool { name: "think".to_owned(), weight: 1.0, seconds }],
            hint: Hint::Noisy(0.1),
            max_context: 2_048,
        }
    }

    /// Coding agents, after published figures: 61 % of tool calls take under a second, 27 % up to 10 s, 8 % up to a
    /// minute; the other 4 % take most of the time. Contexts begin at 25k tokens.
    pub fn coding_agents() -> Self {
        use Distribution::{LogNormal, Mix};
        let short = || LogNormal(0.3, 0.55);
        let (middle, long, longest) =
            (|| LogNormal(3.0, 0.5), || LogNormal(25.0, 0.4), || LogNormal(330.0, 0.8));
        let tool = |name: &str, weight, seconds| Tool { name: name.to_owned(), weight, seconds };
        Shape {
            first_prompt: LogNormal(25_000.0, 0.15),
            next_prompt: Distribution::p50_p90(663.0, 3_640.0),
            output: Distribution::p50_p90(216.0, 898.0),
            turns: Distribution::p50_p90(15.0, 135.0),
            tools: vec![
                tool("read", 35.0, LogNormal(0.15, 0.6)),
                tool(
                    "bash",
                    55.0,
                    Mix(vec![(26.0, short()), (22.0, middle()), (5.0, long()), (2.0, longest())]),
                ),
                tool("task", 10.0, Mix(vec![(5.0, middle()), (3.0, long()), (2.0, longest())])),
            ],
            hint: Hint::ToolOnly,
            max_context: 65_536,
        }
    }
}

/// A source of sessions.
#[derive(Clone, Debug)]
pub(crate) struct Agent {
    pub(crate) start: Duration,
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    Once(Option<Script>),
    /// Sessions of a shape, and how many are left.
    Loop(Box<Shape>, Rng, u64),
}

impl Agent {
    /// The agent's next session.
    pub(crate) fn next(&mut self) -> Option<Script> {
        match &mut self.source {
            Source::Once(script) => script.take(),
            Source::Loop(shape, rng, left) => {
                *left = left.checked_sub(1)?;
                Some(shape.script(rng))
            }
        }
    }
}

/// A workload: agents, each with its own seeded numbers, so that an agent's actions do not depend on how it is served.
#[derive(Clone, Debug)]
pub struct Workload {
    pub(crate) agents: Vec<Agent>,
    pub(crate) shared: u64,
}

impl Workload {
    /// Makes all first prompts begin with the same `tokens` tokens, as far as they go.
    pub fn share(&mut self, tokens: u64) {
        self.shared = tokens;
    }

    /// Tokens that all first prompts begin with.
    pub fn shared(&self) -> u64 {
        self.shared
    }

    /// `agents` agents, each running one session of `shape` after another, started within `ramp`.
    pub fn closed_loop(shape: &Shape, agents: u32, ramp: Duration, seed: u64) -> Self {
        Self::looping(shape, agents, u64::MAX, ramp, seed)
    }

    /// `agents` agents, each running `sessions_each` sessions of `shape` one after another, started within `ramp`.
    pub fn finite(shape: &Shape, agents: u32, sessions_each: u64, ramp: Duration, seed: u64) -> Self {
        Self::looping(shape, agents, sessions_each, ramp, seed)
    }

    /// `agents` agents, started within `ramp`. Each runs one session of `shape` with as many turns as its context has
    /// room for; the shape's number of turns is ignored.
    pub fn endless(shape: &Shape, agents: u32, ramp: Duration, seed: u64) -> Self {
        const TURNS: f64 = 100_000.0;
        let shape = Shape { turns: Distribution::Fixed(TURNS), ..shape.clone() };
        Self::looping(&shape, agents, 1, ramp, seed)
    }

    fn looping(shape: &Shape, agents: u32, sessions_each: u64, ramp: Duration, seed: u64) -> Self {
        let root = Rng::new(seed);
        let agent = |at: u32| {
            let mut rng = root.split(at as u64);
            let start = ramp.mul_f64(rng.uniform());
            Agent { start, source: Source::Loop(Box::new(shape.clone()), rng, sessions_each) }
        };
        Workload { agents: (0..agents).map(agent).collect(), shared: 0 }
    }

    /// `sessions` sessions of `shape` that arrive at random, `per_second` on average.
    pub fn poisson(shape: &Shape, sessions: u32, per_second: f64, seed: u64) -> Self {
        let root = Rng::new(seed);
        let (mut arrivals, mut at) = (root.split(u64::MAX), 0.0);
        let scripts = (0..sessions).map(|index| {
            at += arrivals.exponential() / per_second.max(1e-9);
            (seconds(at), shape.script(&mut root.split(index as u64)))
        });
        Self::open(scripts.collect())
    }

    /// Sessions that come at given times.
    pub fn open(scripts: Vec<(Duration, Script)>) -> Self {
        let agent = |(start, script): (Duration, Script)| {
            let script = Some(script).filter(|script| !script.turns.is_empty());
            Agent { start, source: Source::Once(script) }
        };
        Workload { agents: scripts.into_iter().map(agent).collect(), shared: 0 }
    }

    /// Agents, or sessions of an open workload.
    pub fn len(&self) -> usize {
        self.agents.len()
    }

    /// Whether no session comes.
    pub fn is_empty(&self) -> bool {
        self.agents.is_empty()
    }
}
