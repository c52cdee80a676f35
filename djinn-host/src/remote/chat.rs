//! A conversation with a model of a server's.

use super::{Remote, RemoteAnswer, agent, encoded, generate_body};
use crate::{Dialogue, Error, Generation, Result};
use djinn_models::{GenerationDefaults, Message};
use serde::Deserialize;
use serde_json::json;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::ControlFlow;
use std::time::Duration;

/// What the server tells of a model.
#[derive(Deserialize)]
struct About {
    root: String,
    max_model_len: u64,
    tokenizer: bool,
    chat_template: bool,
    generation_defaults: GenerationDefaults,
}

/// A conversation with a model of a server's. The server keeps the keys and values of a session for it, so that only what is
/// new is computed; what was said is kept here, and goes up with each message.
pub struct RemoteChat {
    /// What was said so far.
    pub conversation: Dialogue,
    server: Remote,
    model: String,
    about: About,
    raw: bool,
    session: String,
}

/// An answer, and what became of the conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct RemoteReply {
    /// The answer.
    pub answer: RemoteAnswer,
    /// Turns, the oldest ones, that were forgotten to make room.
    pub forgotten: usize,
    /// Tokens of the context that are left; with 0 the answer ends where the context does.
    pub left: u64,
}

impl Remote {
    /// What the makers of one of the server's models say about how it generates.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn generation_defaults(&self, model: &str) -> Result<GenerationDefaults> {
        Ok(self.about(model)?.generation_defaults)
    }

    fn about(&self, model: &str) -> Result<About> {
        self.get(&format!("/v1/models/{}", encoded(model)))
    }
}

impl RemoteChat {
    /// A conversation with a model, by its name at the server. It begins with `system`, else with [`SYSTEM`](crate::SYSTEM); an
    /// empty one leaves it to the model's chat template. `raw` leaves the template out.
    ///
    /// # Errors
    /// The server cannot be reached or understood, or has no such model; [`Error::NoTokenizer`], [`Error::NoTemplate`].
    pub fn open(server: Remote, model: &str, raw: bool, system: Option<&str>) -> Result<Self> {
        let about = server.about(model)?;
        if !about.tokenizer {
            return Err(Error::NoTokenizer { model: about.root });
        }
        let conversation = Dialogue::with_model(&about.root, about.chat_template && !raw, system)?;
        let session = format!("chat-{:016x}", RandomState::new().build_hasher().finish());
        Ok(RemoteChat { conversation, server, model: model.to_owned(), about, raw, session })
    }

    /// The server.
    pub fn server(&self) -> &Remote {
        &self.server
    }

    /// The model's own name.
    pub fn name(&self) -> &str {
        &self.about.root
    }

    /// Tokens of a conversation.
    pub fn context(&self) -> u64 {
        self.about.max_model_len
    }

    /// What the model's makers say about how it generates.
    pub fn defaults(&self) -> &GenerationDefaults {
        &self.about.generation_defaults
    }

    /// Answers `text` until the end, or until `on_text` breaks; see [`Remote::generate`]. Where the context has no room
    /// for the conversation and an answer, the oldest turns are forgotten. A message that is broken off before its
    /// answer begins leaves the conversation as it was.
    ///
    /// # Errors
    /// As [`Remote::generate`]; the conversation is then as it was.
    pub fn ask(
        &mut self,
        generation: &Generation,
        text: &str,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<RemoteReply> {
        let mut messages = self.conversation.messages();
        messages.push(Message::new("user", text));
        // The system message is among the messages.
        let generation = Generation { raw: self.raw, system: None, ..generation.clone() };
        let mut request = generate_body(&self.model, &generation);
        request["messages"] = json!(messages);
        request["session_id"] = json!(self.session);
        let answer = self.server.generate(&request, on_text)?;
        let left = self.context().saturating_sub(answer.prompt_tokens.len() as u64 + answer.came);
        if answer.is_cancelled() && answer.came == 0 {
            return Ok(RemoteReply { answer, forgotten: 0, left });
        }
        let forgotten = answer.forgotten;
        self.conversation.turn(forgotten, text, answer.text.clone().unwrap_or_default());
        Ok(RemoteReply { answer, forgotten, left })
    }

    /// Ends the server's session, within two seconds; one that is not ended is forgotten later.
    ///
    /// # Errors
    /// As [`Remote::get`].
    pub fn end(self) -> Result<()> {
        const WITHIN: Duration = Duration::from_secs(2);
        let server = Remote { agent: agent(Some(WITHIN)), ..self.server };
        let path = format!("/v1/sessions/{}?model={}", self.session, encoded(&self.model));
        match server.asked("DELETE", &path) {
            // A chat without an answer has none.
            Err(Error::Refused { status: 404, .. }) => Ok(()),
            ended => ended.map(drop),
        }
    }
}
