//! What experiment 1 found, as it lies in JSON.

#[cfg(test)]
mod tests;

use super::bed::{Ran, Swap};
use super::map::{Map, Seen};
use super::rows;
use djinn_engine::DeviceTimes;
use djinn_scheduler::Capacity;
use djinn_scheduler::sim::{Profile, Report, percentile};
use djinn_vmu::Direction;
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Exp1 {
    pub(crate) config: Config,
    /// Pages and rows that the scheduler had.
    pub(crate) capacity: Capacity,
    /// Whole contexts that the device's pages hold, their common prefix counted once.
    pub(crate) contexts_on_device: u32,
    /// Where the profile is from.
    pub(crate) times: String,
    pub(crate) profile: Profile,
    /// What a reader should know.
    pub(crate) notes: Vec<String>,
    /// Turns of one agent alone.
    pub(crate) unloaded: Option<Unloaded>,
    pub(crate) policies: Vec<Row>,
    pub(crate) density: Option<Density>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Config {
    pub(crate) model: String,
    /// `simulated` where no model ran.
    pub(crate) device: String,
    pub(crate) vram_bytes: u64,
    pub(crate) host_kv_bytes: u64,
    pub(crate) workload: String,
    pub(crate) agents: u32,
    pub(crate) context: u64,
    pub(crate) warm_up_s: f64,
    pub(crate) seconds: f64,
    pub(crate) seed: u64,
}

/// Latency without load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Unloaded {
    pub(crate) turns: usize,
    pub(crate) p50_s: f64,
    pub(crate) p99_s: f64,
}

/// A percentile of turn latency, and the same of each of its parts by itself, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Split {
    pub(crate) latency_s: f64,
    pub(crate) queue_s: f64,
    pub(crate) restore_s: f64,
    pub(crate) prefill_s: f64,
    pub(crate) decode_s: f64,
}

/// The median and the 99th percentile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

/// What signals cost, and how soon they had effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Signals {
    pub(crate) count: usize,
    /// The scheduler's time for one.
    pub(crate) cost_us: Option<Spread>,
    /// From a session's signal until the device was asked to copy its pages.
    pub(crate) submit_ms: Option<Spread>,
    /// From that call to the first byte, by the device's clock.
    pub(crate) call_to_first_byte_ms: Option<Spread>,
    /// From the signal to the first byte.
    pub(crate) first_byte_ms: Option<Spread>,
    /// From the signal until the pages were free for others.
    pub(crate) free_ms: Option<Spread>,
}

/// How a device's steps followed one another, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StepShares {
    /// The device's time between a step and the next one of the same turns, of this and the time in steps.
    pub(crate) idle: f64,
    /// Steps that were enqueued while the previous one was under way.
    pub(crate) ahead: f64,
    /// Steps that were replayed from a capture.
    pub(crate) replayed: f64,
}

impl StepShares {
    /// `None` without steps that the device timed.
    pub(super) fn of(times: &DeviceTimes, replayed: u64) -> Option<Self> {
        let share = |steps: u64| steps as f64 / times.steps as f64;
        let shares =
            StepShares { idle: times.idle_share(), ahead: share(times.ahead), replayed: share(replayed) };
        (times.steps > 0).then_some(shares)
    }
}

