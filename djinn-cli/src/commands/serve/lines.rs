//! The server's log: one line for each request and each failure, on standard error.

use crate::output;
use anyhow::{Context, Result};
use log::{Level, LevelFilter, Log, Metadata, Record};

/// What the server logs under.
const TARGET: &str = "djinn::server";

struct Lines;

static LINES: Lines = Lines;

impl Log for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == TARGET && metadata.level() <= Level::Info
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let (level, time) = (record.level().as_str().to_ascii_lowercase(), unix_ms());
            output::remark(&format!("time={time} level={level} {}", record.args()));
        }
    }

    fn flush(&self) {}
}

/// Milliseconds since 1970.
fn unix_ms() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.as_millis())
}

/// Writes lines from now on; when `quiet`, those of failures alone.
pub(super) fn install(quiet: bool) -> Result<()> {
    log::set_logger(&LINES).ok().context("another log is written already")?;
    log::set_max_level(if quiet { LevelFilter::Error } else { LevelFilter::Info });
    Ok(())
}
