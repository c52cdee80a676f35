//! The `djinn-bench` command: measures the link, experiments 1 to 3, batches, swaps and predictions; renders
//! reports and figures.
#![forbid(unsafe_code)]

mod args;
mod document;
mod exp1;
mod exp2;
mod exp3;
mod figures;
mod gpu;
mod interrupt;
mod link;
mod model;
mod plan;
mod probe;
mod process;
mod report;
mod sample;
mod statistics;
mod swap;
mod sweep;

use args::{Cli, Command};
use clap::Parser;
use djinn_host::{one_line, remark};
use djinn_vmu::size;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.command {
        Command::Link(args) => link::run(args),
        Command::Exp1(args) => exp1::run(args),
        Command::Exp2(args) => exp2::run(args),
        Command::Exp3(args) => exp3::run(args),
        Command::Sweep(args) => sweep::run(args),
        Command::Swap(args) => swap::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Report(args) => report::run(args),
        Command::Figures(args) => figures::run(args),
        Command::Sample(args) => sample::run(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            remark(&format!("error: {}", one_line(error.as_ref())));
            ExitCode::FAILURE
        }
    }
}
