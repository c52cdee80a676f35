//! The command line. Every flag also has a `DJINN_*` variable and a key in the settings file: `config` adds
//! both, so that no flag can miss them.

use crate::{cache, size};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use djinn_host::{Card, DeviceName, Generation, Setup};
use djinn_srg::DType;
use std::path::PathBuf;

/// With the commit of the build.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("DJINN_COMMIT"), ")");

/// Runs language models that are larger than device memory, by streaming their weights.
///
/// MODEL is a directory in Hugging Face's layout, a .gguf or .safetensors file, a hub id, a short name
/// (smollm2), or synthetic:NAME (the shapes of NAME with seeded random weights).
///
/// Every flag is also read from the variable DJINN_<FLAG> and from the key <flag> of a settings file: djinn.toml or
/// djinn.yaml in the working directory (memory, device and sampling only), then config.toml or config.yaml in
/// ~/.config/djinn. A flag wins over a variable, a variable over the files.
#[derive(Debug, Parser)]
#[command(name = "djinn", version, long_version = VERSION)]
pub(crate) struct Cli {
    /// The settings file, in place of those that are looked for
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print neither progress nor statistics
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Generate text; chat when there is no prompt and the input is a terminal
    Run(RunArgs),
    /// Print the logits of every position of a list of tokens
    Logits(LogitsArgs),
    /// Say where every byte would lie and how fast it would run; load nothing
    #[command(mut_arg("stream_check", |arg| arg.hide(true)))]
    Plan(PlanArgs),
    /// Show the model's graph with its annotations
    Srg(SrgArgs),
    /// Examine and measure this machine
    Doctor(DoctorArgs),
    /// Fetch a model into the cache, or check the one that is there
    #[command(after_help = cache::names_help())]
    Pull(NameArgs),
    /// List the models in the cache
    List(ListArgs),
    /// Remove a model from the cache
    Rm(NameArgs),
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The model
    #[arg(default_value = cache::DEFAULT_MODEL)]
    pub(crate) model: String,
    /// The prompt; - reads it from standard input
    pub(crate) prompt: Option<String>,
    /// The prompt as token ids, e.g. 1,2,3
    #[arg(long, value_delimiter = ',', value_name = "IDS", conflicts_with_all = ["prompt", "raw", "system"])]
    pub(crate) prompt_tokens: Vec<u32>,
    /// Give the model the prompt as it is, without its chat template
    #[arg(long)]
    pub(crate) raw: bool,
    /// The system message of the chat; an empty one leaves it to the template [default: You are a helpful assistant.]
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub(crate) system: Option<String>,
    /// Print one JSON object: tokens, text, finish, stats
    #[arg(long)]
    pub(crate) json: bool,
    /// Move the KV cache to host memory and back after every N steps, to test that it changes nothing
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) force_park_every: Option<u32>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Generation")]
pub(crate) struct SamplingArgs {
    /// Tokens to generate at most [default: 256, in a chat 1024]
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_tokens: Option<u32>,
    /// Always take the likeliest token
    #[arg(long)]
    pub(crate) greedy: bool,
    /// Divides the logits; 0 is greedy [default: as the model says, else greedy]
    #[arg(long, value_name = "T", value_parser = temperature)]
    pub(crate) temperature: Option<f32>,
    /// Sample among the K likeliest tokens; 0 keeps all
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<u32>,
    /// Sample among the likeliest tokens that reach probability P
    #[arg(long, value_name = "P", value_parser = fraction)]
    pub(crate) top_p: Option<f32>,
    /// Sample among tokens with at least P times the probability of the likeliest; 0 keeps all
    #[arg(long, value_name = "P", value_parser = fraction)]
    pub(crate) min_p: Option<f32>,
    /// Divides the logits of tokens that the text has already; 1 changes nothing [default: as the model says]
    #[arg(long, value_name = "F", value_parser = penalty)]
    pub(crate) repetition_penalty: Option<f32>,
    /// Seed of the random numbers [default: a new one each time, told in the statistics]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Whether the command line has the seed; elsewhere it is a default for runs that sample.
    #[arg(skip)]
    pub(crate) seed_is_asked_for: bool,
    /// End the text before this string; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// Go on after tokens that end a text
    #[arg(long)]
    pub(crate) ignore_eos: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Memory")]
pub(crate) struct MemoryArgs {
    /// Cap over everything on the device, e.g. 20GiB or 20G [default: none; for a card of --gpu, its memory]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) vram: Option<u64>,
    /// Cap over the weights kept on the host [default: none]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) ram: Option<u64>,
    /// Share of the weights that stays on the device, 0 to 1 [default: as much as fits]
    #[arg(long, value_name = "F", value_parser = share)]
    pub(crate) resident_fraction: Option<f64>,
    /// Largest unit of residency and transfer [default: the model's tile size]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) chunk: Option<u64>,
    /// Ring through which weights stream [default: three chunks, fewer where that does not fit]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) ring: Option<u64>,
    /// Check every streamed chunk against its host copy
    #[arg(long)]
    pub(crate) stream_check: bool,
    /// Tokens that a sequence may have, rounded up to pages of 16 [default: what the request needs; in a chat at most 4096]
    #[arg(long, short = 'c', value_name = "N", visible_aliases = ["ctx-size", "max-model-len"],
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) ctx: Option<u64>,
    /// Element type of the KV cache [default: f32 on the CPU and for f32 weights, else f16]
    #[arg(long, value_name = "TYPE", value_parser = dtype())]
    pub(crate) kv_dtype: Option<DType>,
    /// Element type of the weights in memory [default: as stored; f16 for quantised ones]
    #[arg(long, value_name = "TYPE", value_parser = dtype())]
    pub(crate) dtype: Option<DType>,
    /// Tokens of a prompt that are run at once
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) prefill_chunk: u32,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Device")]
pub(crate) struct DeviceArgs {
    /// cpu, cuda[:N], or auto: the GPU if there is one
    #[arg(long, value_name = "DEVICE", default_value = "cpu", value_parser = clap::value_parser!(DeviceName))]
    pub(crate) device: DeviceName,
    /// Threads that compute [default: as many as the machine runs at once]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,
    /// Write a timeline of copies, operations and the host to FILE, for ui.perfetto.dev or chrome://tracing
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
}

