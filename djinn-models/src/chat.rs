//! Chat templates: a conversation as the text that a model was trained on.
//!
//! Templates are Jinja as Hugging Face renders it (blocks trimmed, Python's methods and numbers, loop controls),
//! run by minijinja. They come with the weights and are not trusted: instructions, recursion, source and
//! output are bounded.

mod conversation;
mod json;
mod python;
mod source;
#[cfg(test)]
mod tests;
mod time;

pub use conversation::{Conversation, Message};

use crate::gguf::Gguf;
use crate::{Error, Result};
use minijinja::value::Value;
use minijinja::{Environment, ErrorKind, syntax::SyntaxConfig};
use source::Sources;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Longest template source, in bytes.
const MAX_SOURCE: usize = 1 << 20;
/// Longest rendered text beyond the messages' own, in bytes.
const MAX_OUTPUT: usize = 8 << 20;
/// Instructions for a render, and for each message in it.
const FUEL: u64 = 1_000_000;
const FUEL_PER_MESSAGE: u64 = 10_000;

/// Names of the templates that a model may have: the second is for conversations with tools.
const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

/// A model's chat template, parsed; with a second one where conversations with tools have their own.
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    has_tool_use: bool,
    /// Special tokens by the names that templates know: `bos_token`, `eos_token`, ….
    special: Vec<(&'static str, String)>,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("source", &self.source).finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// Parses a template; `bos_token` and `eos_token` are what it sees under these names.
    ///
    /// # Errors
    /// [`Error::Template`] if it is too long or no Jinja.
    pub fn new(source: &str, bos_token: Option<String>, eos_token: Option<String>) -> Result<Self> {
        let named = [("bos_token", bos_token), ("eos_token", eos_token)];
        let special = named.into_iter().filter_map(|(name, token)| Some((name, token?))).collect();
        Self::parse(Sources { default: source.to_owned(), tool_use: None, special })
    }

    fn parse(sources: Sources) -> Result<Self> {
        let Sources { default, tool_use, special } = sources;
        let mut environment = environment()?;
        for (name, source) in [(DEFAULT, Some(&default)), (TOOL_USE, tool_use.as_ref())] {
            let Some(source) = source else { continue };
            if source.len() > MAX_SOURCE {
                let detail =
                    format!("{} bytes are more than a template may have ({MAX_SOURCE})", source.len());
                return Err(Error::Template(detail));
            }
            let source = prepared(source);
            guarded(|| environment.add_template_owned(name, source))?;
        }
        Ok(Self { environment, source: default, has_tool_use: tool_use.is_some(), special })
    }

    /// The template of a Hugging Face directory: `chat_template.jinja`, `chat_template.json`, or the key
    /// `chat_template` of `tokenizer_config.json`; text, or a list of which `default` is taken, and `tool_use`
    /// for conversations with tools, which may also be in `additional_chat_templates`. `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Malformed`] for a file that cannot be read, [`Error::Template`] for a
    /// template that does not parse.
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

    /// The conversation as text; with `add_generation_prompt` it ends where the assistant's turn begins.
    /// Special tokens are spelled out in it: encode it without adding any.
    ///
    /// # Errors
    /// [`Error::Template`] with the template's own message where it raises one, or the limit that it hit.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        self.render_conversation(&Conversation::from_messages(messages), add_generation_prompt)
    }

    /// [`render`](Self::render) for all that a template may be given: tools, calls, documents, variables.
    ///
    /// # Errors
    /// As [`render`](Self::render).
    pub fn render_conversation(
        &self,
        conversation: &Conversation,
        add_generation_prompt: bool,
    ) -> Result<String> {
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(FUEL + FUEL_PER_MESSAGE * conversation.entries()));
        let now = conversation.now();
        environment.add_function("strftime_now", move |format: String| time::strftime(&format, now));
        let name = if self.has_tool_use && conversation.has_tools() { TOOL_USE } else { DEFAULT };
        let template = environment.get_template(name).map_err(|e| error(&e))?;
        let special = self.special.iter().map(|(name, token)| (*name, Value::from(token)));
        let given = conversation.variables().chain([("add_generation_prompt", add_generation_prompt.into())]);
        // Of equal names the last counts.
        let variables = Value::from_pairs(special.chain(given));
        let limit = MAX_OUTPUT.saturating_add(conversation.bytes());
        let mut out = Bounded { text: Vec::new(), limit };
        guarded(|| template.render_captured_to(variables, &mut out))?;
        String::from_utf8(out.text).map_err(|_| Error::Template("it renders to text that is no UTF-8".into()))
    }
}

fn environment() -> Result<Environment<'static>> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(|e| error(&e))?);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.add_function("raise_exception", |message: String| -> std::result::Result<Value, _> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
    });
    python::install(&mut environment);
    Ok(environment)
}

/// Runs the engine on something that is not trusted: a panic in it is an error of the template.
fn guarded<T>(run: impl FnOnce() -> std::result::Result<T, minijinja::Error>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result.map_err(|e| error(&e)),
        Err(_) => Err(Error::Template("the template engine failed on it".into())),
    }
}

/// The source as Jinja's lexer takes it, with `\n` for every end of a line, and with tags that minijinja takes.
fn prepared(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(open) = rest.as_bytes().windows(2).position(|two| matches!(two, b"{%" | b"{{" | b"{#")) {
        let (before, tag) = rest.split_at(open + 2);
        out.push_str(before);
        rest = tag;
        let end = match before.as_bytes()[open + 1] {
            b'%' => "%}",
            b'{' => "}}",
            _ => "#}",
        };
        // Without an end it is no Jinja, as the parser will say.
        let Some(close) = tag.find(end) else { break };
        let (inner, after) = tag.split_at(close);
        match end {
            "#}" => out.push_str(inner),
            _ => out.push_str(&prepared_tag(inner)),
        }
        rest = after;
    }
    out + rest
}

/// What stands between a tag's brackets. `generation` and `endgeneration`, which mark the assistant's words for
/// training and print nothing, become a block that is always taken, so that the trimming of white space around
/// it stays.
fn prepared_tag(tag: &str) -> String {
    match tag.trim_matches(['-', '+']).trim() {
        "generation" => tag.replace("generation", "if true"),
        "endgeneration" => tag.replace("endgeneration", "endif"),
        _ => tag.replace("[::-1]", &format!(".{}()", python::REVERSED)),
    }
}

/// The engine's error as one line, with what caused it.
fn error(error: &minijinja::Error) -> Error {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    Error::Template(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Collects output up to a limit.
struct Bounded {
    text: Vec<u8>,
    limit: usize,
}

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if bytes.len() > self.limit - self.text.len() {
            let message = format!("it renders to more than {} bytes", self.limit);
            return Err(std::io::Error::other(message));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
