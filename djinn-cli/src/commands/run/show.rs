//! Answers on standard output, until they end or Ctrl-C ends them.

use super::interrupt::Interrupt;
use crate::output;
use anyhow::{Context, Result};
use djinn_engine::{Request, Session};
use djinn_host::{Answer, AnyEngine, Speaker, Speech};
use std::ops::ControlFlow;

/// How answers are shown.
pub(super) struct Shown<'a> {
    pub(super) speech: &'a Speech<'a>,
    /// Strings that end an answer.
    pub(super) stop: &'a [String],
    pub(super) interrupt: &'a Interrupt,
    /// Whether text is printed as it comes.
    pub(super) show: bool,
}

impl Shown<'_> {
    /// Generates an answer and prints it as it comes, until its end or Ctrl-C.
    pub(super) fn answer(
        &self,
        engine: &mut dyn AnyEngine,
        session: &mut Session,
        request: &Request,
    ) -> Result<Answer> {
        let speaker = Speaker::new(self.speech, self.stop)?;
        let mut failed = None;
        let mut say = |text: &str| {
            if self.show && failed.is_none() && !text.is_empty() {
                failed = output::piece(text).err();
            }
            match failed.is_some() || self.interrupt.asked() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let answer = self.interrupt.during(|| speaker.answer(engine, session, request, &mut say));
        match failed {
            Some(error) => Err(error).context("standard output"),
            None => Ok(answer?),
        }
    }
}