/// The same run in the simulator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Simulated {
    pub(crate) turns: usize,
    pub(crate) sessions: u64,
    pub(crate) tokens_per_s: f64,
    pub(crate) p50_s: f64,
    pub(crate) p99_s: f64,
    /// simulated / measured − 1.
    pub(crate) turns_error: Option<f64>,
    pub(crate) sessions_error: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) policy: String,
    /// Why the run ended early.
    pub(crate) failure: Option<String>,
    /// The span that turns, sessions, tokens and signals are of.
    pub(crate) measured_s: f64,
    pub(crate) turns: usize,
    pub(crate) sessions: u64,
    pub(crate) tokens: u64,
    pub(crate) tokens_per_s: f64,
    /// Tokens per second beside those of `none`.
    pub(crate) ratio: Option<f64>,
    pub(crate) p50: Split,
    pub(crate) p99: Split,
    /// Of the whole run, from here.
    pub(crate) arrived: u64,
    pub(crate) finished: u64,
    pub(crate) refused: u64,
    /// Neither finished nor refused at the end.
    pub(crate) open: u64,
    pub(crate) swaps_out: u64,
    pub(crate) swaps_in: u64,
    /// Copied: pages that did not change since they came back leave without a copy, but for the simulator.
    pub(crate) bytes_out: u64,
    pub(crate) bytes_in: u64,
    /// Bytes by the time in which they moved, by the device's clock.
    pub(crate) out_gbps: Option<f64>,
    pub(crate) in_gbps: Option<f64>,
    pub(crate) failed_copies: u64,
    pub(crate) discards: u64,
    /// The most sessions whose pages were on the device at once.
    pub(crate) admitted: Option<u32>,
    /// Tokens of first prompts that were found on the device, and not computed again.
    pub(crate) found: Option<u64>,
    pub(crate) steps: u64,
    /// Sessions that decode in a step, on average.
    pub(crate) mean_decodes: f64,
    pub(crate) step_shares: Option<StepShares>,
    pub(crate) signals: Signals,
    pub(crate) simulated: Option<Simulated>,
    /// Every turn of the measured span: session; when it was asked for; queue, restore, prefill, decode (all in
    /// seconds); tokens.
    #[serde(with = "rows")]
    pub(crate) turn_samples: Vec<[f64; 7]>,
    /// The machine over time: seconds; sessions, those that would compute; on the device, on the host, moving, without
    /// pages; pages held on the device and on the host.
    #[serde(with = "rows")]
    pub(crate) samples: Vec<[f64; 9]>,
    pub(crate) map: Map,
}

/// How many agents hold the latency bound.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Density {
    /// The bound: a multiple of the unloaded P99.
    pub(crate) factor: f64,
    pub(crate) bound_s: f64,
    pub(crate) points: Vec<Point>,
}

/// A policy under a number of agents.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) policy: String,
    pub(crate) agents: u32,
    pub(crate) turns: usize,
    pub(crate) p50: Split,
    pub(crate) p99: Split,
    pub(crate) holds: bool,
    /// P99 of the same run in the simulator.
    pub(crate) simulated_p99_s: Option<f64>,
}

impl Density {
    /// The most agents that hold the bound under `policy`; 0 if none of those measured does.
    pub(crate) fn most(&self, policy: &str) -> u32 {
        let holding = self.points.iter().filter(|point| point.policy == policy && point.holds);
        holding.map(|point| point.agents).max().unwrap_or(0)
    }

    /// The point of the most agents that hold the bound under `policy`.
    pub(crate) fn last_to_hold(&self, policy: &str) -> Option<&Point> {
        let most = self.most(policy);
        self.points.iter().find(|point| point.policy == policy && point.agents == most)
    }

    /// Numbers of agents that were measured, ascending.
    pub(crate) fn agents(&self) -> Vec<u32> {
        let mut agents: Vec<u32> = self.points.iter().map(|point| point.agents).collect();
        agents.sort_unstable();
        agents.dedup();
        agents
    }

    pub(crate) fn policies(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for point in &self.points {
            if !names.contains(&point.policy.as_str()) {
                names.push(&point.policy);
            }
        }
        names
    }
}

impl Unloaded {
    pub(super) fn of(report: &Report) -> Self {
        let at = |share| report.latency(share).as_secs_f64();
        Unloaded { turns: report.turns.len(), p50_s: at(0.5), p99_s: at(0.99) }
    }
}

impl Simulated {
    /// Beside what was measured.
    pub(super) fn of(report: &Report, live: &Row) -> Self {
        let error = |simulated: f64, live: f64| (live > 0.0).then(|| simulated / live - 1.0);
        Simulated {
            turns: report.turns.len(),
            sessions: report.finished_in_span,
            tokens_per_s: report.tokens_per_second(),
            p50_s: report.latency(0.5).as_secs_f64(),
            p99_s: report.latency(0.99).as_secs_f64(),
            turns_error: error(report.turns.len() as f64, live.turns as f64),
            sessions_error: error(report.finished_in_span as f64, live.sessions as f64),
        }
    }
}

