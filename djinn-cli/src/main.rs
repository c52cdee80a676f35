//! The `djinn` command; see the library for what it does.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    djinn_cli::run(std::env::args_os().collect())
}
