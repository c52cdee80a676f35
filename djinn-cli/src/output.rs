//! Standard output, with failures to write as errors.

use anyhow::{Context, Result};
pub(crate) use djinn_host::{one_line, remark};
use djinn_models::printable;
use serde::Serialize;
use std::io::{BufWriter, ErrorKind, IsTerminal, Write};

/// Prints lines of text and a line feed; control characters are written out.
pub(crate) fn line(text: &str) -> Result<()> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    writeln!(out, "{}", printable::lines(text)).and_then(|()| out.flush()).context("standard output")
}

/// Prints `value` as one JSON object on a line of its own.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    serde_json::to_writer(&mut out, value).map_err(std::io::Error::from).context("standard output")?;
    writeln!(out).and_then(|()| out.flush()).context("standard output")
}

/// Prints text at once: as it is, but without control characters that a terminal acts on.
pub(crate) fn piece(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    if out.is_terminal() {
        out.write_all(printable::lines(text).as_bytes())?;
    } else {
        out.write_all(text.as_bytes())?;
    }
    out.flush()
}

/// Whether the reader of standard output went away, which ends a command without a word.
pub(crate) fn reader_left(error: &anyhow::Error) -> bool {
    let broken = |e: &std::io::Error| e.kind() == ErrorKind::BrokenPipe;
    error.chain().filter_map(|cause| cause.downcast_ref()).any(broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_pipe_is_found_below_its_context() {
        let broken = |kind| anyhow::Error::from(std::io::Error::from(kind)).context("writing");
        assert!(reader_left(&broken(ErrorKind::BrokenPipe)));
        assert!(!reader_left(&broken(ErrorKind::NotFound)));
    }
}
