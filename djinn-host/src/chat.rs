//! A conversation with a model, turn by turn.

use crate::{Answer, AnyEngine, Dialogue, Generation, Result, Speaker, Speech};
use djinn_engine::{Finish, Sampling, SessionId};
use std::ops::ControlFlow;

/// A conversation with a model. What its session holds of it is not computed again.
pub struct Chat<'a> {
    /// What was said so far.
    pub conversation: Dialogue,
    speech: Speech<'a>,
    session: Option<SessionId>,
}

/// An answer, and its effect on the conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// The answer.
    pub answer: Answer,
    /// The sampling settings of its tokens.
    pub sampling: Sampling,
    /// Oldest turns that were dropped to make room.
    pub forgotten: usize,
    /// Remaining tokens of the context. With 0, the context ended the answer.
    pub left: u64,
}

impl<'a> Chat<'a> {
    /// A conversation that begins as `speech` does.
    pub fn new(speech: Speech<'a>) -> Self {
        Chat { conversation: Dialogue::of(&speech), speech, session: None }
    }

    /// Answers `text` until the end, or until `on_text` breaks; see [`Speaker::answer`]. If the context has no room
    /// for the conversation and an answer, the oldest turns are dropped. A message that is cancelled before its answer
    /// begins does not change the conversation.
    ///
    /// # Errors
    /// As [`Dialogue::prompt`] and [`Speaker::answer`]; the conversation is then as it was.
    pub fn ask(
        &mut self,
        engine: &mut dyn AnyEngine,
        generation: &Generation,
        text: &str,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Reply> {
        let context = engine.context();
        let (prompt, forgotten) =
            self.conversation.prompt(&self.speech, text, context, generation.max_tokens)?;
        let prompt_tokens = prompt.len() as u64;
        let speaker = Speaker::new(&self.speech, &generation.stop)?;
        let request = generation.request(self.speech.model(), prompt);
        let sampling = request.sampling.clone();
        let answer = speaker.answer(engine, &mut self.session, &request, on_text)?;
        let left = context.saturating_sub(prompt_tokens + answer.tokens.len() as u64);
        if answer.finish == Finish::Cancelled && answer.tokens.is_empty() {
            return Ok(Reply { answer, sampling, forgotten: 0, left });
        }
        self.conversation.turn(forgotten, text, answer.text.clone().unwrap_or_default());
        Ok(Reply { answer, sampling, forgotten, left })
    }
}
