//! Text in, text out.

use crate::{Answer, AnyEngine, Chat, Generation, Reply, Result, Setup, Speaker, Speech, check_prompt, load};
use djinn_engine::SessionId;
use djinn_models::{Message, Model};
use std::ops::ControlFlow;

/// Tokens of a context where the setup names none, if the model has as many.
const CONTEXT: u64 = 4096;

/// A model on a device, and one conversation with it. What a text has in common with the one before is not computed
/// again; the answer does not depend on that.
pub struct Djinn {
    /// The model.
    pub model: Model,
    /// It on its device.
    pub engine: Box<dyn AnyEngine>,
    session: Option<SessionId>,
}

impl Djinn {
    /// Opens the model at `place` (a directory, a `.gguf` or `.safetensors` file, `synthetic:NAME`) and loads it.
    ///
    /// # Errors
    /// As [`Setup::open`] and [`load`](Djinn::load).
    pub fn open(place: &str, setup: Setup) -> Result<Self> {
        Djinn::load(setup.open(place)?, &setup, &mut |_, _| ControlFlow::Continue(()))
    }

    /// Loads a model that is open; `on_progress` gets the bytes that are loaded and the bytes in all, and may break off.
    /// The context is 4096 tokens where the setup names none, or what the model has if that is less.
    ///
    /// # Errors
    /// As [`load`](crate::load()).
    pub fn load(
        model: Model,
        setup: &Setup,
        on_progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Self> {
        let options = setup.options(&model, CONTEXT.min(model.graph.max_context));
        let engine = load(&model, setup, &options, on_progress)?;
        Ok(Djinn { model, engine, session: None })
    }

    /// Answers `prompt`, through the model's chat template where it has one; `on_text` gets the text as it comes.
    ///
    /// # Errors
    /// [`Error::NoTokenizer`](crate::Error::NoTokenizer), or if the prompt does not fit the context.
    pub fn generate(
        &mut self,
        prompt: &str,
        generation: &Generation,
        on_text: impl FnMut(&str),
    ) -> Result<Answer> {
        let mut messages = Speech::new(&self.model, generation)?.opening();
        messages.push(Message::new("user", prompt));
        self.answer(&messages, generation, on_text)
    }

    /// A chat with the model, whose answers are generated as `generation` says.
    ///
    /// # Errors
    /// As [`Speech::new`].
    pub fn chat<'a>(&'a mut self, generation: &'a Generation) -> Result<OpenChat<'a>> {
        let chat = Chat::new(Speech::new(&self.model, generation)?);
        Ok(OpenChat { chat, engine: &mut *self.engine, generation })
    }

    /// Answers a conversation, whose last message is the user's.
    ///
    /// # Errors
    /// As [`generate`](Self::generate).
    pub fn answer(
        &mut self,
        messages: &[Message],
        generation: &Generation,
        mut on_text: impl FnMut(&str),
    ) -> Result<Answer> {
        let Djinn { model, engine, session } = self;
        let speech = Speech::new(model, generation)?;
        let prompt = speech.turn(messages)?;
        check_prompt(model, None, &prompt)?;
        let mut say = |text: &str| {
            on_text(text);
            ControlFlow::Continue(())
        };
        let request = generation.request(model, prompt);
        Speaker::new(&speech, &generation.stop)?.answer(&mut **engine, session, &request, &mut say)
    }
}

/// A chat with the model that a [`Djinn`] has.
pub struct OpenChat<'a> {
    chat: Chat<'a>,
    engine: &'a mut dyn AnyEngine,
    generation: &'a Generation,
}

impl OpenChat<'_> {
    /// Answers `text`; `on_text` gets the answer as it comes.
    ///
    /// # Errors
    /// As [`Chat::ask`]; the conversation is then as it was.
    pub fn say(&mut self, text: &str, mut on_text: impl FnMut(&str)) -> Result<Reply> {
        self.chat.ask(self.engine, self.generation, text, &mut |piece| {
            on_text(piece);
            ControlFlow::Continue(())
        })
    }
}
