//! Ctrl-C: ends loading after the bytes that are being read, or a generation after its present pass; the second one, or
//! one at rest, ends the process.

use super::INTERRUPTED;
use crate::cache;
use anyhow::{Context, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Knows whether the user wants the present work to end.
#[derive(Clone, Debug)]
pub(super) struct Interrupt {
    flags: Arc<Flags>,
}

/// Each flag stands for itself: no other memory is published through it.
#[derive(Debug, Default)]
struct Flags {
    working: AtomicBool,
    asked: AtomicBool,
}

impl Interrupt {
    /// Handles Ctrl-C from now on. Once in a process.
    pub(super) fn install() -> Result<Self> {
        let flags = Arc::new(Flags::default());
        let seen = Arc::clone(&flags);
        ctrlc::set_handler(move || {
            let first = !seen.asked.swap(true, Ordering::SeqCst);
            if !(first && seen.working.load(Ordering::SeqCst)) {
                cache::abandon();
                std::process::exit(INTERRUPTED.into());
            }
        })
        .context("cannot handle Ctrl-C")?;
        Ok(Interrupt { flags })
    }

    /// Does work that Ctrl-C asks to end.
    pub(super) fn during<R>(&self, work: impl FnOnce() -> R) -> R {
        self.flags.asked.store(false, Ordering::SeqCst);
        self.flags.working.store(true, Ordering::SeqCst);
        let result = work();
        self.flags.working.store(false, Ordering::SeqCst);
        self.flags.asked.store(false, Ordering::SeqCst);
        result
    }

    /// Whether the work should end.
    pub(super) fn asked(&self) -> bool {
        self.flags.asked.load(Ordering::SeqCst)
    }
}