impl MemoryArgs {
    /// As the library takes it, on `device`, with `threads` threads.
    pub(crate) fn setup(&self, device: DeviceName, threads: Option<u32>) -> Setup {
        Setup {
            device,
            threads,
            vram: self.vram,
            ram: self.ram,
            resident_fraction: self.resident_fraction,
            chunk: self.chunk,
            ring: self.ring,
            stream_check: self.stream_check,
            context: self.ctx,
            kv_dtype: self.kv_dtype,
            dtype: self.dtype,
            prefill_rows: self.prefill_chunk,
        }
    }
}

impl SamplingArgs {
    /// As the library takes it; `max_tokens` where the user names no number.
    pub(crate) fn generation(&self, max_tokens: u32) -> Generation {
        Generation {
            max_tokens: self.max_tokens.unwrap_or(max_tokens),
            greedy: self.greedy,
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed,
            stop: self.stop.clone(),
            ignore_eos: self.ignore_eos,
            ..Generation::default()
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct LogitsArgs {
    /// The model
    pub(crate) model: String,
    /// Token ids, e.g. 1,2,3
    #[arg(long, required = true, value_delimiter = ',', value_name = "IDS")]
    pub(crate) tokens: Vec<u32>,
    /// Print one JSON object with a row of logits for each position, else the best five of each
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// The model
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) work: WorkArgs,
    /// Tokens to generate
    #[arg(long, short = 'n', value_name = "N", default_value_t = 128,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_tokens: u32,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
}

/// The work and the machine that a prediction is for.
#[derive(Debug, Args)]
pub(crate) struct WorkArgs {
    /// A card, e.g. rtx-3060, rtx-4090, a100-80, h200 [default: this machine's CPU, as `djinn doctor --save` measured
    /// it, else measured at once]
    #[arg(long, value_name = "NAME", value_parser = card)]
    pub(crate) gpu: Option<&'static Card>,
    /// Instead of the machine's: host memory to device, GB/s
    #[arg(long, value_name = "X", value_parser = rate)]
    pub(crate) link_gbps: Option<f64>,
    /// Instead of the machine's: reads of device memory, GB/s
    #[arg(long, value_name = "X", value_parser = rate)]
    pub(crate) hbm_gbps: Option<f64>,
    /// Instead of the machine's: matrix products of 16-bit numbers, TFLOP/s
    #[arg(long, value_name = "X", value_parser = rate)]
    pub(crate) tflops: Option<f64>,
    /// Tokens of the prompt
    #[arg(long, value_name = "N", default_value_t = 512,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) prompt_len: u32,
    /// Sequences that decode together
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) batch: u32,
}

#[derive(Debug, Args)]
pub(crate) struct SrgArgs {
    /// The model
    pub(crate) model: String,
    /// What the costs are for
    #[arg(long, value_enum, default_value_t = Phase::Decode)]
    pub(crate) phase: Phase,
    /// Print the graph in Graphviz's DOT
    #[arg(long, conflicts_with = "json")]
    pub(crate) dot: bool,
    /// Print the graph as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) work: WorkArgs,
    /// Element type of the KV cache [default: f32 on the CPU and for f32 weights, else f16]
    #[arg(long, value_name = "TYPE", value_parser = dtype())]
    pub(crate) kv_dtype: Option<DType>,
    /// Element type of the weights in memory [default: as stored; f16 for quantised ones]
    #[arg(long, value_name = "TYPE", value_parser = dtype())]
    pub(crate) dtype: Option<DType>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Phase {
    Prefill,
    Decode,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Keep the measured rates, for the predictions of `djinn plan`
    #[arg(long)]
    pub(crate) save: bool,
    /// Threads that compute [default: as many as the machine runs at once]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct NameArgs {
    /// The model's name
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Compare every file with its hash; fail if a model is damaged
    #[arg(long)]
    pub(crate) check: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

fn dtype() -> impl TypedValueParser<Value = DType> {
    PossibleValuesParser::new(["f32", "f16", "bf16"]).map(|name| match name.as_str() {
        "f32" => DType::F32,
        "f16" => DType::F16,
        _ => DType::BF16,
    })
}

fn card(text: &str) -> Result<&'static Card, String> {
    Card::find(text).map_err(|error| error.to_string())
}

fn rate(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|rate| (0.001..=1e6).contains(rate));
    value.ok_or_else(|| "expected a number from 0.001 to 1000000".to_owned())
}

fn temperature(text: &str) -> Result<f32, String> {
    let value = text.parse::<f32>().ok().filter(|t| t.is_finite() && *t >= 0.0);
    value.ok_or_else(|| "expected a number, 0 or more".to_owned())
}

fn penalty(text: &str) -> Result<f32, String> {
    let value = text.parse::<f32>().ok().filter(|f| f.is_finite() && *f > 0.0);
    value.ok_or_else(|| "expected a number above 0".to_owned())
}

fn fraction(text: &str) -> Result<f32, String> {
    share(text).map(|value| value as f32)
}

fn share(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|f| (0.0..=1.0).contains(f));
    value.ok_or_else(|| "expected a number from 0 to 1".to_owned())
}
