//! The line editor: keys, history across chats, completion of commands.

use super::line;
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

const PROMPT: &str = "> ";
/// Messages that the history keeps, and the longest of them in bytes.
const MAX_ENTRIES: usize = 1000;
const MAX_ENTRY: usize = 8 << 10;
/// The longest history file that is read, in bytes: entries, escaped.
const MAX_FILE: u64 = 2 * (MAX_ENTRIES * MAX_ENTRY) as u64;

/// What came of asking.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Text(String),
    /// Ctrl-C: what was typed is dropped.
    Dropped,
    /// Ctrl-D, or the terminal is gone.
    End,
}

/// Asks the user on the terminal.
pub(super) struct Editor {
    inner: rustyline::Editor<Commands, DefaultHistory>,
    /// Where the history is kept; none if it cannot be.
    history: Option<PathBuf>,
}

impl Editor {
    /// An editor with the history of earlier chats. Completes commands, and `settings` after `/set`.
    pub(super) fn new(settings: Vec<String>) -> Result<Self> {
        // Where answers go to a file, the prompt does not.
        let behavior = if std::io::stdout().is_terminal() { Behavior::Stdio } else { Behavior::PreferTerm };
        let config = Config::builder().max_history_size(MAX_ENTRIES)?.history_ignore_dups(true)?;
        let config = config.completion_type(CompletionType::List).bell_style(BellStyle::None);
        let mut inner = rustyline::Editor::with_config(config.behavior(behavior).build())?;
        inner.set_helper(Some(Commands { settings }));
        let mut editor = Editor { inner, history: None };
        if let Some(folder) = own::folder("XDG_STATE_HOME", ".local/state") {
            let file = folder.join("history");
            match editor.recall(&file) {
                Ok(()) => editor.history = Some(file),
                Err(error) => {
                    output::remark(&format!("no history of earlier chats: {}: {error:#}", file.display()))
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
        match self.inner.readline(PROMPT) {
            Ok(text) => {
                self.remember(&text);
                Ok(Asked::Text(text))
            }
            Err(ReadlineError::Interrupted) => Ok(Asked::Dropped),
            Err(ReadlineError::Eof) => Ok(Asked::End),
            Err(error) => Err(error).context("cannot read from the terminal"),
        }
    }

    fn remember(&mut self, text: &str) {
        if text.trim().is_empty() || text.len() > MAX_ENTRY {
            return;
        }
        let added = self.inner.add_history_entry(text);
        // A history that cannot be written is lost, and nothing else.
        if let (Ok(true), Some(file)) = (added, &self.history) {
            let _ = self.inner.append_history(file);
        }
    }
}

/// What the editor knows of a chat's lines: commands, settings, and when a message goes on.
struct Commands {
    settings: Vec<String>,
}

impl Helper for Commands {}

impl Highlighter for Commands {}

impl Hinter for Commands {
    type Hint = String;
}

impl Completer for Commands {
    type Candidate = String;

    fn complete(&self, text: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let (start, known) = match text[..at].strip_prefix("/set ") {
            Some(_) => ("/set ".len(), self.settings.clone()),
            None => (0, line::names().map(str::to_owned).collect()),
        };
        let begun = &text[start..at];
        let fits = |name: &String| !text[..at].is_empty() && name.starts_with(begun);
        Ok((start, known.into_iter().filter(fits).collect()))
    }
}

impl Validator for Commands {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let open = line::is_open(context.input());
        Ok(if open { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}
