//! `/save` and `/load`: a conversation and its settings as a JSON file.

use super::choices::Changes;
use crate::atomic;
use anyhow::{Context, Result, bail};
use djinn_models::Message;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::Path;

/// The longest file that is read, in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// What is kept of a chat.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Saved {
    pub(super) messages: Vec<Message>,
    /// What `/set` changed.
    #[serde(default)]
    pub(super) settings: Changes,
}

impl Saved {
    /// Writes the file; one that is there is replaced if `overwrite`, else left.
    pub(super) fn write(&self, file: &Path, overwrite: bool) -> Result<()> {
        let failed = || format!("cannot write {}", file.display());
        let mut text = serde_json::to_string_pretty(self).with_context(failed)?;
        text.push('\n');
        let written = atomic::write(file, text.as_bytes(), overwrite);
        if matches!(&written, Err(error) if error.kind() == ErrorKind::AlreadyExists) {
            let file = file.display();
            bail!("{file} is there already; /save! {file} replaces it");
        }
        written.with_context(failed)
    }

    /// Reads a file that [`write`](Self::write) wrote.
    pub(super) fn read(file: &Path) -> Result<Self> {
        let bytes = djinn_models::file::read_bounded(file, MAX_BYTES)?;
        serde_json::from_slice(&bytes).with_context(|| format!("{} is no saved chat", file.display()))
    }
}
