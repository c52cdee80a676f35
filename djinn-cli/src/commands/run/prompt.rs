//! Where the prompt comes from.

use crate::args::RunArgs;
use anyhow::{Context, Result, bail, ensure};
use std::io::{IsTerminal, Read};

/// What the user asks.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
    /// No prompt yet: ask on the terminal.
    Chat,
}

impl Prompt {
    /// The prompt from the command line and standard input. If both have one, they are joined by an empty line. A pipe
    /// or file is read to its end; a terminal is read only without another prompt.
    pub(super) fn read(args: &RunArgs) -> Result<Self> {
        if !args.prompt_tokens.is_empty() {
            return Ok(Prompt::Tokens(args.prompt_tokens.clone()));
        }
        let terminal = std::io::stdin().is_terminal();
        let text = match args.prompt.as_deref() {
            Some("-") => standard_input()?,
            Some(text) if terminal => text.to_owned(),
            Some(text) => match standard_input()? {
                input if input.is_empty() => text.to_owned(),
                input => format!("{text}\n\n{input}"),
            },
            None if !terminal => standard_input()?,
            None if args.json => bail!("--json needs a prompt; give one, or - to read standard input"),
            None => return Ok(Prompt::Chat),
        };
        ensure!(!text.is_empty(), "the prompt is empty; give one as an argument or on standard input");
        Ok(Prompt::Text(text))
    }
}

/// The most bytes read from standard input: more than any context holds.
const MAX_INPUT: u64 = 64 << 20;

/// All of standard input, without the line feed that a shell adds.
fn standard_input() -> Result<String> {
    let mut text = String::new();
    let mut input = std::io::stdin().lock().take(MAX_INPUT + 1);
    input.read_to_string(&mut text).context("cannot read the prompt from standard input")?;
    ensure!(text.len() as u64 <= MAX_INPUT, "standard input is longer than {MAX_INPUT} bytes; give less");
    let trimmed = text.strip_suffix('\n').map_or(text.len(), |line| line.trim_end_matches('\r').len());
    text.truncate(trimmed);
    Ok(text)
}
