//! Answers on standard output, until they end or Ctrl-C ends them.

use super::interrupt::Interrupt;
use crate::loaded::in_flags;
use crate::output;
use anyhow::{Context, Result};
use std::ops::ControlFlow;

/// Runs `answer`, which hands over text as it comes, and prints that unless it is not to be `seen`. Ctrl-C ends the
/// answer, as does an output that takes no more.
pub(super) fn show<T>(
    interrupt: &Interrupt,
    seen: bool,
    answer: impl FnOnce(&mut dyn FnMut(&str) -> ControlFlow<()>) -> djinn_host::Result<T>,
) -> Result<T> {
    let mut failed = None;
    let mut say = |text: &str| {
        if seen && failed.is_none() && !text.is_empty() {
            failed = output::piece(text).err();
        }
        match failed.is_some() || interrupt.asked() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let answered = interrupt.during(|| answer(&mut say));
    match failed {
        Some(error) => Err(error).context("standard output"),
        None => answered.map_err(in_flags),
    }
}
