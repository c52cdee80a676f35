//! A conversation, turn by turn, in a context that may be shorter: the oldest turns go where there is no room.

use crate::{Answer, AnyEngine, Error, Generation, Result, Speaker, Speech};
use djinn_engine::{Finish, Sampling, SessionId};
use djinn_models::Message;
use std::ops::ControlFlow;

/// A message of the user, and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Turn {
    user: String,
    assistant: String,
}

/// A conversation with a model. What its session holds of it is not computed again.
pub struct Chat<'a> {
    speech: Speech<'a>,
    system: Option<String>,
    turns: Vec<Turn>,
    session: Option<SessionId>,
}

/// An answer, and what became of the conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// The answer.
    pub answer: Answer,
    /// How its tokens were chosen.
    pub sampling: Sampling,
    /// Turns, the oldest ones, that were forgotten to make room.
    pub forgotten: usize,
    /// Tokens of the context that are left; with 0 the answer ends where the context does.
    pub left: u64,
}

impl<'a> Chat<'a> {
    /// A conversation that begins as `speech` does.
    pub fn new(speech: Speech<'a>) -> Self {
        let system = speech.opening().into_iter().next().map(|message| message.content);
        Chat { speech, system, turns: Vec::new(), session: None }
    }

    /// The system message.
    pub fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// Replaces the system message; an empty one leaves it to the template.
    ///
    /// # Errors
    /// [`Error::NoTemplate`] if there is no template to hold it.
    pub fn set_system(&mut self, text: &str) -> Result<()> {
        self.speech.check_system(text)?;
        self.system = (!text.is_empty()).then(|| text.to_owned());
        Ok(())
    }

    /// Forgets all turns.
    pub fn clear(&mut self) {
        self.turns.clear();
    }

    /// The conversation so far.
    pub fn messages(&self) -> Vec<Message> {
        self.messages_from(0)
    }

    fn messages_from(&self, first: usize) -> Vec<Message> {
        let system = self.system.iter().map(|text| Message::new("system", text));
        let turns = self.turns[first..]
            .iter()
            .flat_map(|turn| [Message::new("user", &turn.user), Message::new("assistant", &turn.assistant)]);
        system.chain(turns).collect()
    }

    /// Goes on from `messages`: a system message or none, then the user's and the assistant's in turn.
    ///
    /// # Errors
    /// [`Error::Conversation`] if they are others; the conversation is then as it was.
    pub fn resume(&mut self, messages: Vec<Message>) -> Result<()> {
        let mut rest = messages.into_iter().peekable();
        let system = rest.next_if(|message| message.role == "system").map(|message| message.content);
        let mut turns = Vec::new();
        while let Some(user) = rest.next() {
            let answer = rest.next().ok_or(Error::Conversation)?;
            if (&*user.role, &*answer.role) != ("user", "assistant") {
                return Err(Error::Conversation);
            }
            turns.push(Turn { user: user.content, assistant: answer.content });
        }
        if let Some(system) = &system {
            self.speech.check_system(system)?;
        }
        (self.system, self.turns) = (system, turns);
        Ok(())
    }

    /// Answers `text` until the end, or until `on_text` breaks; see [`Speaker::answer`]. Where the context has no room
    /// for the conversation and an answer, the oldest turns are forgotten. A message that is broken off before its
    /// answer begins leaves the conversation as it was.
    ///
    /// # Errors
    /// [`Error::MessageTooLong`] if the message alone leaves no room for an answer, or as [`Speech::turn`] and
    /// [`Speaker::answer`]; the conversation is then as it was.
    pub fn ask(
        &mut self,
        engine: &mut dyn AnyEngine,
        generation: &Generation,
        text: &str,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Reply> {
        let context = engine.context();
        // A turn that only just fits would be the last one without forgetting another, each time.
        let reserve = u64::from(generation.max_tokens).min(context / 4).max(1);
        let (prompt, forgotten) = self.prompt(text, context, reserve)?;
        let prompt_tokens = prompt.len() as u64;
        let speaker = Speaker::new(&self.speech, &generation.stop)?;
        let request = generation.request(self.speech.model(), prompt);
        let sampling = request.sampling.clone();
        let answer = speaker.answer(engine, &mut self.session, &request, on_text)?;
        let left = context.saturating_sub(prompt_tokens + answer.tokens.len() as u64);
        if answer.finish == Finish::Cancelled && answer.tokens.is_empty() {
            return Ok(Reply { answer, sampling, forgotten: 0, left });
        }
        self.turns.drain(..forgotten);
        let assistant = answer.text.clone().unwrap_or_default();
        self.turns.push(Turn { user: text.to_owned(), assistant });
        Ok(Reply { answer, sampling, forgotten, left })
    }

    /// The tokens of the conversation with `text` at its end, and how many turns have to be forgotten to leave
    /// `reserve` tokens of the context: the fewest.
    fn prompt(&self, text: &str, context: u64, reserve: u64) -> Result<(Vec<u32>, usize)> {
        let fitting = |forgotten| match self.tokens(forgotten, text, context)? {
            Some(tokens) if tokens.len() as u64 + reserve <= context => Ok(Some(tokens)),
            _ => Ok::<_, Error>(None),
        };
        if let Some(whole) = fitting(0)? {
            return Ok((whole, 0));
        }
        // Each turn that is forgotten makes the prompt shorter: the fewest are found by halving.
        let (mut few, mut enough, mut prompt) = (0, self.turns.len(), None);
        while enough - few > 1 {
            let middle = few + (enough - few) / 2;
            match fitting(middle)? {
                Some(tokens) => (enough, prompt) = (middle, Some(tokens)),
                None => few = middle,
            }
        }
        if let Some(prompt) = prompt {
            return Ok((prompt, enough));
        }
        let alone = self.tokens(enough, text, context)?;
        let tokens = alone.as_ref().map(|tokens| tokens.len() as u64);
        match alone {
            Some(alone) if tokens < Some(context) => Ok((alone, enough)),
            _ => Err(Error::MessageTooLong { bytes: text.len(), tokens, context }),
        }
    }

    /// The tokens of the conversation without its first turns and with `text` at its end; none if it has more bytes
    /// than any text of `context` tokens.
    fn tokens(&self, forgotten: usize, text: &str, context: u64) -> Result<Option<Vec<u32>>> {
        let mut messages = self.messages_from(forgotten);
        messages.push(Message::new("user", text));
        let bytes = messages.iter().map(|message| message.content.len()).sum();
        match self.speech.tokenizer()?.check_length(bytes, context) {
            Ok(()) => self.speech.turn(&messages).map(Some),
            Err(_) => Ok(None),
        }
    }
}
