//! A command line that cannot be understood, or that asks for help.

mod foreign;
#[cfg(test)]
mod tests;

use crate::output;
use anyhow::Context;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use djinn_models::printable;
use std::error::Error;
use std::io::Write;

/// Prints what `error` says, help on standard output and a failure in one line on standard error, and ends the process.
pub(super) fn end(error: &clap::Error) -> ! {
    let code = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let shown = error.print().and_then(|()| std::io::stdout().flush()).context("standard output");
            match shown {
                Err(error) if !output::reader_left(&error) => {
                    output::remark(&format!("error: {}", output::one_line(error.as_ref())));
                    1
                }
                _ => 0,
            }
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            output::remark(error.render().to_string().trim_end());
            2
        }
        kind => {
            output::remark(&one_line(error, kind));
            2
        }
    };
    std::process::exit(code)
}

/// A value's error, in plain words where it is the standard library's.
pub(crate) fn plain(error: &str) -> String {
    ["invalid digit found in string", "cannot parse integer from empty string"]
        .iter()
        .fold(error.to_owned(), |text, own| text.replace(own, "expected a whole number"))
}

/// An option that other programs have, and what stands for it.
fn foreign(error: &clap::Error, kind: ErrorKind) -> Option<(String, &'static str)> {
    let of = |kind| match error.get(kind)? {
        ContextValue::String(text) => Some(text.as_str()),
        _ => None,
    };
    let option = match (kind, of(ContextKind::InvalidArg)?) {
        (ErrorKind::UnknownArgument, option) => option.to_owned(),
        // `-ngl` is read as `-n gl`.
        (ErrorKind::ValueValidation, arg) if arg.starts_with("--max-tokens ") => {
            format!("-n{}", of(ContextKind::InvalidValue)?)
        }
        _ => return None,
    };
    foreign::remedy(&option).map(|remedy| (option, remedy))
}

/// The parser's paragraphs as one line: what is wrong, what was meant, how it is used.
fn one_line(error: &clap::Error, kind: ErrorKind) -> String {
    if let Some((option, remedy)) = foreign(error, kind) {
        return printable::one_line(&format!("error: there is no '{option}': {remedy}"));
    }
    let text = error.render().to_string();
    let text = if kind == ErrorKind::ValueValidation { plain(&text) } else { text };
    let (mut line, mut usage) = (String::new(), None);
    for part in text.lines().map(str::trim).filter(|part| !part.is_empty()) {
        if part.starts_with("For more information") {
            continue;
        }
        if let Some(words) = part.strip_prefix("Usage: ") {
            usage = Some(words);
            continue;
        }
        let joint = match line.is_empty() {
            true => "",
            false if line.ends_with(':') || part.starts_with('[') => " ",
            false => "; ",
        };
        line = format!("{line}{joint}{}", part.strip_prefix("tip: ").unwrap_or(part));
    }
    let remedy = match usage {
        Some(usage) if kind == ErrorKind::MissingRequiredArgument => format!("usage: {usage}"),
        _ => "see --help".to_owned(),
    };
    let line = format!("{line}; {remedy}");
    match error.source() {
        Some(source) => djinn_host::line_about(&line, source),
        None => printable::one_line(&line),
    }
}
