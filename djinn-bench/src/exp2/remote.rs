//! Experiment 2 through a network: a model is sent to a server, and its answers there are measured beside those of this machine.

use super::systems::FULL;
use crate::args::Exp2Args;
use crate::document::{self, Document};
use crate::sample::{self, Sample, Samples};
use crate::statistics::median;
use crate::{figures, interrupt, model, process, remark, report, size};
use anyhow::{Context, Result, anyhow, ensure};
use djinn_host::remote::{Pushed, Remote, RemoteAnswer};
use djinn_host::{Meter, Setup, one_line};
use djinn_models::Location;
use djinn_models::stored::LocalModel;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Pieces that are sent at a time.
const CONNECTIONS: u16 = 4;
/// Requests that do no work, to time the way there and back.
const ROUND_TRIPS: usize = 20;

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Distributed {
    pub(crate) config: DistributedConfig,
    /// The model's way to the server, and the same model once more. None of a model that was there.
    pub(crate) push: Option<Sent>,
    pub(crate) again: Option<Sent>,
    /// A request that does no work, over a connection that is open: median.
    pub(crate) round_trip_ms: f64,
    /// On this machine.
    pub(crate) local: Vec<Sample>,
    /// Through the network.
    pub(crate) remote: Vec<Answered>,
    pub(crate) medians: NetworkCost,
    /// Whether the server's tokens are this machine's; none where nothing was measured here.
    pub(crate) same_tokens: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct DistributedConfig {
    pub(crate) model: String,
    /// As requests call it.
    pub(crate) name: String,
    pub(crate) server: String,
    pub(crate) server_version: String,
    pub(crate) prompt: u32,
    pub(crate) tokens: u32,
    pub(crate) runs: u32,
    /// Of this machine.
    pub(crate) device: String,
    pub(crate) vram_bytes: u64,
}

/// A model's way to the server.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sent {
    #[serde(flatten)]
    pub(crate) pushed: Pushed,
    /// With its manifest, and the checks at the server.
    pub(crate) seconds: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Answered {
    /// As this machine saw it.
    pub(crate) ttft_ms: f64,
    pub(crate) tpot_ms: f64,
    /// By the server's clock.
    pub(crate) server_ttft_ms: f64,
    pub(crate) server_tpot_ms: f64,
    /// Of the request's and the answer's bodies.
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
    pub(crate) tokens: Vec<u32>,
}

/// Medians over the answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct NetworkCost {
    pub(crate) ttft_ms: f64,
    pub(crate) tpot_ms: f64,
    pub(crate) server_ttft_ms: f64,
    pub(crate) server_tpot_ms: f64,
    pub(crate) local_ttft_ms: Option<f64>,
    pub(crate) local_tpot_ms: Option<f64>,
    /// Of what the network adds: the differences of single answers.
    pub(crate) network_ttft_ms: f64,
    pub(crate) network_ms_per_token: f64,
    pub(crate) bytes_per_token: f64,
}

pub(super) fn run(args: &Exp2Args, url: &str) -> Result<()> {
    let setup = Setup { encoding: args.encoding, vram: Some(args.vram), ..args.device.setup()? };
    document::check_folder(args.json.as_deref())?;
    let key = args.remote.api_key.as_deref();
    let server = Remote::new(url, key, None).context("--server")?;
    let version: Value = server.get("/version")?;
    interrupt::catch(interrupt::stop_all)?;
    // Nothing but the vocabulary is asked of it, and where its files are.
    let planned = model::open_to_plan(&setup, &args.model)?;
    let vocab = planned.graph.vocab;
    let (name, push, again) = match &args.remote.named {
        Some(name) => (name.clone(), None, None),
        None => {
            let (push, again) = send(&server, &args.model, &planned.name)?;
            (planned.name.clone(), Some(push), Some(again))
        }
    };
    let config = DistributedConfig {
        model: model::label(&args.model, args.encoding),
        name,
        server: url.to_owned(),
        server_version: version["version"].as_str().unwrap_or_default().to_owned(),
        prompt: args.prompt,
        tokens: args.tokens,
        runs: args.runs,
        device: setup.device.to_string(),
        vram_bytes: args.vram,
    };
    // The first answer loads the model at the server. Its prompt is that of this machine's runs; those that are timed have
    // prompts that are new to the server.
    remark("waiting for the server's first answer");
    let first = answer(&server, &config, model::prompt(args.prompt, vocab, 0))?;
    let round_trip_ms = round_trip(&server)?;
    let salt = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_millis() as u64);
    let mut remote = Vec::new();
    for run in 0..u64::from(args.runs) {
        remark(&format!("answer {} of {}", run + 1, args.runs));
        remote.push(answer(&server, &config, model::prompt(args.prompt, vocab, salt % (1 << 40) + run))?);
    }
    let local = if args.remote.no_local { Vec::new() } else { on_this_machine(args, &setup)? };
    let same_tokens = (!local.is_empty()).then(|| local.iter().all(|sample| sample.tokens == first.tokens));
    let medians = NetworkCost::of(&remote, &local);
    let body = Distributed { config, push, again, round_trip_ms, local, remote, medians, same_tokens };
    let document = Document::new("exp2-remote", setup.device, body);
    document.publish(args.json.as_deref(), report::exp2_remote)?;
    if let Some(folder) = &args.figures {
        figures::exp2_remote(&document, folder)?;
    }
    ensure!(
        same_tokens != Some(false),
        "the server's tokens are not those of this machine: is it the same model?"
    );
    Ok(())
}

