//! Ctrl-C: ends a generation after its present token; the second one, or one at rest, ends the process.

use super::INTERRUPTED;
use anyhow::{Context, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Knows whether the user wants the present generation to end.
#[derive(Clone, Debug)]
pub(super) struct Interrupt {
    flags: Arc<Flags>,
}

/// Each flag stands for itself: no other memory is published through it.
#[derive(Debug, Default)]
struct Flags {
    generating: AtomicBool,
    asked: AtomicBool,
}

impl Interrupt {
    /// Handles Ctrl-C from now on. Once in a process.
    pub(super) fn install() -> Result<Self> {
        let flags = Arc::new(Flags::default());
        let seen = Arc::clone(&flags);
        ctrlc::set_handler(move || {
            let first = !seen.asked.swap(true, Ordering::SeqCst);
            if !(first && seen.generating.load(Ordering::SeqCst)) {
                std::process::exit(INTERRUPTED.into());
            }
        })
        .context("cannot handle Ctrl-C")?;
        Ok(Interrupt { flags })
    }

    /// Runs a generation, which Ctrl-C asks to end.
    pub(super) fn during<R>(&self, generate: impl FnOnce() -> R) -> R {
        self.flags.asked.store(false, Ordering::SeqCst);
        self.flags.generating.store(true, Ordering::SeqCst);
        let result = generate();
        self.flags.generating.store(false, Ordering::SeqCst);
        self.flags.asked.store(false, Ordering::SeqCst);
        result
    }

    /// Whether the generation should end.
    pub(super) fn asked(&self) -> bool {
        self.flags.asked.load(Ordering::SeqCst)
    }
}