impl Row {
    pub(super) fn of(policy: &str, ran: Ran) -> Self {
        let Ran { report, seen: Seen { map, admitted }, swaps, steps } = ran;
        let sum = |direction| gbps(swaps.iter().filter(|swap| swap.direction == direction));
        Row {
            policy: policy.to_owned(),
            measured_s: report.measured.as_secs_f64(),
            turns: report.turns.len(),
            sessions: report.finished_in_span,
            tokens: report.tokens,
            tokens_per_s: report.tokens_per_second(),
            ratio: None,
            p50: split(&report, 0.5),
            p99: split(&report, 0.99),
            arrived: report.arrived,
            finished: report.finished,
            refused: report.refused,
            open: report.open,
            swaps_out: report.swaps_out,
            swaps_in: report.swaps_in,
            bytes_out: report.bytes_out,
            bytes_in: report.bytes_in,
            out_gbps: sum(Direction::Out),
            in_gbps: sum(Direction::In),
            failed_copies: report.failed_copies,
            discards: report.discards,
            admitted: Some(admitted),
            found: Some(report.found),
            steps: report.steps,
            mean_decodes: report.mean_decodes(),
            step_shares: steps,
            signals: signals(&report, &swaps),
            simulated: None,
            turn_samples: turn_samples(&report),
            samples: samples(&report),
            map,
            failure: report.failure,
        }
    }
}

/// Tokens per second beside those of `none`, where that was measured.
pub(super) fn compare(rows: &mut [Row]) {
    let none =
        rows.iter().find(|row| row.policy == "none" && row.failure.is_none()).map(|row| row.tokens_per_s);
    for row in rows {
        row.ratio = none.filter(|&none| none > 0.0).map(|none| row.tokens_per_s / none);
    }
}

fn split(report: &Report, share: f64) -> Split {
    let parts = report.parts(share);
    Split {
        latency_s: report.latency(share).as_secs_f64(),
        queue_s: parts.queue.as_secs_f64(),
        restore_s: parts.restore.as_secs_f64(),
        prefill_s: parts.prefill.as_secs_f64(),
        decode_s: parts.decode.as_secs_f64(),
    }
}

fn gbps<'a>(swaps: impl Iterator<Item = &'a Swap>) -> Option<f64> {
    let (bytes, seconds) = swaps.fold((0, 0.0), |(b, s), swap| (b + swap.bytes, s + swap.moved_s));
    (bytes > 0 && seconds > 0.0).then(|| bytes as f64 / seconds / 1e9)
}

fn signals(report: &Report, swaps: &[Swap]) -> Signals {
    let spread = |times: &[Duration], unit: f64| {
        let at = |share| percentile(times.iter().copied(), share).as_secs_f64() * unit;
        (!times.is_empty()).then(|| Spread { p50: at(0.5), p99: at(0.99) })
    };
    let out = || swaps.iter().filter(|swap| swap.direction == Direction::Out);
    let call: Vec<_> = out().map(|swap| Duration::from_secs_f64(swap.first_byte_s)).collect();
    let first: Vec<_> =
        out().filter_map(|swap| Some(Duration::from_secs_f64(swap.submit_s? + swap.first_byte_s))).collect();
    Signals {
        count: report.signals.len(),
        cost_us: spread(&report.signals, 1e6),
        submit_ms: spread(&report.signal_to_submit, 1e3),
        call_to_first_byte_ms: spread(&call, 1e3),
        first_byte_ms: spread(&first, 1e3),
        free_ms: spread(&report.signal_to_free, 1e3),
    }
}

fn turn_samples(report: &Report) -> Vec<[f64; 7]> {
    let row = |turn: &djinn_scheduler::sim::TurnRecord| {
        let parts = [turn.asked, turn.parts.queue, turn.parts.restore, turn.parts.prefill, turn.parts.decode];
        let [asked, queue, restore, prefill, decode] = parts.map(|part| part.as_secs_f64());
        [turn.session.0 as f64, asked, queue, restore, prefill, decode, turn.tokens as f64]
    };
    report.turns.iter().map(row).collect()
}

fn samples(report: &Report) -> Vec<[f64; 9]> {
    let row = |s: &djinn_scheduler::sim::Sample| {
        let [sessions, ready, device, host, moving, gone, pages, host_pages] =
            [s.sessions, s.ready, s.on_device, s.on_host, s.moving, s.gone, s.device_pages, s.host_pages]
                .map(f64::from);
        [s.at.as_secs_f64(), sessions, ready, device, host, moving, gone, pages, host_pages]
    };
    report.samples.iter().map(row).collect()
}
