//! Ctrl-C: once ends the sample that runs, twice within two seconds the whole measurement.

use anyhow::{Context, Result};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

const TWICE: Duration = Duration::from_secs(2);

static PRESSES: AtomicU32 = AtomicU32::new(0);
static STOP: AtomicBool = AtomicBool::new(false);
static LAST: Mutex<Option<Instant>> = Mutex::new(None);

/// Catches Ctrl-C from now on.
pub(crate) fn catch() -> Result<()> {
    ctrlc::set_handler(|| {
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|at| at.elapsed() < TWICE) {
            STOP.store(true, Ordering::SeqCst);
        }
        *last = Some(Instant::now());
        PRESSES.fetch_add(1, Ordering::SeqCst);
    })
    .context("cannot catch Ctrl-C")
}

/// How often it was pressed.
pub(crate) fn presses() -> u32 {
    PRESSES.load(Ordering::SeqCst)
}

/// Whether the whole measurement shall end.
pub(crate) fn stop() -> bool {
    STOP.load(Ordering::SeqCst)
}
