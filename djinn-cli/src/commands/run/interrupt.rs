//! Ctrl-C: the first one ends the present work, the second one the process. At rest it ends the process, but never a
//! chat.

use super::{INTERRUPTED, terminal};
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
    chatting: AtomicBool,
}

impl Flags {
    fn hear(&self) {
        let ends = match self.working.load(Ordering::SeqCst) {
            true => self.asked.swap(true, Ordering::SeqCst),
            false => !self.chatting.load(Ordering::SeqCst),
        };
        if ends {
            terminal::restore();
            cache::abandon();
            std::process::exit(INTERRUPTED.into());
        }
    }
}

impl Interrupt {
    /// Handles Ctrl-C from now on. Once in a process.
    pub(super) fn install() -> Result<Self> {
        let flags = Arc::new(Flags::default());
        let seen = Arc::clone(&flags);
        ctrlc::set_handler(move || seen.hear()).context("cannot handle Ctrl-C")?;
        Ok(Interrupt { flags })
    }

    /// Ctrl-C at rest is the line editor's business from now on.
    pub(super) fn chat(&self) {
        self.flags.chatting.store(true, Ordering::SeqCst);
    }

    /// Runs work that Ctrl-C asks to end.
    pub(super) fn during<R>(&self, work: impl FnOnce() -> R) -> R {
        self.flags.asked.store(false, Ordering::SeqCst);
        self.flags.working.store(true, Ordering::SeqCst);
        let result = work();
        self.flags.working.store(false, Ordering::SeqCst);
        result
    }

    /// Whether the work should end; after it, whether it was asked to.
    pub(super) fn asked(&self) -> bool {
        self.flags.asked.load(Ordering::SeqCst)
    }
}
