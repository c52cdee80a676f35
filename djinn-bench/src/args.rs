//! The command line.

mod exp1;
mod remote;

use crate::exp2::systems::{self, Choice, System};
use clap::{Args, Parser, Subcommand};
use djinn_device::DType;
use djinn_host::{Card, DeviceArgs, WeightEncoding, bytes};
pub(crate) use exp1::Exp1Args;
use remote::RemoteArgs;
use std::path::PathBuf;
use std::str::FromStr;

/// With the commit of the build.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("DJINN_COMMIT"), ")");

/// Measures Djinn, its peers and the machine, and renders what was measured.
#[derive(Debug, Parser)]
#[command(name = "djinn-bench", version, long_version = VERSION)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure the bandwidth between host and device
    Link(LinkArgs),
    /// Experiment 1: many agents on one device, policy beside policy
    Exp1(Box<Exp1Args>),
    /// Experiment 2: a model larger than the device's memory, Djinn beside its ablations and peers
    Exp2(Box<Exp2Args>),
    /// Experiment 3: sessions that stop at a breakpoint, more than the device's memory holds
    Exp3(Exp3Args),
    /// Decode in batches, streaming and resident
    Sweep(SweepArgs),
    /// Move KV caches between device and host memory, alone and beside decoding
    Swap(SwapArgs),
    /// Compare predicted with measured times per token
    Plan(PlanArgs),
    /// Render results as Markdown
    Report(ReportArgs),
    /// Draw figures as SVG
    Figures(FiguresArgs),
    /// Take samples in this process (what exp2 and plan start)
    #[command(hide = true)]
    Sample(SampleArgs),
}

#[derive(Debug, Args)]
pub(crate) struct LinkArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Write the result there as well
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Exp2Args {
    /// The model: synthetic:NAME, a directory or a file
    #[arg(long, default_value = "synthetic:llama-2-13b")]
    pub(crate) model: String,
    /// How matrices are in memory [default: stored]
    #[arg(long, value_name = "HOW", value_enum)]
    pub(crate) encoding: Option<WeightEncoding>,
    /// Element type of Djinn's KV cache [default: f16, or f32 for f32 weights and on the CPU]
    #[arg(long, value_name = "TYPE", value_parser = djinn_host::kv_type(), conflicts_with = "server")]
    pub(crate) kv_dtype: Option<DType>,
    /// Cap on device memory of the capped systems
    #[arg(long, value_parser = bytes, default_value = "20GiB")]
    pub(crate) vram: u64,
    /// Share of the streamed weights with which the CPU computes in CPU_BESIDE
    #[arg(long, value_name = "F", default_value_t = 0.55, value_parser = djinn_host::share)]
    pub(crate) cpu_share: f64,
    /// Tokens of the prompt
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(crate) prompt: u32,
    /// Tokens to generate, the first included
    #[arg(long, default_value_t = 51, value_parser = clap::value_parser!(u32).range(2..=1 << 20))]
    pub(crate) tokens: u32,
    /// Runs of FULL and RESIDENT
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,
    /// Runs of the ablations [default: as --runs]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) ablation_runs: Option<u32>,
    /// Runs of each peer
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) peer_runs: u32,
    /// Start no further run of a system after it was measured for this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub(crate) most_seconds: Option<u64>,
    /// Load anew, in a process of its own, for every run of Djinn
    #[arg(long)]
    pub(crate) fresh: bool,
    /// What to measure: names, or own, peers, all
    #[arg(long, value_delimiter = ',', default_value = "all", value_parser = systems::parse)]
    pub(crate) systems: Vec<Choice>,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// The Python that runs the peers
    #[arg(long, default_value = "python3")]
    pub(crate) python: PathBuf,
    /// A checkpoint with expected.json beside its weights, to compare logits with
    #[arg(long, value_name = "DIR")]
    pub(crate) checkpoint: Option<PathBuf>,
    /// Leave the rest of the card free instead of occupying it
    #[arg(long)]
    pub(crate) no_occupy: bool,
    /// Seconds that one process may take
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub(crate) timeout: u64,
    /// Write the results there
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Keep what the file of --json says of other systems, e.g. from a first part of the experiment
    #[arg(long, requires = "json")]
    pub(crate) add: bool,
    /// Draw the figures into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) figures: Option<PathBuf>,
    /// A trace of Djinn (djinn run --trace) for the figure of copy against compute
    #[arg(long, value_name = "FILE", requires = "figures")]
    pub(crate) trace: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Exp3Args {
    /// The model
    #[arg(long, default_value = "synthetic:llama-2-13b")]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Cap on device memory: weights, activations, and KV pages with what is left
    #[arg(long, value_parser = bytes, default_value = "80GiB")]
    pub(crate) vram: u64,
    /// Host memory for KV pages of sessions that are stopped
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "48GiB")]
    pub(crate) host_kv: u64,
    /// Sessions
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(2..=4096))]
    pub(crate) sessions: u32,
    /// Tokens of a session at its end
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(128..=1 << 20))]
    pub(crate) context: u32,
    /// Tokens that each session generates, at most half of its context; it stops at the middle one
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(4..=4096))]
    pub(crate) tokens: u32,
    /// Where they stop [default: the middle block's output]
    #[arg(long)]
    pub(crate) hook: Option<String>,
    /// Sessions that decode together while the cost of breakpoints is measured
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=256))]
    pub(crate) batch: u32,
    /// Steps that are timed of each kind: nothing armed, armed, and with a stop in every step
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(10..=100_000))]
    pub(crate) steps: u32,
    /// Write the results there
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct SweepArgs {
    /// The model
    #[arg(long, default_value = "synthetic:llama-2-13b")]
    pub(crate) model: String,
    /// How matrices are in memory [default: stored]
    #[arg(long, value_name = "HOW", value_enum)]
    pub(crate) encoding: Option<WeightEncoding>,
    /// Element type of the KV cache [default: f16, or f32 for f32 weights and on the CPU]
    #[arg(long, value_name = "TYPE", value_parser = djinn_host::kv_type())]
    pub(crate) kv_dtype: Option<DType>,
    /// Cap on device memory while streaming
    #[arg(long, value_parser = bytes, default_value = "20GiB")]
    pub(crate) vram: u64,
    /// Share of the streamed weights with which the CPU computes in steps of up to 8 tokens
    #[arg(long, value_name = "F", value_parser = djinn_host::share)]
    pub(crate) cpu_share: Option<f64>,
    /// Sequences that decode together
    #[arg(long, value_delimiter = ',', default_value = "1,8,32", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) batch: Vec<u32>,
    /// Tokens of each sequence's prompt
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(crate) prompt: u32,
    /// Timed decode passes of each batch, after one that is not timed
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(crate) tokens: u32,
    /// Draw tokens at a temperature of 1 by top-p, instead of taking the best ones
    #[arg(long, value_name = "P")]
    pub(crate) top_p: Option<f32>,
    /// Enqueue each step of served sessions once the tokens of the one before are known
    #[arg(long)]
    pub(crate) no_ahead: bool,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Leave out the sweep with streamed weights
    #[arg(long, conflicts_with = "skip_resident")]
    pub(crate) skip_streaming: bool,
    /// Leave out the sweep with all weights resident
    #[arg(long)]
    pub(crate) skip_resident: bool,
    /// Write the results there
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct SwapArgs {
    /// The model
    #[arg(long, default_value = "synthetic:llama-2-7b")]
    pub(crate) model: String,
    /// Cap on device memory while streaming [default: what keeps half of the weights resident]
    #[arg(long, value_parser = bytes)]
    pub(crate) vram: Option<u64>,
    /// Tokens of each session's context
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(crate) tokens: u32,
    /// Sessions that move each way at a time while another one decodes
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) moving: u32,
    /// Timed decode steps, without swaps and beside them
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(crate) steps: u32,
    /// Transfers of each kind while nothing is computed
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Write the results there
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// A configuration to predict and to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) model: String,
    pub(crate) vram: u64,
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (model, vram) = text.rsplit_once('@').ok_or("expected MODEL@VRAM, e.g. synthetic:tiny@20GiB")?;
        if model.is_empty() {
            return Err("the model before the @ is missing".to_owned());
        }
        Ok(Case { model: model.to_owned(), vram: bytes(vram)? })
    }
}

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// A configuration to compare; repeat for more [default: 7B at 6, 8, 10 GiB and 13B at 12, 16, 20 GiB]
    #[arg(long = "case", value_name = "MODEL@VRAM")]
    pub(crate) cases: Vec<Case>,
    /// The machine that predictions are for
    #[arg(long, default_value = "h200", value_parser = Card::find)]
    pub(crate) gpu: &'static Card,
    /// Tokens of the prompt
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(crate) prompt: u32,
    /// Tokens to generate, the first included
    #[arg(long, default_value_t = 21, value_parser = clap::value_parser!(u32).range(2..=1 << 20))]
    pub(crate) tokens: u32,
    /// Runs of each configuration
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Seconds that one configuration may take
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub(crate) timeout: u64,
    /// Write the results there
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// A folder of JSON results, or one of them
    #[arg(default_value = "results")]
    pub(crate) results: PathBuf,
    /// Write the report there instead of to standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("what").required(true).multiple(true).args(["exp1", "exp2", "trace"])))]
