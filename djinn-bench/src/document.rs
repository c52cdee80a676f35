//! Results as JSON: where, when, from which commit and by which command, around what was measured.

use crate::gpu::Gpu;
use anyhow::{Context, Result, ensure};
use djinn_host::{DeviceName, system};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Document<T> {
    /// What was measured: `link`, `exp1`, `exp2`, `exp2-remote`, `exp3`, `sweep`, `swap` or `plan`.
    pub(crate) experiment: String,
    /// When it began, UTC.
    pub(crate) date: String,
    /// That of this program's build, `-dirty` included, or `unknown`.
    pub(crate) commit: String,
    pub(crate) machine: MeasuredOn,
    pub(crate) command: String,
    #[serde(flatten)]
    pub(crate) body: T,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct MeasuredOn {
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
            command: command_line(["djinn-bench".to_owned()].into_iter().chain(std::env::args().skip(1))),
            body,
        }
    }
}

impl<T: Serialize> Document<T> {
    /// Writes it to the file `json`, if one is wanted, and prints its `report`.
    pub(crate) fn publish(&self, json: Option<&Path>, report: fn(&Self) -> String) -> Result<()> {
        if let Some(path) = json {
            self.write(path)?;
        }
        print!("{}", report(self));
        Ok(())
    }

    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(path, text).with_context(|| path.display().to_string())
    }
}

/// Refuses a file for results that could not be written after the measurement.
pub(crate) fn check_folder(json: Option<&Path>) -> Result<()> {
    if let Some(path) = json.and_then(Path::parent).filter(|path| !path.as_os_str().is_empty()) {
        ensure!(path.is_dir(), "{}: no such folder for --json", path.display());
    }
    Ok(())
}

/// A command line without the folders of this machine.
pub(crate) fn command_line(words: impl Iterator<Item = String>) -> String {
    let short = |word: String| match word.starts_with('/').then(|| word.rsplit_once('/')) {
        Some(Some((_, name))) => name.to_owned(),
        _ => word,
    };
    words.map(short).collect::<Vec<_>>().join(" ")
}

fn machine(device: DeviceName) -> MeasuredOn {
    let gpu = Gpu::open(device);
    MeasuredOn {
        gpu: gpu.as_ref().map(|gpu| gpu.name.clone()),
        driver: gpu.map(|gpu| gpu.driver),
        cpu: system::cpu_name(),
        threads: system::threads(),
        memory_bytes: system::memory().map(|memory| memory.total),
    }
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