/// Sends the model twice.
fn send(server: &Remote, spec: &str, name: &str) -> Result<(Sent, Sent)> {
    let place = Location::find(spec)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let hashing = Meter::new(format!("hashing {name}"), false);
    let model = LocalModel::of(&place, threads, &mut |done, all| hashing.set(done, Some(all)));
    drop(hashing);
    let model =
        model.with_context(|| format!("--model {spec} cannot be sent; --named takes what the server has"))?;
    let once = || -> Result<Sent> {
        let sending = Meter::new(format!("sending {name}"), false);
        let began = Instant::now();
        let pushed = server.push(&model, name, CONNECTIONS, &|done, all| sending.set(done, Some(all)))?;
        Ok(Sent { pushed, seconds: began.elapsed().as_secs_f64() })
    };
    let push = once()?;
    remark(&format!(
        "{name}: sent {} of {}",
        size::human(push.pushed.sent_bytes),
        size::human(push.pushed.bytes)
    ));
    Ok((push, once()?))
}

/// A greedy answer of all tokens that were asked for.
fn answer(server: &Remote, config: &DistributedConfig, prompt: Vec<u32>) -> Result<Answered> {
    let request = json!({
        "model": config.name,
        "prompt_tokens": prompt,
        "max_tokens": config.tokens,
        "greedy": true,
        "ignore_eos": true,
    });
    let go_on = &mut |_: &str| ControlFlow::Continue(());
    let answer = server.generate(&request, go_on)?;
    let came = answer.tokens.len();
    ensure!(came == config.tokens as usize, "the server generated {came} tokens of {}", config.tokens);
    let RemoteAnswer { ttft_ms, tpot_ms, server_ttft_ms, server_tpot_ms, .. } = answer;
    let [ttft_ms, tpot_ms, server_ttft_ms, server_tpot_ms] =
        [ttft_ms, tpot_ms, server_ttft_ms, server_tpot_ms].map(|ms| ms.context("the server tells no time"));
    Ok(Answered {
        ttft_ms: ttft_ms?,
        tpot_ms: tpot_ms?,
        server_ttft_ms: server_ttft_ms?,
        server_tpot_ms: server_tpot_ms?,
        sent_bytes: answer.sent_bytes,
        received_bytes: answer.received_bytes,
        tokens: answer.tokens,
    })
}

fn round_trip(server: &Remote) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..ROUND_TRIPS {
        let began = Instant::now();
        server.get::<Value>("/health")?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    median(times).context("no request was answered")
}

/// The same model on this machine's device, within `--vram`.
fn on_this_machine(args: &Exp2Args, setup: &Setup) -> Result<Vec<Sample>> {
    remark("the same on this machine");
    let shape = [args.prompt, args.tokens, args.runs];
    let command = sample::command(FULL, setup, &args.model, shape, args.most_seconds)?;
    let ended = process::run(command, Duration::from_secs(args.timeout), None);
    let samples =
        ended.output.and_then(|text| Samples::parse(&text).map_err(|error| one_line(error.as_ref())));
    Ok(samples.map_err(|why| anyhow!("{why}; --no-local leaves this machine out"))?.samples)
}

impl NetworkCost {
    fn of(remote: &[Answered], local: &[Sample]) -> Self {
        let each = |value: fn(&Answered) -> f64| median(remote.iter().map(value)).unwrap_or(0.0);
        NetworkCost {
            ttft_ms: each(|a| a.ttft_ms),
            tpot_ms: each(|a| a.tpot_ms),
            server_ttft_ms: each(|a| a.server_ttft_ms),
            server_tpot_ms: each(|a| a.server_tpot_ms),
            local_ttft_ms: median(local.iter().map(|sample| sample.ttft_ms)),
            local_tpot_ms: median(local.iter().map(|sample| sample.tpot_mean_ms)),
            network_ttft_ms: each(|a| a.ttft_ms - a.server_ttft_ms),
            network_ms_per_token: each(|a| a.tpot_ms - a.server_tpot_ms),
            bytes_per_token: each(|a| a.received_bytes as f64 / a.tokens.len() as f64),
        }
    }
}
