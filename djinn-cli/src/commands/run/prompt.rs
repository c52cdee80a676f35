//! Where the prompt comes from, and how it becomes tokens.

use crate::args::RunArgs;
use anyhow::{Context, Result, bail, ensure};
use djinn_models::{ChatTemplate, Message, Model, TextStream, Tokenizer};
use std::io::{IsTerminal, Read};

/// What the user asks.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
    /// Nothing yet: the terminal is asked.
    Chat,
}

impl Prompt {
    /// The prompt of the command line, or of standard input.
    pub(super) fn read(args: &RunArgs) -> Result<Self> {
        let text = match args.prompt.as_deref() {
            Some("-") => standard_input()?,
            Some(text) => text.to_owned(),
            None if !args.prompt_tokens.is_empty() => return Ok(Prompt::Tokens(args.prompt_tokens.clone())),
            None if !std::io::stdin().is_terminal() => standard_input()?,
            None if args.json => bail!("--json needs a prompt; give one, or - to read standard input"),
            None => return Ok(Prompt::Chat),
        };
        ensure!(!text.is_empty(), "the prompt is empty; give one as an argument or on standard input");
        Ok(Prompt::Text(text))
    }
}

/// All of standard input, without the line feed that a shell adds.
fn standard_input() -> Result<String> {
    let mut text = String::new();
    std::io::stdin()
        .lock()
        .read_to_string(&mut text)
        .context("cannot read the prompt from standard input")?;
    let trimmed = text.strip_suffix('\n').map_or(text.len(), |line| line.trim_end_matches('\r').len());
    text.truncate(trimmed);
    Ok(text)
}

/// What a chat begins with unless `--system` says otherwise. Small models do better with a plain one than with
/// their template's own.
const SYSTEM: &str = "You are a helpful assistant.";

/// A model's way from text to tokens and back.
pub(super) struct Speech<'a> {
    model: &'a Model,
    /// None with `--raw`, and for base models.
    chat: Option<&'a ChatTemplate>,
    system: Option<&'a str>,
}

impl<'a> Speech<'a> {
    /// Refuses what the model cannot do: a system message without a template, stop strings without text.
    pub(super) fn new(model: &'a Model, args: &'a RunArgs) -> Result<Self> {
        let chat = model.chat.as_ref().filter(|_| !args.raw);
        let system = args.system.as_deref();
        if system.is_some() && chat.is_none() && args.prompt_tokens.is_empty() {
            bail!("--system needs a chat template, which {} lacks or --raw leaves out; drop it", model.name);
        }
        if !args.sampling.stop.is_empty() && model.tokenizer.is_none() {
            bail!("--stop needs a tokenizer, which {} lacks; drop it", model.name);
        }
        let system = chat.and(Some(system.unwrap_or(SYSTEM))).filter(|text| !text.is_empty());
        Ok(Speech { model, chat, system })
    }

    fn tokenizer(&self) -> Result<&'a Tokenizer> {
        let tokenizer = self.model.tokenizer.as_ref();
        tokenizer.with_context(|| format!("{} has no tokenizer; give --prompt-tokens 1,2,3", self.model.name))
    }

    /// The tokens of a single prompt.
    pub(super) fn tokens(&self, prompt: &str) -> Result<Vec<u32>> {
        let mut messages = self.opening();
        messages.push(Message::new("user", prompt));
        self.turn(&messages)
    }

    /// What a conversation begins with.
    pub(super) fn opening(&self) -> Vec<Message> {
        self.system.map(|text| Message::new("system", text)).into_iter().collect()
    }

    /// The tokens of a conversation, up to where the model speaks. Without a template it is one text.
    pub(super) fn turn(&self, messages: &[Message]) -> Result<Vec<u32>> {
        let tokenizer = self.tokenizer()?;
        match self.chat {
            Some(chat) => Ok(tokenizer.encode(&chat.render(messages, true)?, false)?),
            None => {
                let text: String = messages.iter().map(|m| m.content.as_str()).collect();
                Ok(tokenizer.encode(&text, true)?)
            }
        }
    }

    /// Refuses a chat with a model that has no text.
    pub(super) fn check_text(&self) -> Result<()> {
        self.tokenizer().map(drop)
    }

    /// What turns the model's tokens into text; none without a tokenizer.
    pub(super) fn stream(&self) -> Option<TextStream> {
        let stream = self.model.tokenizer.as_ref()?.stream(true);
        Some(if self.chat.is_some() { stream } else { stream.continuing() })
    }
}
