//! A conversation in turns, and the tokens of as much of it as a context holds: the oldest turns go where there is no room.

use crate::{Error, Result, SYSTEM, Speech};
use djinn_models::{Message, Model};

/// A message of the user, and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Turn {
    user: String,
    assistant: String,
}

/// A system message or none, then the user's messages and their answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dialogue {
    /// The model's name, if it has no chat template that would hold a system message.
    without_template: Option<String>,
    system: Option<String>,
    turns: Vec<Turn>,
}

impl Dialogue {
    /// One that begins as `speech` does.
    pub fn of(speech: &Speech<'_>) -> Self {
        let without_template = (!speech.has_template()).then(|| speech.model().name.clone());
        let system = speech.opening().into_iter().next().map(|message| message.content);
        Dialogue { without_template, system, turns: Vec::new() }
    }

    /// One that begins with `system`, else with [`SYSTEM`]; an empty `system` leaves it to the template. `model` is the name of
    /// a model, which has a chat template or not.
    ///
    /// # Errors
    /// [`Error::NoTemplate`] if there is a `system`, but no template to hold it.
    pub fn with_model(model: &str, has_template: bool, system: Option<&str>) -> Result<Self> {
        let system = system_message(model, has_template, system)?;
        let without_template = (!has_template).then(|| model.to_owned());
        Ok(Dialogue { without_template, system: system.map(str::to_owned), turns: Vec::new() })
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
        self.check_system(text)?;
        self.system = (!text.is_empty()).then(|| text.to_owned());
        Ok(())
    }

    fn check_system(&self, text: &str) -> Result<()> {
        match &self.without_template {
            Some(model) if !text.is_empty() => Err(Error::NoTemplate { model: model.clone() }),
            _ => Ok(()),
        }
    }

    /// Forgets all turns.
    pub fn clear(&mut self) {
        self.turns.clear();
    }

    /// What was said so far.
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
    /// [`Error::Conversation`] if they are others, [`Error::NoTemplate`]; the conversation is then as it was.
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
        self.check_system(system.as_deref().unwrap_or_default())?;
        (self.system, self.turns) = (system, turns);
        Ok(())
    }

    /// The oldest `forgotten` turns go, and a message with its answer comes.
    pub(crate) fn turn(&mut self, forgotten: usize, user: &str, assistant: String) {
        self.turns.drain(..forgotten.min(self.turns.len()));
        self.turns.push(Turn { user: user.to_owned(), assistant });
    }

    /// The tokens of the conversation with `text` at its end, and how many of the oldest turns have to be forgotten to leave
    /// room in `context` for an answer: the fewest. An answer has up to `max_tokens`; a quarter of the context will do.
    ///
    /// # Errors
    /// [`Error::MessageTooLong`] if `text` alone leaves no room for an answer, or as [`Speech::turn`].
    pub fn prompt(
        &self,
        speech: &Speech<'_>,
        text: &str,
        context: u64,
        max_tokens: u32,
    ) -> Result<(Vec<u32>, usize)> {
        // A turn that only just fits would be the last one without forgetting another, each time.
        let reserve = u64::from(max_tokens).min(context / 4).max(1);
        let fitting = |forgotten| match self.tokens(speech, forgotten, text, context)? {
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
        let alone = self.tokens(speech, enough, text, context)?;
        let tokens = alone.as_ref().map(|tokens| tokens.len() as u64);
        match alone {
            Some(alone) if tokens < Some(context) => Ok((alone, enough)),
            _ => Err(Error::MessageTooLong { bytes: text.len(), tokens, context }),
        }
    }

    /// The tokens of the conversation without its first turns and with `text` at its end; none if it has more bytes
    /// than any text of `context` tokens.
    fn tokens(
        &self,
        speech: &Speech<'_>,
        forgotten: usize,
        text: &str,
        context: u64,
    ) -> Result<Option<Vec<u32>>> {
        let mut messages = self.messages_from(forgotten);
        messages.push(Message::new("user", text));
        let bytes = messages.iter().map(|message| message.content.len()).sum();
        if speech.tokenizer()?.check_length(bytes, context).is_err() {
            return Ok(None);
        }
        match speech.turn(&messages) {
            Err(Error::Model(djinn_models::Error::TextTooLong { .. })) => Ok(None),
            tokens => tokens.map(Some),
        }
    }
}

/// Refuses a `system` where the model's chat template renders a conversation alike with a system message and without.
pub(crate) fn check_kept(model: &Model, system: Option<&str>) -> Result<()> {
    let (Some(chat), Some(1..)) = (&model.chat, system.map(str::len)) else { return Ok(()) };
    let messages = [Message::new("system", "Answer in verse."), Message::new("user", "Hello")];
    let text = |messages: &[Message]| chat.render(messages, true).map(|rendered| rendered.text).ok();
    match (text(&messages[1..]), text(&messages)) {
        (Some(without), Some(with)) if without == with => {
            Err(Error::SystemIgnored { model: model.name.clone() })
        }
        _ => Ok(()),
    }
}

/// The system message that a conversation with `model` begins with: `system`, else [`SYSTEM`]. `None` if `system` is empty,
/// which leaves it to the template, or if there is no template to hold it.
///
/// # Errors
/// [`Error::NoTemplate`] for a `system` without a template.
pub(crate) fn system_message<'a>(
    model: &str,
    has_template: bool,
    system: Option<&'a str>,
) -> Result<Option<&'a str>> {
    if system.is_some() && !has_template {
        return Err(Error::NoTemplate { model: model.to_owned() });
    }
    Ok(has_template.then(|| system.unwrap_or(SYSTEM)).filter(|text| !text.is_empty()))
}
