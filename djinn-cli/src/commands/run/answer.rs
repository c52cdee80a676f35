//! One answer: generated, cut at stop strings, shown as it comes.

use super::interrupt::Interrupt;
use super::prompt::Speech;
use crate::loaded::Running;
use crate::output;
use anyhow::{Context, Result};
use djinn_engine::{Finish, Request, Session, Stats};
use djinn_models::TextStream;
use djinn_models::tokenizer::StopStrings;
use std::io;
use std::ops::ControlFlow;

/// A finished answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answer {
    pub(super) tokens: Vec<u32>,
    /// None for a model without a tokenizer.
    pub(super) text: Option<String>,
    pub(super) finish: Finish,
    pub(super) stats: Stats,
}

/// Turns the tokens of one answer into text.
pub(super) struct Speaker {
    stream: Option<TextStream>,
    stops: StopStrings,
    show: bool,
    text: String,
    tokens: usize,
    stopped: bool,
    failed: Option<io::Error>,
}

impl Speaker {
    /// A speaker that cuts at `stops`, and prints as it goes if `show`.
    pub(super) fn new(speech: &Speech<'_>, stops: &[String], show: bool) -> Result<Self> {
        let stops = StopStrings::new(stops.iter().cloned())?;
        let stream = speech.stream();
        Ok(Speaker { stream, stops, show, text: String::new(), tokens: 0, stopped: false, failed: None })
    }

    /// Generates and speaks until the end, a stop string, or Ctrl-C.
    pub(super) fn answer(
        mut self,
        engine: &mut dyn Running,
        session: &mut Session,
        request: &Request,
        interrupt: &Interrupt,
    ) -> Result<Answer> {
        let generated = interrupt.during(|| {
            engine.generate(session, request, &mut |token| {
                if !request.stop_tokens.contains(&token) {
                    self.take(token);
                }
                match self.stopped || self.failed.is_some() || interrupt.asked() {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            })
        })?;
        self.end();
        if let Some(error) = self.failed {
            return Err(error).context("standard output");
        }
        let finish = if self.stopped { Finish::Stop } else { generated.finish };
        let text = self.stream.is_some().then_some(self.text);
        Ok(Answer { tokens: generated.tokens, text, finish, stats: generated.stats })
    }

    fn take(&mut self, token: u32) {
        self.tokens += 1;
        match self.stream.as_mut().map(|stream| stream.push(token)) {
            Some(piece) => self.say(&piece.unwrap_or_default()),
            None => {
                let space = if self.tokens > 1 { " " } else { "" };
                self.print(&format!("{space}{token}"));
            }
        }
    }

    fn say(&mut self, piece: &str) {
        let scan = self.stops.push(piece);
        self.stopped |= scan.stopped;
        self.print(&scan.text);
        self.text += &scan.text;
    }

    fn end(&mut self) {
        let rest = self.stream.as_mut().map(TextStream::finish).unwrap_or_default();
        self.say(&rest);
        let withheld = self.stops.finish();
        self.print(&withheld);
        self.text += &withheld;
    }

    fn print(&mut self, text: &str) {
        if self.show && !text.is_empty() && self.failed.is_none() {
            self.failed = output::piece(text).err();
        }
    }
}
