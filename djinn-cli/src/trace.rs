//! `--trace`: the file is opened before anything is loaded, and written when all is over.

use anyhow::{Context, Result};
use djinn_host::AnyEngine;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Where the trace goes, if one is wanted. What lay there stays until the trace is written; a file that was
/// made for it is removed if none ever is.
pub(crate) struct TraceFile(Option<Opened>);

struct Opened {
    path: PathBuf,
    file: File,
    /// Whether the file is new and still empty.
    empty: bool,
}

impl TraceFile {
    /// Makes sure that `path` can be written.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Ok(TraceFile(None)) };
        let open = |new| OpenOptions::new().write(true).create_new(new).open(path);
        let opened = match open(true) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => open(false).map(|file| (file, false)),
            opened => opened.map(|file| (file, true)),
        };
        let (file, empty) = opened.with_context(|| cannot_write(path))?;
        Ok(TraceFile(Some(Opened { path: path.to_owned(), file, empty })))
    }

    /// Ends the engine's trace and writes it, whether what was traced succeeded or not. Returns `outcome`. If both it
    /// and the writing failed, the error of `outcome` is reported.
    pub(crate) fn write<T>(mut self, engine: &mut dyn AnyEngine, outcome: Result<T>) -> Result<T> {
        let (Some(opened), Some(trace)) = (&mut self.0, engine.finish_trace()) else { return outcome };
        opened.empty = false;
        let written = (|| {
            if opened.file.metadata()?.is_file() {
                opened.file.set_len(0)?;
            }
            let mut out = BufWriter::new(&opened.file);
            trace.write(&mut out)?;
            out.flush()
        })();
        let value = outcome?;
        written.with_context(|| cannot_write(&opened.path))?;
        Ok(value)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if self.empty {
            // If that fails, an empty file is left.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn cannot_write(path: &Path) -> String {
    format!("--trace: cannot write {}", path.display())
}
