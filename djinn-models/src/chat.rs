//! Chat templates: a conversation as the text that a model was trained on.
//!
//! Templates come with the weights and are not trusted; `djinn-template` renders them within bounds of memory,
//! work and depth.

mod conversation;
mod source;
#[cfg(test)]
mod tests;

pub use conversation::{Conversation, Message};
pub use djinn_template::Rendered;

use crate::gguf::Gguf;
use crate::{Error, Result};
use djinn_template::{Context, Template, Value};
use source::Sources;
use std::path::Path;

/// The longest template source, in bytes.
const MAX_SOURCE: usize = 1 << 20;

/// Names of a model's templates. The second is for conversations with tools.
const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

/// A model's parsed chat template, and a second one if it has one for conversations with tools.
pub struct ChatTemplate {
    default: Template,
    tool_use: Option<Template>,
    source: String,
    /// Special tokens by their names in templates: `bos_token`, `eos_token`, ….
    special: Vec<(&'static str, String)>,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("source", &self.source).finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// Parses a template. `bos_token` and `eos_token` are its variables of these names.
    ///
    /// # Errors
    /// [`Error::Template`] if it is too long or is not valid Jinja.
    pub fn new(source: &str, bos_token: Option<String>, eos_token: Option<String>) -> Result<Self> {
        let named = [("bos_token", bos_token), ("eos_token", eos_token)];
        let special = named.into_iter().filter_map(|(name, token)| Some((name, token?))).collect();
        Self::parse(Sources { default: source.to_owned(), tool_use: None, special })
    }

    fn parse(sources: Sources) -> Result<Self> {
        let Sources { default, tool_use, special } = sources;
        let parse = |source: &str| Template::parse(source).map_err(error);
        let tool_use = tool_use.as_deref().map(parse).transpose()?;
        Ok(Self { default: parse(&default)?, tool_use, source: default, special })
    }

    /// The template of a Hugging Face directory: `chat_template.jinja`, `chat_template.json`, or the key
    /// `chat_template` of `tokenizer_config.json`. The key is a text, or a list with `default`, and `tool_use` for
    /// conversations with tools, which may also be in `additional_chat_templates`. `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Malformed`] for a file that cannot be read, [`Error::Template`] for a template that
    /// does not parse.
    pub fn from_dir(dir: impl AsRef<Path>) -> Result<Option<Self>> {
        Sources::from_dir(dir.as_ref())?.map(Self::parse).transpose()
    }

    /// The template in GGUF metadata (`tokenizer.chat_template`, and `tokenizer.chat_template.tool_use`). `None`
    /// if there is none.
    ///
    /// # Errors
    /// [`Error::Config`] for a key of the wrong type, [`Error::Template`] if it does not parse.
    pub fn from_gguf(file: &Gguf) -> Result<Option<Self>> {
        Sources::from_gguf(file)?.map(Self::parse).transpose()
    }

    /// The template's source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The conversation as text. With `add_generation_prompt` it ends where the assistant's turn begins. It contains
    /// the special tokens as text: encode it without adding any.
    ///
    /// # Errors
    /// [`Error::Template`] with the template's own message if it raises one, or the bound that it exceeded.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<Rendered> {
        self.render_conversation(&Conversation::from_messages(messages), add_generation_prompt)
    }

    /// As [`render`](Self::render), with everything that a template may use: tools, calls, documents, variables.
    ///
    /// # Errors
    /// As [`render`](Self::render).
    pub fn render_conversation(
        &self,
        conversation: &Conversation,
        add_generation_prompt: bool,
    ) -> Result<Rendered> {
        let mut context = Context::new(conversation.now());
        for (name, token) in &self.special {
            context.set(*name, Value::token(token));
        }
        for (name, value) in conversation.variables() {
            context.set(name, value);
        }
        context.set("add_generation_prompt", add_generation_prompt);
        let with_tools = self.tool_use.as_ref().filter(|_| conversation.has_tools());
        with_tools.unwrap_or(&self.default).render(&context).map_err(error)
    }
}

fn error(error: djinn_template::Error) -> Error {
    Error::Template(error.to_string())
}
