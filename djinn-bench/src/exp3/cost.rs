//! What breakpoints cost those who have none: steps of a batch while nothing is armed, while a breakpoint waits for what
//! never comes, and while a session stops in every step.

use super::Bench;
use crate::remark;
use crate::statistics::median;
use anyhow::{Result, ensure};
use djinn_device::Ops;
use djinn_engine::debug::{BreakCondition, Breakpoint, BreakpointId, DebugSetup, Debugger};
use djinn_engine::{Happening, SessionId};
use serde::{Deserialize, Serialize};
use std::time::Instant;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cost {
    /// Sessions that decode together.
    pub(crate) batch: u32,
    /// Tokens of their contexts at first.
    pub(crate) context: u32,
    /// Between two tokens of the session that has no breakpoint.
    pub(crate) kinds: Vec<Kind>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Kind {
    /// `nothing armed`, `armed` or `a stop in every step`.
    pub(crate) name: String,
    pub(crate) step_ms: f64,
    pub(crate) samples_ms: Vec<f64>,
}

/// Steps of one kind before the next kind has its turn: kinds are measured beside each other.
const BLOCK: u32 = 10;
/// Tokens of a prompt.
const PROMPT: u32 = 128;
/// Steps before anything is timed.
const WARM_UP: u32 = 2 * BLOCK;

pub(super) fn measure<D: Ops>(bench: &mut Bench<'_, D>, hook: &str) -> Result<Cost> {
    let args = bench.args;
    let names = ["nothing armed", "armed", "a stop in every step"];
    let prompt = PROMPT.min(args.context / 2);
    let fit = (args.context - prompt - tokens_of(WARM_UP)) / (tokens_of(BLOCK) * names.len() as u32);
    let rounds = args.steps.div_ceil(BLOCK).min(fit);
    let mut samples: [Vec<f64>; 3] = Default::default();
    let mut ids = Vec::new();
    for seed in 0..args.batch {
        ids.push(bench.open(1_000 + seed, prompt, args.context - prompt, DebugSetup::default())?);
    }
    // Until all decode.
    block(bench, &ids, WARM_UP, None)?;
    let width = bench.service.hook(hook)?.columns.1 as usize;
    let never = BreakCondition::Probe { direction: vec![1.0; width], above: f32::MAX };
    for round in 0..rounds as usize {
        for turn in 0..names.len() {
            let kind = (round + turn) % names.len();
            let mut armed: Vec<(SessionId, BreakpointId)> = Vec::new();
            if kind == 1 {
                let stop = Breakpoint { condition: Some(never.clone()), ..bench.breakpoint(hook)? };
                for &id in &ids[1..] {
                    armed.push((id, bench.service.set_breakpoint(id, stop.clone())?));
                }
            }
            let stop = (kind == 2).then(|| bench.breakpoint(hook)).transpose()?;
            samples[kind].extend(block(bench, &ids, BLOCK, stop)?);
            for (id, breakpoint) in armed {
                bench.service.clear_breakpoint(id, breakpoint)?;
            }
        }
    }
    bench.clear()?;
    let kinds = names.into_iter().zip(samples).map(|(name, samples_ms)| {
        let step_ms = median(samples_ms.iter().copied()).expect("at least one step");
        remark(&format!("{name}: {step_ms:.3} ms a step of {} sessions", args.batch));
        Kind { name: name.to_owned(), step_ms, samples_ms }
    });
    Ok(Cost { batch: args.batch, context: prompt, kinds: kinds.collect() })
}

/// Tokens that the first session generates in a [`block`] of `steps`.
const fn tokens_of(steps: u32) -> u32 {
    steps + 2
}

/// Times between tokens of the first session over `steps` steps; the first is not counted. With `stop`, another
/// session stops in every step, and goes on in the next.
fn block<D: Ops>(
    bench: &mut Bench<'_, D>,
    ids: &[SessionId],
    steps: u32,
    stop: Option<Breakpoint>,
) -> Result<Vec<f64>> {
    let stop = stop.map(|stop| Breakpoint { hits: Some(1), ..stop });
    let (mut times, mut seen, mut next) = (Vec::new(), None, 0);
    let mut ended = false;
    while times.len() <= steps as usize {
        ensure!(!ended, "{} ended after {} of {steps} steps", ids[0], times.len());
        for (id, happening) in bench.advance()? {
            match happening {
                Happening::Token { finish, .. } if id == ids[0] => {
                    ended |= finish.is_some();
                    let now = Instant::now();
                    times.extend(
                        seen.replace(now).map(|before| now.duration_since(before).as_secs_f64() * 1e3),
                    );
                    if let Some(stop) = &stop {
                        next = next % (ids.len() - 1) + 1;
                        bench.service.set_breakpoint(ids[next], stop.clone())?;
                    }
                }
                Happening::Paused(_) => bench.service.resume_until(id, None)?,
                _ => {}
            }
        }
    }
    // Those that were armed last stop once more.
    for &id in &ids[1..] {
        for (breakpoint, ..) in bench.service.breakpoints(id)? {
            bench.service.clear_breakpoint(id, breakpoint)?;
        }
        if bench.service.paused_at(id).is_some() {
            bench.service.resume_until(id, None)?;
        }
    }
    Ok(times.split_off(1))
}
