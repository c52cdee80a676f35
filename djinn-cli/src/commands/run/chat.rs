//! A chat on the terminal: one session, whose keys and values are kept from turn to turn.

use super::interrupt::Interrupt;
use super::show::Shown;
use crate::args::RunArgs;
use crate::loaded::{Loaded, in_flags};
use crate::output;
use crate::stats::Report;
use anyhow::{Context, Result};
use djinn_engine::{Error, Request, Session};
use djinn_host::{Speech, seed};
use djinn_models::Message;
use std::io::Write;

/// Talks until the end of standard input, `/exit` or Ctrl-C at rest. `template` is the request without its
/// prompt.
pub(super) fn run(
    loaded: &mut Loaded,
    speech: &Speech<'_>,
    template: &Request,
    args: &RunArgs,
    interrupt: &Interrupt,
    quiet: bool,
) -> Result<()> {
    speech.tokenizer().map_err(in_flags)?;
    let Loaded { engine, time } = loaded;
    let shown = Shown { speech, stop: &args.sampling.stop, interrupt, show: true };
    let (mut session, mut messages) = (Session::default(), speech.opening());
    if !quiet {
        output::remark("Ctrl-C ends an answer; /clear begins anew; /exit or Ctrl-D ends the chat");
    }
    while let Some(line) = ask()? {
        match line.trim() {
            "" => continue,
            "/exit" => break,
            "/clear" => {
                messages = speech.opening();
                continue;
            }
            _ => messages.push(Message::new("user", line)),
        }
        let request = Request { prompt: speech.turn(&messages)?, ..template.clone() };
        match shown.answer(&mut **engine, &mut session, &request) {
            Ok(answer) => {
                output::piece("\n")?;
                messages.push(Message::new("assistant", answer.text.unwrap_or_default()));
                if !quiet {
                    let seed = seed(&request.sampling);
                    Report::new(&**engine, &answer.stats, *time, seed).remark();
                }
            }
            Err(error) => match error.downcast_ref::<Error>() {
                Some(full @ Error::ContextFull { .. }) => {
                    output::remark(&format!("{full}, or begin anew with /clear"));
                    messages.pop();
                }
                _ => return Err(error),
            },
        }
    }
    Ok(())
}

/// The user's next line; none at the end.
fn ask() -> Result<Option<String>> {
    // A prompt that cannot be shown harms nobody.
    let mut terminal = std::io::stderr();
    let _ = write!(terminal, "> ").and_then(|()| terminal.flush());
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line).context("cannot read from the terminal")?;
    let end = line.trim_end_matches(['\n', '\r']).len();
    line.truncate(end);
    Ok((read > 0).then_some(line))
}
