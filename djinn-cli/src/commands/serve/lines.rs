//! The server's log: one line for each request and each failure, on standard error.
//!
//! A thread of its own writes. So a blocked standard error holds up no request and not the end of the process: lines
//! beyond [`WAITING`] are dropped, and the log reports their number.

use crate::output;
use anyhow::{Context, Result};
use djinn_server::LogFormat;
use log::{Level, LevelFilter, Log, Metadata, Record};
use serde_json::json;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// What the server logs under, and its line for each request.
const TARGET: &str = "djinn::server";
const REQUEST: &str = "djinn::server::request";

/// The most lines that wait to be written.
const WAITING: usize = 1024;
/// How long the end of the process waits for the remaining lines.
const PATIENCE: Duration = Duration::from_secs(2);

struct Lines {
    format: LogFormat,
    queue: SyncSender<Message>,
    lost: AtomicU64,
}

enum Message {
    Line(String),
    /// All before it are written.
    Written(Sender<()>),
}

static LINES: OnceLock<Lines> = OnceLock::new();

impl Lines {
    fn push(&self, line: String) {
        if let Err(TrySendError::Full(_)) = self.queue.try_send(Message::Line(line)) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn write(&self, queue: &Receiver<Message>) {
        for message in queue {
            match message {
                Message::Line(line) => output::remark(&line),
                // The other end may have stopped waiting.
                Message::Written(done) => drop(done.send(())),
            }
            let lost = self.lost.swap(0, Ordering::Relaxed);
            if lost > 0 {
                output::remark(&self.line("warn", &format!("{lost} lines of the log were dropped")));
            }
        }
    }

    /// A line that is no request's.
    fn line(&self, level: &str, text: &str) -> String {
        let time = unix_ms();
        match self.format {
            LogFormat::Json => json!({ "time": time, "level": level, "message": text }).to_string(),
            LogFormat::Text => format!("time={time} level={level} {text}"),
        }
    }
}

impl Log for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        [TARGET, REQUEST].contains(&metadata.target()) && metadata.level() <= Level::Info
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let level = record.level().as_str().to_ascii_lowercase();
            let args = record.args();
            self.push(match (self.format, record.target()) {
                (LogFormat::Json, REQUEST) => {
                    format!("{{\"time\":{},\"level\":\"{level}\",{args}}}", unix_ms())
                }
                _ => self.line(&level, &args.to_string()),
            });
        }
    }

    fn flush(&self) {
        let (done, written) = channel();
        let (mut message, until) = (Message::Written(done), Instant::now() + PATIENCE);
        while let Err(TrySendError::Full(back)) = self.queue.try_send(message) {
            if Instant::now() >= until {
                return;
            }
            message = back;
            thread::sleep(Duration::from_millis(10));
        }
        let _ = written.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

/// Milliseconds since 1970.
fn unix_ms() -> u64 {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Writes the remaining lines when it is dropped.
pub(super) struct Written;

impl Drop for Written {
    fn drop(&mut self) {
        log::logger().flush();
    }
}

/// A remark for people, after the lines before it.
pub(super) fn remark(text: &str) {
    match LINES.get() {
        Some(lines) => lines.push(text.to_owned()),
        None => output::remark(text),
    }
}

/// Starts writing lines; if `quiet`, only those of failures.
pub(super) fn install(format: LogFormat, quiet: bool) -> Result<Written> {
    let (queue, waiting) = sync_channel(WAITING);
    let lines = LINES.get_or_init(|| Lines { format, queue, lost: AtomicU64::new(0) });
    log::set_logger(lines).ok().context("another log is written already")?;
    thread::Builder::new()
        .name("log".into())
        .spawn(move || lines.write(&waiting))
        .context("no thread for the log")?;
    log::set_max_level(if quiet { LevelFilter::Error } else { LevelFilter::Info });
    Ok(Written)
}
