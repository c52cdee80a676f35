//! A command line that cannot be understood, or that asks for help.

use crate::{failure, output};
use anyhow::Context;
use clap::error::ErrorKind;
use djinn_models::printable;
use std::io::Write;

/// Tells what `error` says, help on standard output and a failure in one line on standard error, and ends the process.
pub(super) fn end(error: &clap::Error) -> ! {
    let code = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let shown = error.print().and_then(|()| std::io::stdout().flush()).context("standard output");
            match shown {
                Err(error) if !failure::reader_left(&error) => {
                    output::remark(&format!("error: {}", failure::one_line(&error)));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;

    fn line(args: &[&str]) -> String {
        let error = Cli::command().try_get_matches_from(args).unwrap_err();
        one_line(&error.render().to_string(), error.kind())
    }

    #[test]
    fn failures_are_one_line_with_what_was_meant() {
        for (args, expected) in [
            (
                &["djinn", "run", "--vrma", "1"][..],
                "error: unexpected argument '--vrma' found; a similar argument exists: '--vram'; see --help",
            ),
            (
                &["djinn", "logits", "m"],
                "error: the following required arguments were not provided: --tokens <IDS>; usage: djinn logits \
                 --tokens <IDS> <MODEL>",
            ),
            (
                &["djinn", "srg", "m", "--phase", "x"],
                "error: invalid value 'x' for '--phase <PHASE>' [possible values: prefill, decode]; see --help",
            ),
            (
                &["djinn", "plan", "m", "--gpu", "rtx-3061"],
                "error: invalid value 'rtx-3061' for '--gpu <NAME>': there is no card rtx-3061; did you mean rtx-3060?; \
                 see --help",
            ),
        ] {
            assert_eq!(line(args), expected);
        }
    }
}
