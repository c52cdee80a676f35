//! The command line. Every flag also has a `DJINN_*` variable and a key in the settings file. `config` adds both, so
//! no flag can lack them.

mod remote;
mod values;

use crate::cache;
use anyhow::{Result, ensure};
use clap::{Args, Parser, Subcommand, ValueEnum};
use djinn_engine::{Request, Sampling};
use djinn_host::{DeviceArgs, Generation, PlanAsked, Setup, SrgAsked, bytes};
use djinn_models::Model;
use djinn_server::LogFormat;
pub(crate) use remote::{ElsewhereArgs, PushArgs, ServerArgs, StoreArgs};
use std::net::IpAddr;
use std::path::PathBuf;
use values::{every, fraction, host, listening, origin, penalty, seed, some_bytes, temperature, token};

/// With the commit of the build.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("DJINN_COMMIT"), ")");

/// The text of flags whose defaults depend on the command.
const RUN_CONTEXT: &str = "Tokens that a sequence may have, rounded up to pages of 16 [default: what the request \
    needs; in a chat at most 4096]";
const SERVE_CONTEXT: &str = "Tokens that a sequence may have, rounded up to pages of 16 [default: 4096, or the \
    model's own if that is less]";
const DEBUG_TOKENS: &str = "Tokens to generate at most [default: 256]";
const DEBUG_SEED: &str =
    "Seed of the random numbers [default: a new one each time the command starts, printed then]";
const PLAN_VRAM: &str = "Cap over everything on the device, e.g. 20GiB or 20G [default: for a card of --gpu its \
    memory, else none]";

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
    /// The settings file, instead of the default ones
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
    #[command(mut_arg("context", |arg| arg.help(RUN_CONTEXT)))]
    Run(RunArgs),
    /// Serve models over HTTP, with OpenAI's and Anthropic's APIs
    #[command(mut_arg("context", |arg| arg.help(SERVE_CONTEXT)))]
    Serve(ServeArgs),
    /// Watch a server: memory, sessions, copies against compute
    Top(TopArgs),
    /// Print the logits of every position of a list of tokens
    Logits(LogitsArgs),
    /// Print the memory plan and the predicted speed; load nothing
    #[command(mut_arg("stream_check", |arg| arg.hide(true)), mut_arg("vram", |arg| arg.help(PLAN_VRAM)))]
    Plan(PlanArgs),
    /// Show the model's graph with its annotations
    Srg(SrgArgs),
    /// List the model's hook points: activations that can be read and changed
    Hooks(HooksArgs),
    /// Debug a model: stop at any layer, read and change activations, continue
    #[command(mut_arg("max_tokens", |arg| arg.help(DEBUG_TOKENS)), mut_arg("seed", |arg| arg.help(DEBUG_SEED)))]
    Debug(DebugArgs),
    /// Check and measure this machine
    Doctor(DoctorArgs),
    /// Upload a model to a server's store, except for what the store has; an interrupted upload resumes
    Push(PushArgs),
    /// Download a model into the cache, or check the one that is there
    #[command(after_help = cache::names_help())]
    Pull(NameArgs),
    /// List the models in the cache
    List(ListArgs),
    /// Remove a model from the cache
    Rm(NameArgs),
    /// Store a model's 16-bit weights in 12 bits, without loss; an interrupted run resumes
    Pack(PackArgs),
    /// Restore the files of a packed model
    Unpack(PackArgs),
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The model
    #[arg(default_value = cache::DEFAULT_MODEL)]
    pub(crate) model: String,
    /// The prompt; - reads it from standard input
    pub(crate) prompt: Option<String>,
    /// The prompt as token ids, e.g. 1,2,3
    #[arg(long, value_delimiter = ',', value_name = "IDS", value_parser = token, conflicts_with_all = ["prompt", "raw", "system"])]
    pub(crate) prompt_tokens: Vec<u32>,
    /// Use the prompt without the model's chat template
    #[arg(long)]
    pub(crate) raw: bool,
    /// The system message of the chat; with an empty one, the template decides [default: You are a helpful assistant.]
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub(crate) system: Option<String>,
    /// Print one JSON object: tokens, text, finish, stats
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) server: ElsewhereArgs,
    #[command(flatten)]
    pub(crate) memory: Setup,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Write a timeline of copies, operations and the host to FILE, for ui.perfetto.dev or chrome://tracing
    #[arg(long, value_name = "FILE", help_heading = "Device")]
    pub(crate) trace: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Generation")]
