//! A command line that cannot be understood, or that asks for help.

#[cfg(test)]
mod tests;

use crate::output;
use anyhow::Context;
use clap::error::ErrorKind;
use djinn_models::printable;
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
            output::remark(&one_line(&error.render().to_string(), kind));
            2
        }
    };
    std::process::exit(code)
}

/// The parser's paragraphs as one line: what is wrong, what was meant, how it is used.
fn one_line(text: &str, kind: ErrorKind) -> String {
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
    printable::one_line(&format!("{line}; {remedy}"))
}
