//! The command line of experiment 1.

use crate::exp1::policies;
use clap::Args;
use djinn_host::{Card, DeviceArgs, bytes};
use std::path::PathBuf;

/// Defaults are of the large experiment. On the CPU without --model they are of a small one that takes a minute.
#[derive(Clone, Debug, Args)]
pub(crate) struct Exp1Args {
    /// The model: synthetic:NAME, a directory or a file [default: synthetic:tiny on the CPU, simulated and on cards of
    /// 16 GiB or more synthetic:llama-2-7b, else synthetic:llama-3.2-1b]
    #[arg(long)]
    pub(crate) model: Option<String>,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Cap on device memory: weights, activations, and KV pages with what is left [default: 63GiB, or what the machine
    /// has; 2MiB for the tiny model on the CPU]
    #[arg(long, value_parser = bytes)]
    pub(crate) vram: Option<u64>,
    /// Cap on host memory that Djinn takes [default: half of the machine's; simulated: none]
    #[arg(long, value_parser = bytes)]
    pub(crate) ram: Option<u64>,
    /// Host memory for KV pages; 0 for none [default: every agent's context, as far as --ram allows]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) host_kv: Option<u64>,
    /// What agents do: closed, hard, reported, coding, or a trace: a CSV file of Azure's or TraceLab's columns
    #[arg(long, default_value = "closed")]
    pub(crate) workload: String,
    #[arg(long, value_delimiter = ',', help = policies::help())]
    pub(crate) policies: Vec<String>,
    /// Agents; of `reported`, sessions that come [default: 80]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) agents: Option<u32>,
    /// Sessions that each agent of a closed loop runs before it stops [default: goes on until the time is over]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(crate) sessions: Option<u32>,
    /// Seconds that are measured; less where the workload ends [default: 120; reported and traces: 900]
    #[arg(long)]
    pub(crate) seconds: Option<f64>,
    /// Seconds before, in which the machine fills [default: 30; 0 where the workload ends by itself]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) warm_up: Option<f64>,
    /// Seed of prompts, arrivals and waits
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Tokens of a session at its end [default: 2048; hard: 32768; coding: up to 65536; traces: the longest session]
    #[arg(long)]
    pub(crate) context: Option<u64>,
    /// Tokens generated in a turn [default: 128]
    #[arg(long)]
    pub(crate) turn_tokens: Option<u64>,
    /// Turns of a session [default: 3; reported: 2]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) turns: Option<u32>,
    /// Seconds between turns, uniform between two [default: 10,20]
    #[arg(long, value_name = "LEAST,MOST", value_delimiter = ',')]
    pub(crate) think: Vec<f64>,
    /// What share of a session's first prompt is the same in all sessions, 0 to 1; its keys and values are shared in
    /// whole prefill chunks
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub(crate) shared_prefix: f64,
    /// Sessions of `reported` that come per second, at random [default: 0.2]
    #[arg(long, value_name = "PER_SECOND")]
    pub(crate) rate: Option<f64>,
    /// Also find the most of these numbers of agents that hold the latency bound, 1.5 times one agent's alone
    #[arg(long, value_name = "AGENTS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) density: Vec<u32>,
    /// Constants of the policies: the table `scheduler` of a .yaml or .toml file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Simulate instead of running the model, with the times of --profile or --gpu
    #[arg(long, conflicts_with = "simulate_too")]
    pub(crate) simulate: bool,
    /// After each run, simulate the same with the measured profile and tell the difference
    #[arg(long)]
    pub(crate) simulate_too: bool,
    /// Take times from there instead of measuring them: a result of exp1, or a profile alone
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
    /// The machine whose roofline is simulated where there is no profile [default: h200]
    #[arg(long, requires = "simulate", conflicts_with = "profile", value_parser = Card::find)]
    pub(crate) gpu: Option<&'static Card>,
    /// Write the results there
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Draw the figures into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) figures: Option<PathBuf>,
}
