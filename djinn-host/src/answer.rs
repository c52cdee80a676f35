//! One answer: generated, cut at stop strings, and passed on as it comes.

use crate::{AnyEngine, Result, Speech};
use djinn_engine::{Finish, Progress, Request, SessionId, Stats};
use djinn_models::TextStream;
use djinn_models::tokenizer::StopStrings;
use std::ops::ControlFlow;

/// A finished answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// New tokens, including one that ends the text.
    pub tokens: Vec<u32>,
    /// Their text, up to a stop string; `None` for a model without a tokenizer.
    pub text: Option<String>,
    /// Why it ended.
    pub finish: Finish,
    /// Times and bytes.
    pub stats: Stats,
}

/// Turns the tokens of one answer into text.
pub struct Speaker {
    stream: Option<TextStream>,
    stops: StopStrings,
    text: String,
    tokens: usize,
    stopped: bool,
}

impl Speaker {
    /// Ends the text before any of `stops`.
    ///
    /// # Errors
    /// [`Error::Model`](crate::Error::Model) for an empty one, [`Error::NoTokenizer`](crate::Error::NoTokenizer) if
    /// there is no text to search.
    pub fn new(speech: &Speech<'_>, stops: &[String]) -> Result<Self> {
        if !stops.is_empty() {
            speech.tokenizer()?;
        }
        let stops = StopStrings::new(stops.iter().cloned())?;
        Ok(Speaker { stream: speech.stream(), stops, text: String::new(), tokens: 0, stopped: false })
    }

    /// Generates until the end, a stop string, or until `on_text` breaks. `on_text` is called after every token with
    /// the text that is certain by then, which may be empty; without a tokenizer, with the token's number. Before each
    /// piece of the prompt it is called without text.
    ///
    /// # Errors
    /// As [`Generate::generate`](djinn_engine::Generate::generate).
    pub fn answer(
        mut self,
        engine: &mut dyn AnyEngine,
        session: &mut Option<SessionId>,
        request: &Request,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer> {
        let generated = engine.generate(session, request, &mut |progress| {
            let piece = match progress {
                Progress::Token(token) if !request.stop_tokens.contains(&token) => self.push(token),
                Progress::Token(_) | Progress::Prefill { .. } => String::new(),
            };
            let more = on_text(&piece);
            if self.stopped { ControlFlow::Break(()) } else { more }
        })?;
        let rest = self.finish();
        if !rest.is_empty() {
            // The answer has ended, so a break changes nothing.
            let _ = on_text(&rest);
        }
        let finish = if self.stopped { Finish::Stop } else { generated.finish };
        let text = self.stream.is_some().then_some(self.text);
        Ok(Answer { tokens: generated.tokens, text, finish, stats: generated.stats })
    }

    /// The text that a token makes certain, which may be empty, up to a stop string; without a tokenizer, the token's
    /// number. Do not pass tokens that end the text.
    pub fn push(&mut self, token: u32) -> String {
        self.tokens += 1;
        match self.stream.as_mut().map(|stream| stream.push(token).unwrap_or_default()) {
            Some(piece) => self.scan(&piece),
            None if self.tokens > 1 => format!(" {token}"),
            None => token.to_string(),
        }
    }

    /// Whether the text ended before a stop string.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    fn scan(&mut self, piece: &str) -> String {
        let scan = self.stops.push(piece);
        self.stopped |= scan.stopped;
        self.text += &scan.text;
        scan.text
    }

    /// The text that was held back in case a stop string follows.
    pub fn finish(&mut self) -> String {
        let rest = self.stream.as_mut().map(TextStream::finish).unwrap_or_default();
        let mut text = self.scan(&rest);
        let withheld = self.stops.finish();
        self.text += &withheld;
        text += &withheld;
        text
    }
}
