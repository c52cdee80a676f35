//! The line editor of chats and of the debugger: keys, a persistent history, completion.

use crate::{output, own};
use anyhow::{Context as _, Result};
use rustyline::completion::Completer;
use rustyline::config::{BellStyle, CompletionType};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Behavior, Config, Context, Helper};
use std::io::{ErrorKind, IsTerminal};
use std::path::{Path, PathBuf};

/// Lines that the history keeps, and the longest of them in bytes.
const MAX_ENTRIES: usize = 1000;
const MAX_ENTRY: usize = 8 << 10;
/// The longest history file that is read, in bytes: entries, escaped.
const MAX_FILE: u64 = 2 * (MAX_ENTRIES * MAX_ENTRY) as u64;

/// The result of asking.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Text(String),
    /// Ctrl-C: the typed text is dropped.
    Dropped,
    /// Ctrl-D, or the terminal is closed.
    End,
}

/// Completion and continuation of typed lines.
pub(super) trait Lines {
    /// Where the completed word begins in a line up to the cursor, and its completions.
    fn complete(&self, begun: &str) -> (usize, Vec<String>);

    /// Whether more lines must follow.
    fn is_open(&self, text: &str) -> bool;
}

pub(super) struct Editor<L: Lines> {
    inner: rustyline::Editor<Known<L>, DefaultHistory>,
    prompt: &'static str,
    /// The history's file; `None` if there cannot be one.
    history: Option<PathBuf>,
}

impl<L: Lines> Editor<L> {
    /// An editor with the history of earlier lines in the file of this name.
    pub(super) fn new(prompt: &'static str, history: &str, lines: L) -> Result<Self> {
        // If answers go to a file, the prompt must not.
        let behavior = if std::io::stdout().is_terminal() { Behavior::Stdio } else { Behavior::PreferTerm };
        let config = Config::builder().max_history_size(MAX_ENTRIES)?.history_ignore_dups(true)?;
        let config = config.completion_type(CompletionType::List).bell_style(BellStyle::None);
        let mut inner = rustyline::Editor::with_config(config.behavior(behavior).build())?;
        inner.set_helper(Some(Known(lines)));
        let mut editor = Editor { inner, prompt, history: None };
        if let Some(folder) = own::folder("XDG_STATE_HOME", ".local/state") {
            let file = folder.join(history);
            match editor.recall(&file) {
                Ok(()) => editor.history = Some(file),
                Err(error) => {
                    output::remark(&format!("no history of earlier lines: {}: {error:#}", file.display()))
                }
            }
        }
        Ok(editor)
    }

    fn recall(&mut self, file: &Path) -> Result<()> {
        if let Some(folder) = file.parent() {
            own::create(folder)?;
        }
        match file.metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error.into()),
            Ok(found) if !found.is_file() => anyhow::bail!("it is no regular file; remove it"),
            Ok(found) if found.len() > MAX_FILE => {
                anyhow::bail!("it is longer than {MAX_FILE} bytes; remove it")
            }
            Ok(_) => Ok(self.inner.load_history(file)?),
        }
    }

    /// The user's next line or pasted lines.
    pub(super) fn ask(&mut self) -> Result<Asked> {
        match self.inner.readline(self.prompt) {
            Ok(text) => {
                self.remember(&text);
                Ok(Asked::Text(text))
            }
            Err(ReadlineError::Interrupted) => Ok(Asked::Dropped),
            Err(ReadlineError::Eof) => Ok(Asked::End),
            Err(ReadlineError::Io(error)) if error.kind() == ErrorKind::InvalidData => {
                output::remark("(this line is dropped: it is not UTF-8)");
                Ok(Asked::Dropped)
            }
            Err(error) => Err(error).context("cannot read from the terminal"),
        }
    }

    fn remember(&mut self, text: &str) {
        if text.trim().is_empty() || text.len() > MAX_ENTRY {
            return;
        }
        let added = self.inner.add_history_entry(text);
        // If the history cannot be written, only the history is lost.
        if let (Ok(true), Some(file)) = (added, &self.history) {
            let _ = self.inner.append_history(file);
        }
    }
}

struct Known<L>(L);

impl<L: Lines> Helper for Known<L> {}

impl<L> Highlighter for Known<L> {}

impl<L> Hinter for Known<L> {
    type Hint = String;
}

impl<L: Lines> Completer for Known<L> {
    type Candidate = String;

    fn complete(&self, text: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(self.0.complete(&text[..at]))
    }
}

impl<L: Lines> Validator for Known<L> {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let open = self.0.is_open(context.input());
        Ok(if open { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}
