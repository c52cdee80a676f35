//! The `djinn` command: runs, inspects and plans language models that are larger than device memory.
#![forbid(unsafe_code)]

mod args;
mod cache;
mod commands;
mod config;
mod failure;
mod loaded;
mod output;
mod profile;
mod progress;
mod stats;
mod trace;

use djinn_vmu::size;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    match config::load().and_then(|cli| commands::run(&cli)) {
        Ok(code) => code,
        Err(error) if failure::reader_left(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to tell if standard error is gone as well.
            let _ = writeln!(std::io::stderr(), "error: {}", failure::one_line(&error));
            ExitCode::FAILURE
        }
    }
}
