//! Ctrl-C: ends the program at once while nothing was measured, later the run or sample that is under way.

use anyhow::{Context, Result};
use std::io::Write;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

const TWICE: Duration = Duration::from_secs(2);
/// The exit status of a program that SIGINT ended, as shells give it.
const STATUS: i32 = 130;

static KEEPS: AtomicBool = AtomicBool::new(false);
static PRESSES: AtomicU32 = AtomicU32::new(0);
static STOP: AtomicBool = AtomicBool::new(false);
static LAST: Mutex<Option<Instant>> = Mutex::new(None);

/// Catches Ctrl-C from now on. Once it only counts after [`keep`]; `twice` is called when it comes again within two
/// seconds.
pub(crate) fn catch(twice: fn()) -> Result<()> {
    ctrlc::set_handler(move || {
        if !KEEPS.load(Ordering::SeqCst) {
            exit();
        }
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|at| at.elapsed() < TWICE) {
            twice();
        }
        *last = Some(Instant::now());
        PRESSES.fetch_add(1, Ordering::SeqCst);
    })
    .context("cannot catch Ctrl-C")
}

/// From now on there are results to keep.
pub(crate) fn keep() {
    KEEPS.store(true, Ordering::SeqCst);
}

/// Ends the program, whatever it does, without exit handlers: those of a GPU's driver must not run beside a thread that
/// still uses it.
pub(crate) fn exit() {
    let _ = writeln!(std::io::stderr(), "error: interrupted");
    #[cfg(unix)]
    signal_hook::low_level::exit(STATUS);
    #[cfg(not(unix))]
    std::process::exit(STATUS);
}

/// Ends the whole measurement as soon as what is under way has ended.
pub(crate) fn stop_all() {
    STOP.store(true, Ordering::SeqCst);
}

/// How often it was pressed since there are results to keep.
pub(crate) fn presses() -> u32 {
    PRESSES.load(Ordering::SeqCst)
}

/// Whether the whole measurement shall end.
pub(crate) fn stop() -> bool {
    STOP.load(Ordering::SeqCst)
}
