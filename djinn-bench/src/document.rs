//! Results as JSON: where, when, from which commit and by which command, around what was measured.

use crate::args::DeviceName;
use crate::gpu::Gpu;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// A result with its circumstances.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Document<T> {
    /// What was measured: `link`, `exp1`, `exp2`, `sweep`, `swap` or `plan`.
    pub(crate) experiment: String,
    /// When it began, UTC.
    pub(crate) date: String,
    /// That of this program's build, `-dirty` included, or `unknown`.
    pub(crate) commit: String,
    pub(crate) machine: Machine,
    pub(crate) command: String,
    #[serde(flatten)]
    pub(crate) body: T,
}

/// Where it was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) gpu: Option<String>,
    pub(crate) driver: Option<String>,
    pub(crate) cpu: Option<String>,
    pub(crate) threads: usize,
    pub(crate) memory_bytes: Option<u64>,
}

impl<T> Document<T> {
    /// A result of this process's command line, from now.
    pub(crate) fn new(experiment: &str, device: DeviceName, body: T) -> Self {
        Document {
            experiment: experiment.to_owned(),
            date: date(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())),
            commit: env!("DJINN_COMMIT").to_owned(),
            machine: machine(device),
            command: command(),
            body,
        }
    }
}

impl<T: Serialize> Document<T> {
    /// Writes it to a file.
    ///
    /// # Errors
    /// If that fails.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(path, text).with_context(|| path.display().to_string())
    }
}

/// The command line, without the folders of this machine.
fn command() -> String {
    let short = |word: String| match word.starts_with('/').then(|| word.rsplit_once('/')) {
        Some(Some((_, name))) => name.to_owned(),
        _ => word,
    };
    let words: Vec<String> = std::env::args().skip(1).map(short).collect();
    format!("djinn-bench {}", words.join(" "))
}

fn machine(device: DeviceName) -> Machine {
    let gpu = Gpu::open(device);
    Machine {
        gpu: gpu.as_ref().map(|gpu| gpu.name.clone()),
        driver: gpu.map(|gpu| gpu.driver),
        cpu: line("/proc/cpuinfo", "model name"),
        threads: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        memory_bytes: memory_bytes(),
    }
}

/// What follows the colon of a file's first line that begins with `key`.
fn line(file: &str, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The machine's memory, in bytes.
pub(crate) fn memory_bytes() -> Option<u64> {
    let kib: u64 = line("/proc/meminfo", "MemTotal")?.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

/// Seconds since 1970 as a date and time of UTC, by the proleptic Gregorian calendar.
fn date(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut day) = (1970, days);
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while day >= lengths[month] {
        day -= lengths[month];
        month += 1;
    }
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year}-{:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", month + 1, day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_follow_the_calendar() {
        assert_eq!(date(0), "1970-01-01T00:00:00Z");
        assert_eq!(date(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date(1_735_689_599), "2024-12-31T23:59:59Z");
    }
}
