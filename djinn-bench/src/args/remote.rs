//! Flags of experiment 2 through a network.

use clap::Args;

/// What the measurement through a network has in place of systems beside each other.
const OTHERS: [&str; 9] =
    ["systems", "ablation_runs", "peer_runs", "fresh", "python", "checkpoint", "no_occupy", "add", "trace"];

#[derive(Debug, Args)]
#[command(next_help_heading = "Through a network")]
pub(crate) struct RemoteArgs {
    /// Send the model to the server at URL, and measure its answers there beside those of this machine
    #[arg(long, value_name = "URL", conflicts_with_all = OTHERS)]
    pub(crate) server: Option<String>,
    /// Send nothing: the server has the model, and requests call it NAME
    #[arg(long, value_name = "NAME", requires = "server")]
    pub(crate) named: Option<String>,
    /// Leave this machine's own answers out
    #[arg(long, requires = "server")]
    pub(crate) no_local: bool,
    /// A key of the server's that may send models. Other users see command lines: use DJINN_API_KEY
    #[arg(long, value_name = "KEY", env = "DJINN_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,
}
