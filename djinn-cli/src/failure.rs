//! Failures as one line.

use djinn_models::printable;
use std::io;

/// The error with its causes, joined in one printable line. A cause that the text above already ends with is not
/// repeated.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = printable::one_line(&cause.to_string());
        if line.is_empty() {
            line = text;
        } else if !line.ends_with(&text) {
            line = format!("{line}: {text}");
        }
    }
    printable::one_line(&line)
}

/// Whether the reader of standard output went away, which ends a command without a word.
pub(crate) fn reader_left(error: &anyhow::Error) -> bool {
    let broken = |e: &io::Error| e.kind() == io::ErrorKind::BrokenPipe;
    error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>()).any(broken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn causes_are_joined_once() {
        let error = anyhow!("no such file").context("a.bin: no such file").context("cannot\nopen the model");
        assert_eq!(one_line(&error), "cannot open the model: a.bin: no such file");
    }

    #[test]
    fn escapes_of_strangers_do_not_reach_the_terminal() {
        let error = anyhow!("\x1b]0;owned\x07 {}", "x".repeat(10_000)).context("chat template");
        let line = one_line(&error);
        assert!(line.starts_with("chat template: \\u{1b}]0;owned\\u{7} xxx"), "{line}");
        assert!(line.chars().count() <= printable::MAX_CHARS);
    }

    #[test]
    fn a_broken_pipe_is_found_below_its_context() {
        let broken = |kind| anyhow::Error::from(io::Error::from(kind)).context("writing");
        assert!(reader_left(&broken(io::ErrorKind::BrokenPipe)));
        assert!(!reader_left(&broken(io::ErrorKind::NotFound)));
    }
}
