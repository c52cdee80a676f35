//! The `djinn` command: runs, inspects and plans language models that are larger than device memory.
#![forbid(unsafe_code)]

mod args;
mod atomic;
mod cache;
mod commands;
mod config;
mod interrupt;
mod loaded;
mod output;
mod own;
mod profile;
mod progress;
mod remote;
mod stats;
mod terminal;
mod trace;

pub use commands::run;
use djinn_vmu::size;
