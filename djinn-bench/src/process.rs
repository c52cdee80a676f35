//! Child processes that take samples: bounded in time, ended by Ctrl-C, their memory watched.

#[cfg(test)]
mod tests;

use crate::gpu::Gpu;
use crate::interrupt;
use djinn_host::system;
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(10);
/// Between two looks at the memory.
const WATCH: Duration = Duration::from_millis(50);
/// How long a child's output may stay open after its end: a grandchild may hold it.
const DRAIN: Duration = Duration::from_secs(2);
/// What is kept of a child's output.
const MOST_OUTPUT: u64 = 64 << 20;

/// Memory at a time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Point {
    /// Since the process began.
    pub(crate) seconds: f64,
    /// Of the card above what it held before; of the process where there is no card.
    pub(crate) bytes: u64,
}

/// What a child left.
pub(crate) struct Ended {
    /// Its standard output, or in one line why there is none to use.
    pub(crate) output: Result<String, String>,
    /// Its memory over time.
    pub(crate) memory: Vec<Point>,
}

/// Runs `command` for at most `limit`.
pub(crate) fn run(mut command: Command, limit: Duration, gpu: Option<&Gpu>) -> Ended {
    let base = gpu.and_then(Gpu::used_bytes).unwrap_or(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            let program = command.get_program().to_string_lossy().into_owned();
            return Ended { output: Err(format!("cannot start {program}: {error}")), memory: vec![] };
        }
    };
    let stdout = collect(child.stdout.take().expect("a pipe"));
    let stderr = collect(child.stderr.take().expect("a pipe"));
    let mut memory = Vec::new();
    let pid = child.id();
    let ended = wait(&mut child, limit, |seconds| {
        let bytes = match gpu {
            Some(gpu) => gpu.used_bytes().map(|used| used.saturating_sub(base)),
            None => system::resident_memory(pid),
        };
        memory.extend(bytes.map(|bytes| Point { seconds, bytes }));
    });
    let text = |from: Receiver<Vec<u8>>| {
        let bytes = from.recv_timeout(DRAIN).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (stdout, stderr) = (text(stdout), text(stderr));
    let output =
        ended.and_then(|status| if status.success() { Ok(stdout) } else { Err(failure(status, &stderr)) });
    Ended { output, memory }
}

/// Waits for the child's end, or ends it; calls `watch` now and then with the seconds so far.
fn wait(child: &mut Child, limit: Duration, mut watch: impl FnMut(f64)) -> Result<ExitStatus, String> {
    let (start, presses) = (Instant::now(), interrupt::presses());
    let mut next = Duration::ZERO;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if interrupt::presses() == presses => return Ok(status),
            Ok(Some(_)) => return Err("interrupted".to_owned()),
            Ok(None) => {}
            Err(error) => return Err(format!("cannot wait for it: {error}")),
        }
        let why = if interrupt::presses() != presses {
            Some("interrupted".to_owned())
        } else if start.elapsed() > limit {
            Some(format!("it took more than {} s", limit.as_secs()))
        } else {
            None
        };
        if let Some(why) = why {
            // It may have ended meanwhile; either way it is gone after this.
            let _ = child.kill();
            let _ = child.wait();
            return Err(why);
        }
        if start.elapsed() >= next {
            watch(start.elapsed().as_secs_f64());
            next = start.elapsed() + WATCH;
        }
        std::thread::sleep(POLL);
    }
}

/// Reads all of a pipe on a thread of its own.
fn collect(pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let (mut bytes, mut pipe) = (Vec::new(), pipe);
        // A pipe that breaks leaves what came before.
        let _ = pipe.by_ref().take(MOST_OUTPUT).read_to_end(&mut bytes);
        // The rest is dropped, so that the child does not block on a full pipe.
        let _ = std::io::copy(&mut pipe, &mut std::io::sink());
        let _ = sender.send(bytes);
    });
    receiver
}

/// The last line that says something, of a child that failed.
fn failure(status: ExitStatus, stderr: &str) -> String {
    let last = stderr.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it said nothing");
    let last: String = last.chars().take(300).collect();
    format!("{status}: {}", last.strip_prefix("error: ").unwrap_or(&last))
}
