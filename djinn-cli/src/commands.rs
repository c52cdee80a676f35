//! The commands, one module each.

mod doctor;
mod logits;
mod models;
mod plan;
mod run;
mod srg;

use crate::args::{Cli, Command};
use anyhow::Result;
use std::process::ExitCode;

/// Runs the command that the user asked for.
pub(crate) fn run(cli: &Cli) -> Result<ExitCode> {
    let quiet = cli.quiet;
    match &cli.command {
        Command::Run(args) => return run::run(args, quiet),
        Command::Logits(args) => logits::run(args, quiet)?,
        Command::Plan(args) => plan::run(args, quiet)?,
        Command::Srg(args) => srg::run(args, quiet)?,
        Command::Doctor(args) => doctor::run(args, quiet)?,
        Command::Pull(args) => models::pull(&args.name, quiet)?,
        Command::List(args) => models::list(args, quiet)?,
        Command::Rm(args) => models::rm(&args.name, quiet)?,
    }
    Ok(ExitCode::SUCCESS)
}
