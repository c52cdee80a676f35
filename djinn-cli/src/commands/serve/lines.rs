//! The server's log: one line for each request and each failure, on standard error.

use crate::output;
use anyhow::{Context, Result};
use djinn_server::LogFormat;
use log::{Level, LevelFilter, Log, Metadata, Record};
use serde_json::json;
use std::sync::OnceLock;

/// What the server logs under, and its line for each request.
const TARGET: &str = "djinn::server";
const REQUEST: &str = "djinn::server::request";

struct Lines;

static LINES: Lines = Lines;
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

impl Log for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        [TARGET, REQUEST].contains(&metadata.target()) && metadata.level() <= Level::Info
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let (level, time) = (record.level().as_str().to_ascii_lowercase(), unix_ms());
            let args = record.args();
            output::remark(&match (FORMAT.get(), record.target()) {
                (Some(LogFormat::Json), REQUEST) => {
                    format!("{{\"time\":{time},\"level\":\"{level}\",{args}}}")
                }
                (Some(LogFormat::Json), _) => {
                    json!({ "time": time, "level": level, "message": args.to_string() }).to_string()
                }
                _ => format!("time={time} level={level} {args}"),
            });
        }
    }

    fn flush(&self) {}
}

/// Milliseconds since 1970.
fn unix_ms() -> u64 {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Writes lines from now on; when `quiet`, those of failures alone.
pub(super) fn install(format: LogFormat, quiet: bool) -> Result<()> {
    log::set_logger(&LINES).ok().context("another log is written already")?;
    FORMAT.get_or_init(|| format);
    log::set_max_level(if quiet { LevelFilter::Error } else { LevelFilter::Info });
    Ok(())
}