pub(crate) struct FiguresArgs {
    /// Results of exp1: density against latency, sessions and their residency over time
    #[arg(long, value_name = "FILE")]
    pub(crate) exp1: Option<PathBuf>,
    /// Results of exp2: time per token by system, memory over time, or the times at client and server
    #[arg(long, value_name = "FILE")]
    pub(crate) exp2: Option<PathBuf>,
    /// A Chrome trace (djinn run --trace): copy against compute
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// The folder to draw into
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct SampleArgs {
    #[arg(long, value_parser = systems::parse_own)]
    pub(crate) system: &'static System,
    #[arg(long)]
    pub(crate) model: String,
    /// How matrices are in memory [default: stored]
    #[arg(long, value_name = "HOW", value_enum)]
    pub(crate) encoding: Option<WeightEncoding>,
    /// Element type of Djinn's KV cache [default: f16, or f32 for f32 weights and on the CPU]
    #[arg(long, value_name = "TYPE", value_parser = djinn_host::kv_type())]
    pub(crate) kv_dtype: Option<DType>,
    /// Without it there is no cap.
    #[arg(long)]
    pub(crate) vram: Option<u64>,
    #[arg(long, value_parser = djinn_host::share)]
    pub(crate) cpu_share: Option<f64>,
    #[arg(long)]
    pub(crate) prompt: u32,
    #[arg(long)]
    pub(crate) tokens: u32,
    #[arg(long)]
    pub(crate) runs: u32,
    #[arg(long)]
    pub(crate) most_seconds: Option<u64>,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn cases_are_read() {
        let case: Case = "synthetic:tiny?seed=3@20GiB".parse().unwrap();
        assert_eq!(case, Case { model: "synthetic:tiny?seed=3".into(), vram: 20 << 30 });
        for wrong in ["tiny", "@20GiB", "tiny@", "tiny@20"] {
            assert_eq!(wrong.parse::<Case>().is_ok(), wrong == "tiny@20", "{wrong}");
        }
    }
}
