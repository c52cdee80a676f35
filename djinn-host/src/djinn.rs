//! Text in, text out.

use crate::{
    Answer, AnyEngine, Chat, DEFAULT_CONTEXT, Generation, Reply, Result, Setup, Speaker, Speech,
    check_prompt, load,
};
use djinn_engine::SessionId;
use djinn_models::{Message, Model};
use std::ops::ControlFlow;

/// A model on a device, and one conversation with it. Tokens in common with the previous text are not computed again,
/// which does not change the answer.
pub struct Djinn {
    /// The model.
    pub model: Model,
    /// The model's engine.
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

    /// Loads an open model. `on_progress` gets the bytes loaded and in all, and may cancel. The default context is
    /// [`DEFAULT_CONTEXT`], or the model's if that is less.
    ///
    /// # Errors
    /// As [`load`](crate::load()).
    pub fn load(
        model: Model,
        setup: &Setup,
        on_progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Self> {
        let options = setup.options(&model, DEFAULT_CONTEXT.min(model.graph.max_context));
        let engine = load(&model, setup, &options, on_progress)?;
        Ok(Djinn { model, engine, session: None })
    }

    /// Answers `prompt`, through the model's chat template if it has one. `on_text` gets the text as it comes.
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

    /// A chat with the model, with `generation` for its answers.
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

/// A chat with a [`Djinn`]'s model.
pub struct OpenChat<'a> {
    chat: Chat<'a>,
    engine: &'a mut dyn AnyEngine,
    generation: &'a Generation,
}

impl OpenChat<'_> {
    /// Answers `text`. `on_text` gets the answer as it comes.
    ///
    /// # Errors
    /// As [`Chat::ask`]. The conversation does not change then.
    pub fn say(&mut self, text: &str, mut on_text: impl FnMut(&str)) -> Result<Reply> {
        self.chat.ask(self.engine, self.generation, text, &mut |piece| {
            on_text(piece);
            ControlFlow::Continue(())
        })
    }
}
