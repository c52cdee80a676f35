//! Sessions that stop, more than the device has memory for: what they hold, and how they go on.

use super::Bench;
use crate::remark;
use crate::statistics::median;
use anyhow::{Result, ensure};
use djinn_device::Ops;
use djinn_engine::debug::{Breakpoint, DebugSetup, Debugger, Filter, TokenKind};
use djinn_engine::{Happening, SessionId};
use djinn_scheduler::{Phase, Residency};
use djinn_vmu::Direction;
use serde::{Deserialize, Serialize};
use std::time::Instant;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Paused {
    /// Sessions that stopped at the same time.
    pub(crate) stopped: u32,
    /// Those of them whose pages were on the host then, or given up.
    pub(crate) on_host: u32,
    pub(crate) given_up: u32,
    /// Generated tokens of all sessions, and those that equal the run without stops.
    pub(crate) tokens: u64,
    pub(crate) equal_tokens: u64,
    /// From the first session's opening until all had stopped.
    pub(crate) stop_all_s: f64,
    /// From the first word to go on until all were done.
    pub(crate) resume_all_s: f64,
    /// Sessions that went on alone, with pages on the device and on the host.
    pub(crate) resident: Resumed,
    pub(crate) parked: Resumed,
    /// Copies of pages to the host and back, by the device's clock: median of 1e9 bytes/s, and how many.
    pub(crate) out_gbps: Option<f64>,
    pub(crate) in_gbps: Option<f64>,
    pub(crate) copies: [u32; 2],
    /// Device memory over time.
    pub(crate) memory: Vec<Memory>,
}

/// How sessions went on, one at a time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Resumed {
    pub(crate) sessions: u32,
    /// From the word to go on to the next token; medians.
    pub(crate) first_token_ms: Option<f64>,
    /// Between two tokens after that.
    pub(crate) token_ms: Option<f64>,
    /// By how much the first is longer.
    pub(crate) restore_ms: Option<f64>,
    /// Every session's.
    pub(crate) samples_ms: Vec<f64>,
}

/// Device memory at a moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Memory {
    pub(crate) at_s: f64,
    pub(crate) weights: u64,
    pub(crate) activations: u64,
    /// Keys and values of sessions that compute.
    pub(crate) kv_running: u64,
    /// Of sessions that are stopped.
    pub(crate) kv_stopped: u64,
    /// Of sessions that are stopped, on the host.
    pub(crate) host_stopped: u64,
    pub(crate) stopped: u32,
}

pub(super) fn measure<D: Ops>(bench: &mut Bench<'_, D>, hook: &str) -> Result<Paused> {
    let (sessions, tokens) = (bench.args.sessions, bench.args.tokens);
    let prompt = bench.args.context - tokens;
    let want = {
        let ids = open_all(bench, prompt, &DebugSetup::default())?;
        bench.settle()?;
        ids.into_iter().map(|id| bench.generated(id)).collect::<Result<Vec<_>>>()?
    };
    bench.clear()?;
    remark(&format!("{sessions} sessions without stops: done"));
    let middle = u64::from(tokens / 2);
    let filter = Filter { tokens: TokenKind::Generated, steps: middle..middle + 1, ..Filter::default() };
    let stop = Breakpoint { filter, hits: Some(1), ..bench.breakpoint(hook)? };
    let began = Instant::now();
    bench.service.take_transfers();
    let mut memory = Vec::new();
    let ids = open_all(bench, prompt, &DebugSetup { breakpoints: vec![stop], steering: Vec::new() })?;
    let mut stopped = 0;
    while stopped < sessions {
        for (id, happening) in bench.advance()? {
            ensure!(!matches!(happening, Happening::Token { finish: Some(_), .. }), "{id} did not stop");
            stopped += u32::from(matches!(happening, Happening::Paused(_)));
        }
        look_at_memory(bench, began, &mut memory);
    }
    bench.settle()?;
    let stop_all_s = began.elapsed().as_secs_f64();
    look_at_memory(bench, began, &mut memory);
    let residency = |id: &SessionId| bench.service.state().session(*id).map(|session| session.residency());
    let at =
        |place: Residency| ids.iter().filter(|id| residency(id) == Some(place)).copied().collect::<Vec<_>>();
    let (here, away, gone) = (at(Residency::Device), at(Residency::Host), at(Residency::Gone));
    remark(&format!(
        "stopped: {} on the device, {} on the host, {} given up",
        here.len(),
        away.len(),
        gone.len()
    ));
    let resident = resume_alone(bench, &here[here.len().saturating_sub(5)..])?;
    let parked = resume_alone(bench, &away[..away.len().min(5)])?;
    let began_again = Instant::now();
    for &id in &ids {
        if bench.service.paused_at(id).is_some() {
            bench.service.resume_until(id, None)?;
        }
    }
    while bench.service.state().sessions().any(|session| session.is_ready()) {
        bench.advance()?;
        look_at_memory(bench, began, &mut memory);
    }
    let resume_all_s = began_again.elapsed().as_secs_f64();
    look_at_memory(bench, began, &mut memory);
    let (mut all, mut equal_tokens) = (0, 0);
    for (id, want) in ids.iter().zip(&want) {
        let got = bench.generated(*id)?;
        all += want.len() as u64;
        equal_tokens += got.iter().zip(want).filter(|(a, b)| a == b).count() as u64;
    }
    let copies = bench.service.take_transfers();
    let of = |direction| {
        copies.iter().map(|(_, copy)| copy).filter(move |copy| copy.direction == direction && copy.bytes > 0)
    };
    let rates = |direction| {
        median(of(direction).filter_map(|copy| Some(copy.bytes as f64 / copy.moved()?.as_secs_f64() / 1e9)))
    };
    bench.clear()?;
    Ok(Paused {
        stopped,
        on_host: away.len() as u32,
        given_up: gone.len() as u32,
        tokens: all,
        equal_tokens,
        stop_all_s,
        resume_all_s,
        resident,
        parked,
        out_gbps: rates(Direction::Out),
        in_gbps: rates(Direction::In),
        copies: [Direction::Out, Direction::In].map(|direction| of(direction).count() as u32),
        memory,
    })
}

