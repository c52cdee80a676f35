//! Prints answers on standard output, until they end or Ctrl-C cancels them.

use crate::interrupt::{Interrupt, Work};
use crate::output;
use anyhow::{Context, Result};
use djinn_engine::Finish;
use std::io;
use std::ops::ControlFlow;

/// Prints one answer as it comes, unless it is hidden.
pub(super) struct Show<'a> {
    interrupt: &'a Interrupt,
    seen: bool,
    failed: Option<io::Error>,
    _work: Work<'a>,
}

impl<'a> Show<'a> {
    /// From now on Ctrl-C asks for the end of the work, and cancels the answer.
    pub(super) fn new(interrupt: &'a Interrupt, seen: bool) -> Self {
        Show { interrupt, seen, failed: None, _work: interrupt.work() }
    }

    /// Prints the answer's next piece of text. Cancels the answer after Ctrl-C, or if the output is closed.
    pub(super) fn piece(&mut self, text: &str) -> ControlFlow<()> {
        if self.seen && self.failed.is_none() && !text.is_empty() {
            self.failed = output::piece(text).err();
        }
        match self.failed.is_some() || self.interrupt.asked() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    /// The result of the answer.
    ///
    /// # Errors
    /// A failure of standard output, or the answer's own.
    pub(super) fn end<T>(self, answered: djinn_host::Result<T>) -> Result<T> {
        match self.failed {
            Some(error) => Err(error).context("standard output"),
            None => Ok(answered?),
        }
    }
}

/// Why an answer ended, machine-readable.
pub(in crate::commands) fn name(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop | Finish::Complete => "stop",
        Finish::Length => "length",
        Finish::Cancelled => "cancelled",
    }
}
