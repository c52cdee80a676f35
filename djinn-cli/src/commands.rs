//! The command line, and the commands, one module each.

mod debug;
mod doctor;
mod editor;
mod hooks;
mod logits;
mod models;
mod pack;
mod plan;
mod push;
mod run;
mod serve;
mod srg;
#[cfg(unix)]
mod top;

use crate::args::{Cli, Command};
use crate::interrupt::{Interrupt, UserSignals};
use crate::{config, output};
use anyhow::Result;
use std::ffi::OsString;
use std::process::ExitCode;

/// Runs the command of a command line; `line` begins with the program's name. An error is printed to standard error,
/// as one line.
pub fn run(line: Vec<OsString>) -> ExitCode {
    match UserSignals::keep(&line).and_then(|signals| command(&config::load(line)?, signals)) {
        Ok(code) => code,
        Err(error) if output::reader_left(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::remark(&format!("error: {}", output::one_line(error.as_ref())));
            ExitCode::FAILURE
        }
    }
}

fn command(cli: &Cli, signals: Option<UserSignals>) -> Result<ExitCode> {
    let (quiet, interrupt) = (cli.quiet, Interrupt::install()?);
    match &cli.command {
        Command::Run(args) => return run::run(args, &interrupt, quiet),
        Command::Serve(args) => return serve::run(args, &interrupt, signals, quiet),
        #[cfg(unix)]
        Command::Top(args) => top::run(args, &interrupt)?,
        #[cfg(not(unix))]
        Command::Top(_) => anyhow::bail!(
            "djinn top needs a terminal as Unix has them; open the server's address in a browser"
        ),
        Command::Debug(args) => return debug::run(args, &interrupt, quiet),
        Command::Logits(args) => logits::run(args, quiet)?,
        Command::Plan(args) => plan::run(args, quiet)?,
        Command::Srg(args) => srg::run(args, quiet)?,
        Command::Hooks(args) => hooks::run(args, quiet)?,
        Command::Doctor(args) => doctor::run(args, quiet)?,
        Command::Push(args) => push::run(args, quiet)?,
        Command::Pull(args) => models::pull(&args.name, quiet)?,
        Command::List(args) => models::list(args, quiet)?,
        Command::Rm(args) => models::rm(&args.name, quiet)?,
        Command::Pack(args) => pack::pack(args, quiet)?,
        Command::Unpack(args) => pack::unpack(args, quiet)?,
    }
    Ok(ExitCode::SUCCESS)
}