fn open_all<D: Ops>(bench: &mut Bench<'_, D>, prompt: u32, debug: &DebugSetup) -> Result<Vec<SessionId>> {
    let tokens = bench.args.tokens;
    (0..bench.args.sessions).map(|seed| bench.open(seed, prompt, tokens, debug.clone())).collect()
}

/// Lets sessions go on, one at a time.
fn resume_alone<D: Ops>(bench: &mut Bench<'_, D>, ids: &[SessionId]) -> Result<Resumed> {
    let (mut firsts, mut between) = (Vec::new(), Vec::new());
    for &id in ids {
        let began = Instant::now();
        bench.service.resume_until(id, None)?;
        let mut times = Vec::new();
        while bench.service.state().session(id).is_some_and(|session| session.is_ready()) {
            for (session, happening) in bench.advance()? {
                if session == id && matches!(happening, Happening::Token { .. }) {
                    times.push(began.elapsed().as_secs_f64() * 1e3);
                }
            }
        }
        firsts.extend(times.first());
        between.extend(times.windows(2).map(|pair| pair[1] - pair[0]));
    }
    let (first, token) = (median(firsts.iter().copied()), median(between));
    Ok(Resumed {
        sessions: ids.len() as u32,
        first_token_ms: first,
        token_ms: token,
        restore_ms: first.zip(token).map(|(first, token)| first - token),
        samples_ms: firsts,
    })
}

/// Notes what the device holds, twenty times a second.
fn look_at_memory<D: Ops>(bench: &Bench<'_, D>, began: Instant, memory: &mut Vec<Memory>) {
    const EVERY_S: f64 = 0.05;
    let at_s = began.elapsed().as_secs_f64();
    if memory.last().is_some_and(|last| at_s - last.at_s < EVERY_S) {
        return;
    }
    let (state, engine) = (bench.service.state(), bench.service.engine());
    let (segments, page) = (&engine.plan().segments, engine.plan().kv.page_bytes());
    let is_stopped = |phase| phase == Phase::Paused;
    let pages = |stopped: bool| -> u64 {
        let those = state.sessions().filter(|session| is_stopped(session.phase) == stopped);
        those.map(|session| u64::from(session.device_pages())).sum()
    };
    let stopped = || state.sessions().filter(|session| is_stopped(session.phase));
    memory.push(Memory {
        at_s,
        weights: segments.resident,
        activations: segments.stack,
        kv_running: pages(false) * page,
        kv_stopped: pages(true) * page,
        host_stopped: stopped().map(|session| u64::from(session.host_pages())).sum::<u64>() * page,
        stopped: stopped().count() as u32,
    });
}
