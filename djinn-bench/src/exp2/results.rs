//! What experiment 2 found, as it lies in JSON.

#[cfg(test)]
mod tests;

use super::systems::System;
use crate::link::Link;
use crate::process::Point;
use crate::sample::{Sample, Samples};
use crate::statistics::{link_share, median};
use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

/// Points of memory over time that a result keeps for each system.
const MOST_POINTS: usize = 400;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Exp2 {
    pub(crate) config: Config,
    /// The link in the same run.
    pub(crate) link: Link,
    /// What the harness took of the card, so that the cap was real.
    pub(crate) occupied_bytes: Option<u64>,
    pub(crate) logits: Option<LogitCheck>,
    pub(crate) systems: Vec<Row>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Config {
    pub(crate) model: String,
    pub(crate) vram_bytes: u64,
    pub(crate) prompt: u32,
    pub(crate) tokens: u32,
    pub(crate) runs: u32,
    pub(crate) ablation_runs: u32,
    pub(crate) peer_runs: u32,
    /// Whether every run of Djinn loaded anew. Else one process took all runs of a system, after one load and
    /// one warm-up that is not timed, as the peers always do.
    pub(crate) process_per_run: bool,
    pub(crate) device: String,
}

/// Djinn, streaming every weight, beside logits that transformers computed in f32.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LogitCheck {
    pub(crate) checkpoint: String,
    pub(crate) positions: usize,
    /// The worst position's ‖ours − theirs‖ / ‖theirs‖.
    pub(crate) relative_error: f64,
    /// The worst position's ‖ours − theirs‖.
    pub(crate) difference_norm: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) title: String,
    /// Whether it is Djinn.
    pub(crate) own: bool,
    pub(crate) capped: bool,
    /// Of an ablation: what the missing mechanism does.
    pub(crate) why: Option<String>,
    pub(crate) command: String,
    /// Why there are no or too few samples.
    pub(crate) failure: Option<String>,
    /// Why it does not run on this machine.
    pub(crate) unavailable: Option<String>,
    pub(crate) note: Option<String>,
    pub(crate) load_ms: Option<f64>,
    pub(crate) medians: Option<Medians>,
    /// Streamed bytes / (time per token × the link's bandwidth).
    pub(crate) link_share: Option<f64>,
    /// Of Djinn: whether tokens and logits are FULL's, bit by bit.
    pub(crate) same_as_full: Option<bool>,
    /// The most memory that was seen from outside: by NVML, or of the process where there is no card.
    pub(crate) peak_bytes: Option<u64>,
    pub(crate) samples: Vec<Sample>,
    /// Memory over time, of the first process.
    pub(crate) memory: Vec<Point>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Medians {
    pub(crate) ttft_ms: f64,
    pub(crate) tpot_ms: f64,
    pub(crate) tpot_mean_ms: f64,
    pub(crate) total_ms: f64,
    /// The spread of the samples' time per token.
    pub(crate) tpot_least_ms: f64,
    pub(crate) tpot_most_ms: f64,
    pub(crate) streamed_bytes_per_pass: u64,
    /// Streamed bytes by time per token, 1e9 bytes/s.
    pub(crate) effective_gbps: f64,
}

impl Medians {
    /// Of samples; `None` of none.
    pub(crate) fn of(samples: &[Sample]) -> Option<Medians> {
        let each = |value: fn(&Sample) -> f64| median(samples.iter().map(value));
        let tpot = |s: &Sample| s.tpot_ms;
        let tpot_ms = each(tpot)?;
        let streamed = samples.first()?.streamed_bytes_per_pass;
        Some(Medians {
            ttft_ms: each(|s| s.ttft_ms)?,
            tpot_ms,
            tpot_mean_ms: each(|s| s.tpot_mean_ms)?,
            total_ms: each(|s| s.total_ms)?,
            tpot_least_ms: samples.iter().map(tpot).fold(f64::INFINITY, f64::min),
            tpot_most_ms: samples.iter().map(tpot).fold(0.0, f64::max),
            streamed_bytes_per_pass: streamed,
            effective_gbps: streamed as f64 / tpot_ms / 1e6,
        })
    }
}

impl Row {
    /// Of a system that was not run yet.
    pub(crate) fn new(system: &System) -> Row {
        Row {
            name: system.name.to_owned(),
            title: system.title.to_owned(),
            own: system.is_own(),
            capped: system.capped,
            why: system.why.map(str::to_owned),
            ..Row::default()
        }
    }

    /// Whether it has samples, and all that it should.
    pub(crate) fn measured(&self) -> bool {
        self.medians.is_some() && self.failure.is_none()
    }

    pub(crate) fn add(&mut self, given: std::result::Result<Samples, String>, memory: Vec<Point>) {
        match given {
            Ok(given) => {
                self.samples.extend(given.samples);
                self.load_ms = self.load_ms.or(given.load_ms);
                self.unavailable = given.unavailable;
                self.note = given.note;
            }
            Err(why) => self.failure = Some(why),
        }
        self.medians = Medians::of(&self.samples);
        let peak = memory.iter().map(|p| p.bytes).max();
        self.peak_bytes = self.peak_bytes.max(peak);
        if self.memory.is_empty() {
            self.memory = thin(memory);
        }
    }
}

/// As many points as a figure needs; each stands for the most of its stretch.
fn thin(points: Vec<Point>) -> Vec<Point> {
    let stretch = points.len().div_ceil(MOST_POINTS).max(1);
    points
        .chunks(stretch)
        .map(|run| Point { seconds: run[0].seconds, bytes: run.iter().map(|p| p.bytes).max().unwrap_or(0) })
        .collect()
}

impl Exp2 {
    /// Takes over what an `earlier` part of the experiment found of systems that are not `chosen` now. Systems of Djinn's
    /// own that another build measured say so: `commit` is its.
    pub(crate) fn add(&mut self, earlier: Exp2, commit: Option<&str>, chosen: &[&System]) -> Result<()> {
        let what = |c: &Config| (c.model.clone(), c.vram_bytes, c.prompt, c.tokens, c.device.clone());
        let (before, now) = (what(&earlier.config), what(&self.config));
        ensure!(before == now, "--add: the file's experiment is another, {before:?} instead of {now:?}");
        let others = earlier.systems.into_iter().filter(|row| !chosen.iter().any(|s| s.name == row.name));
        let noted = others.map(|mut row| {
            row.note =
                row.note.or_else(|| Some(format!("measured by commit {}", commit.filter(|_| row.own)?)));
            row
        });
        self.systems.splice(0..0, noted);
        self.logits = self.logits.take().or(earlier.logits);
        self.occupied_bytes = self.occupied_bytes.or(earlier.occupied_bytes);
        Ok(())
    }

    /// Fills in what a row says beside others: its share of the link, and whether it equals the row `full`.
    pub(crate) fn compare(&mut self, full: &str) {
        let same = |sample: &Sample| (sample.tokens.clone(), sample.logits.clone());
        let whole =
            self.systems.iter().find(|row| row.name == full).and_then(|row| row.samples.first()).map(same);
        let gbps = self.link.pinned.up_gbps;
        for row in &mut self.systems {
            // A row of an earlier part was compared with the link as it was then.
            row.link_share = row.link_share.or_else(|| {
                let medians = row.medians.as_ref()?;
                link_share(medians.streamed_bytes_per_pass, medians.tpot_ms, gbps)
            });
            row.same_as_full = match &whole {
                Some(whole) if row.own && !row.samples.is_empty() => {
                    Some(row.samples.iter().all(|sample| same(sample) == *whole))
                }
                _ => None,
            };
        }
    }
}