pub(crate) struct SamplingArgs {
    /// Tokens to generate at most [default: 256, in a chat 1024]
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_tokens: Option<u32>,
    /// Always take the most probable token
    #[arg(long)]
    pub(crate) greedy: bool,
    /// Divides the logits; 0 is greedy [default: as the model says, else greedy]
    #[arg(long, value_name = "T", value_parser = temperature)]
    pub(crate) temperature: Option<f32>,
    /// Sample among the K most probable tokens; 0 keeps all
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<u32>,
    /// Sample among the most probable tokens that reach probability P
    #[arg(long, value_name = "P", value_parser = fraction)]
    pub(crate) top_p: Option<f32>,
    /// Sample among tokens with at least P times the probability of the best one; 0 keeps all
    #[arg(long, value_name = "P", value_parser = fraction)]
    pub(crate) min_p: Option<f32>,
    /// Divides the logits of tokens in the text; 1 changes nothing [default: as the model says]
    #[arg(long, value_name = "F", value_parser = penalty)]
    pub(crate) repetition_penalty: Option<f32>,
    /// Seed of the random numbers [default: a new one each time, printed with the statistics]
    #[arg(long, value_name = "N", value_parser = seed)]
    pub(crate) seed: Option<u64>,
    /// Whether the command line has the seed; elsewhere it is a default for runs that sample.
    #[arg(skip)]
    pub(crate) seed_is_asked_for: bool,
    /// End the text before this string; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// Continue after tokens that end a text
    #[arg(long)]
    pub(crate) ignore_eos: bool,
}

impl SamplingArgs {
    /// The library's settings; `max_tokens` is the default number.
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

    /// The request to generate after `tokens`; `max_tokens` is the default number.
    ///
    /// # Errors
    /// As [`check_seed`](Self::check_seed).
    pub(crate) fn request(&self, model: &Model, tokens: Vec<u32>, max_tokens: u32) -> Result<Request> {
        let request = self.generation(max_tokens).request(model, tokens);
        self.check_seed(&request.sampling)?;
        Ok(request)
    }

    /// Refuses a seed on the command line if these settings do not sample.
    pub(crate) fn check_seed(&self, sampling: &Sampling) -> Result<()> {
        ensure!(
            !self.seed_is_asked_for || djinn_host::seed(sampling).is_some(),
            "--seed has no effect without --temperature, --top-k, --top-p or --min-p, or a model that asks for sampling"
        );
        Ok(())
    }
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The model, or several that share the device. The first is loaded at once, each other one at its first request.
    /// NAME=MODEL sets its name in requests [default: smollm2, or the models of --models-dir; none with --store]
    #[arg(value_name = "MODEL")]
    pub(crate) model: Vec<String>,
    /// Also serve the models of a folder, by their names: its .gguf files, and each folder in it that is a MODEL
    #[arg(long, value_name = "DIR")]
    pub(crate) models_dir: Option<PathBuf>,
    /// The name in requests of a single model; may be given several times [default: the model's own]
    #[arg(long, value_name = "NAME")]
    pub(crate) alias: Vec<String>,
    /// The address to listen on; localhost is 127.0.0.1
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = listening)]
    pub(crate) host: IpAddr,
    /// The port to listen on; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 5556)]
    pub(crate) port: u16,
    /// The format of the log, one line for each request
    #[arg(long, value_name = "FORM", value_enum, default_value_t = LogForm::Text)]
    pub(crate) log_format: LogForm,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) memory: Setup,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogForm {
    /// `name=value`
    Text,
    /// A JSON object a line
    Json,
}

impl From<LogForm> for LogFormat {
    fn from(form: LogForm) -> Self {
        match form {
            LogForm::Text => LogFormat::Text,
            LogForm::Json => LogFormat::Json,
        }
    }
}

/// Access to the server.
#[derive(Debug, Args)]
#[command(next_help_heading = "Access")]
pub(crate) struct AccessArgs {
    /// A required key of requests, sent as `Authorization: Bearer KEY`; may be given several times. Other users see
    /// command lines: use DJINN_API_KEY or --api-key-file
    #[arg(long, value_name = "KEY", hide_default_value = true)]
    pub(crate) api_key: Vec<String>,
    /// A file of such keys, one a line
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Listen on an address that others reach, without a key
    #[arg(long)]
    pub(crate) insecure_public: bool,
    /// An allowed name in the header Host; may be given several times [default: loopback names at a loopback address,
    /// else any]
    #[arg(long, value_name = "NAME", value_parser = host)]
    pub(crate) allowed_host: Vec<String>,
    /// An origin whose pages may use the server, as https://example.org; may be given several times
    #[arg(long, value_name = "ORIGIN", value_parser = origin)]
    pub(crate) allowed_origin: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// The server's URL
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:5556")]
    pub(crate) url: String,
    /// A key of the server. Other users see command lines: use DJINN_API_KEY
    #[arg(long, value_name = "KEY", hide_default_value = true)]
    pub(crate) api_key: Vec<String>,
    /// Seconds between two updates
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = every)]
    pub(crate) every: f64,
}

