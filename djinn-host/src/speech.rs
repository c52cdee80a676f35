//! Converts between a model's text and tokens.

use crate::dialogue::{check_kept, system_message};
use crate::{Error, Generation, Result};
use djinn_models::{ChatTemplate, Message, Model, TextStream, Tokenizer};

/// The default system message. Small models do better with a plain system message than with their template's own.
pub const SYSTEM: &str = "You are a helpful assistant.";

/// Text for a model, with or without its chat template.
#[derive(Clone, Copy)]
pub struct Speech<'a> {
    model: &'a Model,
    /// `None` for raw text, and for base models.
    chat: Option<&'a ChatTemplate>,
    system: Option<&'a str>,
}

impl<'a> Speech<'a> {
    /// Text for `generation`: [`raw`](Self::raw), or a [`chat`](Self::chat) with its system message.
    ///
    /// # Errors
    /// As [`chat`](Self::chat).
    pub fn new(model: &'a Model, generation: &'a Generation) -> Result<Self> {
        match generation.raw {
            true => Ok(Speech::raw(model)),
            false => Speech::chat(model, generation.system.as_deref()),
        }
    }

    /// Text without a template.
    pub fn raw(model: &'a Model) -> Self {
        Speech { model, chat: None, system: None }
    }

    /// Text through the model's chat template, if it has one. A conversation begins with `system`, or else with
    /// [`SYSTEM`]. With an empty `system`, the template decides.
    ///
    /// # Errors
    /// [`Error::NoTemplate`] for a `system` without a template, [`Error::SystemIgnored`] for one that it leaves out.
    pub fn chat(model: &'a Model, system: Option<&'a str>) -> Result<Self> {
        let chat = model.chat.as_ref();
        check_kept(model, system)?;
        let system = system_message(&model.name, chat.is_some(), system)?;
        Ok(Speech { model, chat, system })
    }

    /// The model.
    pub fn model(&self) -> &'a Model {
        self.model
    }

    /// Whether text goes through a chat template, which holds a system message.
    pub fn has_template(&self) -> bool {
        self.chat.is_some()
    }

    /// The model's tokenizer.
    ///
    /// # Errors
    /// [`Error::NoTokenizer`].
    pub fn tokenizer(&self) -> Result<&'a Tokenizer> {
        let none = || Error::NoTokenizer { model: self.model.name.clone() };
        self.model.tokenizer.as_ref().ok_or_else(none)
    }

    /// The tokens of a single prompt.
    ///
    /// # Errors
    /// As [`turn`](Self::turn).
    pub fn tokens(&self, prompt: &str) -> Result<Vec<u32>> {
        let mut messages = self.opening();
        messages.push(Message::new("user", prompt));
        self.turn(&messages)
    }

    /// The first messages of a conversation.
    pub fn opening(&self) -> Vec<Message> {
        self.system.map(|text| Message::new("system", text)).into_iter().collect()
    }

    /// The tokens of a conversation, up to where the model speaks. Names of control tokens in its messages are plain
    /// text. Without a template the conversation is one text, in which these names are control tokens.
    ///
    /// # Errors
    /// [`Error::NoTokenizer`]. [`Error::Model`] if the template or the tokenizer refuses it, or if it is longer than
    /// any text that fits the model's context.
    pub fn turn(&self, messages: &[Message]) -> Result<Vec<u32>> {
        let tokenizer = self.tokenizer()?;
        let fits = |text: &str| tokenizer.check_length(text.len(), self.model.graph.max_context);
        match self.chat {
            Some(chat) => {
                let rendered = chat.render(messages, true)?;
                fits(&rendered.text)?;
                Ok(tokenizer.encode_rendered(&rendered.text, &rendered.literal)?)
            }
            None => {
                let text: String = messages.iter().map(|m| m.content.as_str()).collect();
                fits(&text)?;
                Ok(tokenizer.encode(&text, true)?)
            }
        }
    }

    /// Converts the model's tokens to text; `None` without a tokenizer.
    pub fn stream(&self) -> Option<TextStream> {
        let stream = self.model.tokenizer.as_ref()?.stream(true);
        Some(if self.chat.is_some() { stream } else { stream.continuing() })
    }
}
