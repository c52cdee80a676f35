//! Where the prompt comes from.

use crate::args::RunArgs;
use anyhow::{Context, Result, bail, ensure};
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