/// Limits of the server.
#[derive(Debug, Args)]
#[command(next_help_heading = "Load")]
pub(crate) struct LoadArgs {
    /// Sessions that compute in one step
    #[arg(long, value_name = "N", default_value_t = 16, visible_aliases = ["np", "parallel"],
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) max_num_seqs: u32,
    /// KV cache on the device, e.g. 4GiB [default: a context for each session of a step, at most a quarter of the memory]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) kv_cache: Option<u64>,
    /// KV cache in host memory, for waiting sessions, e.g. 8GiB
    #[arg(long, value_name = "SIZE", value_parser = bytes, default_value = "0")]
    pub(crate) swap_space: u64,
    /// Policy for KV pages when memory is short: signal, lru, ttl, predicted or none [default: signal]
    #[arg(long, value_name = "NAME", conflicts_with = "scheduler")]
    pub(crate) policy: Option<String>,
    /// Settings of the scheduler: the table `scheduler` of a .yaml or .toml file
    #[arg(long, value_name = "FILE")]
    pub(crate) scheduler: Option<PathBuf>,
    /// Named sessions; the least recently used are forgotten first
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) max_sessions: u32,
    /// Seconds after which an unused session is forgotten
    #[arg(long, value_name = "SECONDS", default_value_t = 1800, value_parser = clap::value_parser!(u32).range(1..=604_800))]
    pub(crate) session_ttl: u32,
    /// Pinned host memory for activations that breakpoints and steering read and change in a step; 0 allows neither
    #[arg(long, value_name = "SIZE", value_parser = bytes, default_value = "64MiB")]
    pub(crate) hook_memory: u64,
    /// Seconds that a session may be paused at a breakpoint
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u32).range(1..=604_800))]
    pub(crate) max_pause: u32,
    /// Steering vectors for all keys: the .json, .safetensors and .gguf files of a folder, by their names
    #[arg(long, value_name = "DIR")]
    pub(crate) steering_dir: Option<PathBuf>,
    /// Requests served or queued; more are answered with 429
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) max_requests: u32,
    /// Connections; more are closed
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) max_connections: u32,
    /// Largest body of a request
    #[arg(long, value_name = "SIZE", value_parser = some_bytes, default_value = "8MiB")]
    pub(crate) max_body: u64,
    /// Seconds for requests to finish after SIGTERM or Ctrl-C
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(0..=86400))]
    pub(crate) drain: u32,
}

#[derive(Debug, Args)]
pub(crate) struct LogitsArgs {
    /// The model
    pub(crate) model: String,
    /// Token ids, e.g. 1,2,3
    #[arg(long, required = true, value_delimiter = ',', value_name = "IDS", value_parser = token)]
    pub(crate) tokens: Vec<u32>,
    /// Print one JSON object with a row of logits for each position, else the best five of each
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ElsewhereArgs,
    #[command(flatten)]
    pub(crate) memory: Setup,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Write a timeline of copies, operations and the host to FILE, for ui.perfetto.dev or chrome://tracing
    #[arg(long, value_name = "FILE", help_heading = "Device")]
    pub(crate) trace: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// The model
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) asked: PlanAsked,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, Args)]
pub(crate) struct HooksArgs {
    /// The model
    pub(crate) model: String,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DebugArgs {
    /// The model
    pub(crate) model: String,
    /// The prompt
    pub(crate) prompt: Option<String>,
    /// Give the model the prompt through its chat template
    #[arg(long)]
    pub(crate) chat: bool,
    /// Memory for reads and changes at hooks
    #[arg(long, value_name = "SIZE", value_parser = bytes, default_value = "256MiB")]
    pub(crate) hook_memory: u64,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) memory: Setup,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SrgArgs {
    /// The model
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) asked: SrgAsked,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
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
pub(crate) struct PackArgs {
    /// The model
    pub(crate) model: String,
    /// The directory to write
    #[arg(long, short, value_name = "DIR")]
    pub(crate) output: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
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
