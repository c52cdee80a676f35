//! Flags of a server's store, and of commands that use a server.

use clap::{Arg, Args, Command, Id};
use djinn_host::{DeviceArgs, Setup, bytes};
use std::path::PathBuf;

/// Uploaded models.
#[derive(Debug, Args)]
#[command(next_help_heading = "Store")]
pub(crate) struct StoreArgs {
    /// Accept uploaded models (djinn push), and keep them in DIR
    #[arg(long, value_name = "DIR")]
    pub(crate) store: Option<PathBuf>,
    /// Bytes of the models in the store, each equal tensor counted once
    #[arg(long, value_name = "SIZE", value_parser = bytes, default_value = "50GiB")]
    pub(crate) store_quota: u64,
    /// A key as --api-key that may also upload and remove models; may be given several times. Without keys, clients of
    /// this machine may
    #[arg(long, value_name = "KEY", hide_default_value = true)]
    pub(crate) push_key: Vec<String>,
    /// A file of such keys, one a line
    #[arg(long, value_name = "FILE")]
    pub(crate) push_key_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct PushArgs {
    /// The model
    pub(crate) model: String,
    /// The server's URL
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:5556")]
    pub(crate) to: String,
    /// The name in requests [default: the model's own]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Replace the model of this name, once the new one is complete
    #[arg(long)]
    pub(crate) replace: bool,
    /// Pieces sent at the same time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=32))]
    pub(crate) connections: u16,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// A key of the server that may upload models. Other users see command lines: use DJINN_API_KEY
    #[arg(long, value_name = "KEY", hide_default_value = true)]
    pub(crate) api_key: Vec<String>,
}

/// A server to ask.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct ServerArgs {
    /// Ask the server at URL about one of its models
    #[arg(long, value_name = "URL")]
    pub(crate) server: Option<String>,
    /// A key of the server. Other users see command lines: use DJINN_API_KEY
    #[arg(long, value_name = "KEY", hide_default_value = true)]
    pub(crate) api_key: Vec<String>,
}

/// A server that computes instead of this machine. Flags of memory and device are the server's own.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct ElsewhereArgs {
    /// Let the server at URL compute, with one of its models
    #[arg(long, value_name = "URL", conflicts_with_all = decided())]
    pub(crate) server: Option<String>,
    /// A key of the server. Other users see command lines: use DJINN_API_KEY
    #[arg(long, value_name = "KEY", hide_default_value = true)]
    pub(crate) api_key: Vec<String>,
}

/// Flags that the server decided when it loaded its models.
fn decided() -> Vec<Id> {
    let flags = DeviceArgs::augment_args(Setup::augment_args(Command::new("flags"))).arg(Arg::new("trace"));
    flags.get_arguments().map(|arg| arg.get_id().clone()).collect()
}
