//! Chat templates: a conversation as the text that a model was trained on.
//!
//! Templates are Jinja as Hugging Face renders it (blocks trimmed, Python's string methods, loop controls),
//! run by minijinja. They come with the weights and are not trusted: instructions, recursion, source and
//! output are bounded.

mod json;
#[cfg(test)]
mod tests;
mod time;

use crate::gguf::Gguf;
use crate::tokenizer::{read_json, special_token};
use crate::{Error, Result};
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, ErrorKind, syntax::SyntaxConfig};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::SystemTime;

/// Longest template source, in bytes.
const MAX_SOURCE: usize = 1 << 20;
/// Longest rendered text beyond the messages' own, in bytes.
const MAX_OUTPUT: usize = 8 << 20;
/// Instructions for a render, and for each message in it.
const FUEL: u64 = 1_000_000;
const FUEL_PER_MESSAGE: u64 = 10_000;

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// What was said.
    pub content: String,
}

impl Message {
    /// A message of `role`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// A model's chat template, parsed.
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos_token: Option<String>,
    eos_token: Option<String>,
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
        if source.len() > MAX_SOURCE {
            let detail = format!("{} bytes are more than a template may have ({MAX_SOURCE})", source.len());
            return Err(Error::Template(detail));
        }
        let mut environment = environment()?;
        environment.add_template_owned("chat", without_generation_tags(source)).map_err(|e| error(&e))?;
        Ok(Self { environment, source: source.to_owned(), bos_token, eos_token })
    }

    /// The template of a Hugging Face directory: `chat_template.jinja`, `chat_template.json`, or the key
    /// `chat_template` of `tokenizer_config.json` (text, or a list of which `default` is taken). `None` if
    /// there is none.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Malformed`] for a file that cannot be read, [`Error::Template`] for a
    /// template that does not parse.
    pub fn from_dir(dir: impl AsRef<Path>) -> Result<Option<Self>> {
        let dir = dir.as_ref();
        let config = read_json(&dir.join("tokenizer_config.json"))?.unwrap_or_default();
        let Some(source) = source_in(dir, &config)? else { return Ok(None) };
        let map = read_json(&dir.join("special_tokens_map.json"))?.unwrap_or_default();
        let named = |key: &str| special_token(&config, key).or_else(|| special_token(&map, key));
        Self::new(&source, named("bos_token"), named("eos_token")).map(Some)
    }

    /// The template in GGUF metadata (`tokenizer.chat_template`). `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Config`] for a key of the wrong type, [`Error::Template`] if it does not parse.
    pub fn from_gguf(file: &Gguf) -> Result<Option<Self>> {
        let Some(source) = file.optional("tokenizer.chat_template", Gguf::get_str)? else { return Ok(None) };
        let tokens = file.optional("tokenizer.ggml.tokens", Gguf::get_array_str)?.unwrap_or_default();
        let named = |key: &str| -> Result<Option<String>> {
            let id = file.optional(&format!("tokenizer.ggml.{key}_token_id"), Gguf::get_u32)?;
            Ok(id.and_then(|id| tokens.get(id as usize)).cloned())
        };
        Self::new(source, named("bos")?, named("eos")?).map(Some)
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
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(FUEL + FUEL_PER_MESSAGE * messages.len() as u64));
        let template = environment.get_template("chat").map_err(|e| error(&e))?;
        let turns = messages.iter().map(|m| {
            Value::from_pairs([("role", Value::from(&m.role)), ("content", Value::from(&m.content))])
        });
        let mut variables = vec![
            ("messages", Value::from_iter(turns)),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
            ("tools", Value::from(())),
            ("documents", Value::from(())),
        ];
        variables.extend(self.bos_token.as_deref().map(|token| ("bos_token", Value::from(token))));
        variables.extend(self.eos_token.as_deref().map(|token| ("eos_token", Value::from(token))));
        let said: usize = messages.iter().map(|m| m.content.len() + m.role.len()).sum();
        let mut out = Bounded { text: Vec::new(), limit: MAX_OUTPUT.saturating_add(said) };
        template.render_captured_to(Value::from_pairs(variables), &mut out).map_err(|e| error(&e))?;
        String::from_utf8(out.text).map_err(|_| Error::Template("it renders to text that is no UTF-8".into()))
    }
}

/// The template's source in a directory, in the order in which newer files replace older ones.
fn source_in(dir: &Path, config: &serde_json::Value) -> Result<Option<String>> {
    let path = dir.join("chat_template.jinja");
    match std::fs::metadata(&path) {
        Ok(meta) if meta.len() > MAX_SOURCE as u64 => {
            let detail = format!("{} bytes are more than a template may have ({MAX_SOURCE})", meta.len());
            return Err(Error::Malformed { path, detail });
        }
        Ok(_) => {
            return std::fs::read_to_string(&path).map(Some).map_err(|source| Error::Io { path, source });
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(source) => return Err(Error::Io { path, source }),
    }
    let own = read_json(&dir.join("chat_template.json"))?.unwrap_or_default();
    let value = own.get("chat_template").or_else(|| config.get("chat_template"));
    let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(None) };
    if let Some(text) = value.as_str() {
        return Ok(Some(text.to_owned()));
    }
    let Some(list) = value.as_array() else {
        return Err(Error::Template("`chat_template` is neither text nor a list of templates".into()));
    };
    let default = list.iter().find(|entry| entry["name"] == "default");
    match default.and_then(|entry| entry["template"].as_str()) {
        Some(text) => Ok(Some(text.to_owned())),
        None => Err(Error::Template("the list `chat_template` has no template named \"default\"".into())),
    }
}

fn environment() -> Result<Environment<'static>> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(|e| error(&e))?);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |message: String| -> std::result::Result<Value, _> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", |format: String| time::strftime(&format, SystemTime::now()));
    environment.add_filter("tojson", |value: Value, options: Kwargs| {
        let indent: Option<usize> = options.get("indent")?;
        // Other options of the original change the escaping or the order; the order is the value's.
        let _: Option<bool> = options.get("ensure_ascii")?;
        options.assert_all_used()?;
        json::python(&value, indent)
    });
    Ok(environment)
}

/// The source without the tags `{% generation %}` and `{% endgeneration %}`, which mark the assistant's
/// words for training and print nothing. Each becomes a block that is always taken, so that the trimming of
/// white space around it stays.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let (before, tag) = rest.split_at(open + 2);
        out.push_str(before);
        let Some(close) = tag.find("%}") else {
            rest = tag;
            continue;
        };
        let inner = tag[..close].trim_matches(['-', '+']);
        let replaced = match inner.trim() {
            "generation" => tag[..close].replace("generation", "if true"),
            "endgeneration" => tag[..close].replace("endgeneration", "endif"),
            _ => tag[..close].to_owned(),
        };
        out.push_str(&replaced);
        rest = &tag[close..];
    }
    out + rest
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
