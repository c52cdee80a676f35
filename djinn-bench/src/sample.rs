//! Samples: what one generation took. Taken in a process of its own, by Djinn here and by the peers' scripts,
//! and passed on as one JSON object.

use crate::args::SampleArgs;
use crate::exp2::systems::Kind;
use crate::model;
use crate::statistics::{mean, median};
use anyhow::{Context, Result, bail, ensure};
use djinn_device::{Ops, Space};
use djinn_engine::{Engine, Generate, Generated, Options, PassStats, Progress, Request, Service};
use djinn_host::{Needs, OnDevice, Setup, system};
use djinn_models::Model;
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::process::Command;
use std::time::Instant;

/// One generation. Peers leave out what they do not know.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// From the request to the first token.
    pub(crate) ttft_ms: f64,
    /// Time per token after the first: median.
    pub(crate) tpot_ms: f64,
    /// And mean.
    pub(crate) tpot_mean_ms: f64,
    /// From the request to the last token.
    pub(crate) total_ms: f64,
    /// Each token after the first.
    pub(crate) token_ms: Vec<f64>,
    /// Weights that cross to the device, or are computed elsewhere, in a decode pass: the mean. Of experts, only the chosen
    /// ones cross.
    pub(crate) streamed_bytes_per_pass: u64,
    /// Weights that the CPU computes with in host memory in such a pass, and how long that takes: the means.
    pub(crate) cpu_bytes_per_pass: Option<u64>,
    pub(crate) cpu_ms_per_pass: Option<f64>,
    /// Streamed bytes by the time in which copies ran, 1e9 bytes/s.
    pub(crate) copy_gbps: Option<f64>,
    /// The most device memory, by the system's own accounting.
    pub(crate) device_peak_bytes: Option<u64>,
    /// The most resident memory of the process.
    pub(crate) host_peak_bytes: Option<u64>,
    /// How often operations waited for a copy, and how long in all.
    pub(crate) stalls: Option<u32>,
    pub(crate) stall_ms: Option<f64>,
    /// What was generated.
    #[serde(default)]
    pub(crate) tokens: Vec<u32>,
    /// BLAKE3 of the f32 logits after the last token.
    pub(crate) logits: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Samples {
    /// From the process's start of work to its readiness.
    pub(crate) load_ms: Option<f64>,
    #[serde(default)]
    pub(crate) samples: Vec<Sample>,
    /// Why the system cannot run here.
    pub(crate) unavailable: Option<String>,
    /// What a reader should know.
    pub(crate) note: Option<String>,
}

impl Samples {
    /// Reads a process's output: the last line that is a JSON object, as libraries may print before it.
    pub(crate) fn parse(output: &str) -> Result<Samples> {
        let Some(line) = output.lines().rev().find(|line| line.starts_with('{')) else {
            let start: String = output.trim().chars().take(80).collect();
            bail!("it printed no JSON object but {start:?}");
        };
        let samples: Samples = serde_json::from_str(line)?;
        if samples.unavailable.is_none() {
            ensure!(!samples.samples.is_empty(), "it printed no samples");
        }
        for sample in &samples.samples {
            let times = [sample.ttft_ms, sample.tpot_ms, sample.tpot_mean_ms, sample.total_ms];
            ensure!(times.iter().all(|t| t.is_finite() && *t > 0.0), "its times are not positive: {times:?}");
        }
        Ok(samples)
    }
}

/// `djinn-bench sample`: loads a system of Djinn's own, warms up, then `--runs` times.
pub(crate) fn run(args: &SampleArgs) -> Result<()> {
    let Kind::Own(change) = args.system.kind else {
        bail!("{} is no system of Djinn's own", args.system.name)
    };
    let &SampleArgs { vram, cpu_share, encoding, kv_dtype, .. } = args;
    let setup = Setup { vram, cpu_share, encoding, kv_dtype, ..args.device.setup()? };
    let model = model::open(&setup, &args.model)?;
    // One more position, for the logits after the last token.
    let mut options = setup.options_for(&model, args.prompt as u64 + args.tokens as u64 + 1)?;
    change(&mut options.budget);
    let needs = Needs::of(&model, &options);
    let work = TakeSamples { args, model: &model, options: &options };
    let samples = setup.on_device(needs, work)?;
    println!("{}", serde_json::to_string(&samples)?);
    Ok(())
}

/// This program as a process that takes samples of `system`, one of Djinn's own: `shape` is the tokens of the prompt,
/// those to generate, and the runs.
pub(crate) fn command(
    system: &str,
    setup: &Setup,
    model: &str,
    shape: [u32; 3],
    most_seconds: Option<u64>,
) -> Result<Command> {
    let [prompt, tokens, runs] = shape.map(|number| number.to_string());
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    command.args(["sample", "--system", system, "--model", model, "--prompt", &prompt, "--tokens", &tokens]);
    command.args(["--runs", &runs, "--device", &setup.device.to_string()]);
    if let Some(encoding) = setup.encoding {
        command.args(["--encoding", &encoding.to_string()]);
    }
    if let Some(dtype) = setup.kv_dtype {
        command.args(["--kv-dtype", dtype.name()]);
    }
    if let Some(share) = setup.cpu_share {
        command.args(["--cpu-share", &share.to_string()]);
    }
    let mut option = |flag: &str, value: Option<u64>| {
        if let Some(value) = value {
            command.args([flag, &value.to_string()]);
        }
    };
    option("--vram", setup.vram);
    option("--most-seconds", most_seconds);
    option("--threads", setup.threads.map(u64::from));
    Ok(command)
}

struct TakeSamples<'a> {
    args: &'a SampleArgs,
    model: &'a Model,
    options: &'a Options,
}

impl OnDevice for TakeSamples<'_> {
    type Out = Samples;
    type Error = anyhow::Error;

    fn on<D: Ops + 'static>(self, device: D) -> Result<Samples> {
        let TakeSamples { args, model, options } = self;
        let start = Instant::now();
        let mut engine = model::load(device, model, options)?;
        let prompt = model::prompt(args.prompt, model.graph.vocab, 0);
        engine.warm_up(&mut engine.free_pages())?;
        let mut service = Service::single(engine)?;
        let load_ms = Some(start.elapsed().as_secs_f64() * 1e3);
        let (start, mut samples) = (Instant::now(), Vec::new());
        let enough = |samples: &[Sample]| {
            args.most_seconds.is_some_and(|most| !samples.is_empty() && start.elapsed().as_secs() >= most)
        };
        while samples.len() < args.runs as usize && !enough(&samples) {
            samples.push(generate(&mut service, &prompt, args.tokens as usize)?);
        }
        Ok(Samples { load_ms, samples, ..Samples::default() })
    }
}

/// Generates `tokens` tokens in a session of their own.
fn generate<D: Ops>(service: &mut Service<D>, prompt: &[u32], tokens: usize) -> Result<Sample> {
    let mut session = None;
    let mut request = Request { prompt: prompt.to_vec(), max_tokens: tokens, ..Request::default() };
    let mut at = Vec::with_capacity(tokens);
    let start = Instant::now();
    let generated = service.generate(&mut session, &request, &mut |progress| {
        if let Progress::Token(_) = progress {
            at.push(start.elapsed().as_secs_f64() * 1e3);
        }
        ControlFlow::Continue(())
    })?;
    request.prompt.extend_from_slice(&generated.tokens);
    request.max_tokens = 1;
    service.generate(&mut session, &request, &mut |_| ControlFlow::Continue(()))?;
    let logits = service.engine().latest_logits(0)?;
    service.close(session)?;
    ensure!(generated.tokens.len() == tokens, "generated {} tokens of {tokens}", generated.tokens.len());
    Ok(sample(service.engine(), generated, &at, &logits))
}

/// `at`: when each token came, in ms.
fn sample<D: Ops>(engine: &Engine<D>, generated: Generated, at: &[f64], logits: &[f32]) -> Sample {
    let token_ms: Vec<f64> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let mut all = PassStats::default();
    all.add(&generated.stats.prefill_streamed);
    all.add(&generated.stats.decode_streamed);
    let copied = (!all.copy.is_zero()).then(|| all.streamed_bytes as f64 / all.copy.as_secs_f64() / 1e9);
    let (decoded, passes) = (&generated.stats.decode_streamed, generated.stats.decode_passes as u64);
    let mut hash = blake3::Hasher::new();
    for logit in logits {
        hash.update(&logit.to_le_bytes());
    }
    Sample {
        ttft_ms: at[0],
        tpot_ms: median(token_ms.iter().copied()).unwrap_or(0.0),
        tpot_mean_ms: mean(&token_ms).unwrap_or(0.0),
        total_ms: at[at.len() - 1],
        token_ms,
        streamed_bytes_per_pass: decoded.streamed_bytes.checked_div(passes).unwrap_or(0),
        cpu_bytes_per_pass: decoded.cpu_bytes.checked_div(passes),
        cpu_ms_per_pass: (passes > 0).then(|| decoded.cpu.as_secs_f64() * 1e3 / passes as f64),
        copy_gbps: copied,
        device_peak_bytes: Some(engine.usage(Space::Device).peak + engine.device().info().reserved_bytes),
        host_peak_bytes: system::peak_memory(),
        stalls: Some(all.stalls),
        stall_ms: Some(all.stall.as_secs_f64() * 1e3),
        tokens: generated.tokens,
        logits: Some(hash.finalize().to_hex().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"samples": [{"ttft_ms": 5, "tpot_ms": 2, "tpot_mean_ms": 2, "total_ms": 9, "token_ms": [2, 2],
        "streamed_bytes_per_pass": 7}]}"#;

    #[test]
    fn the_last_object_counts() {
        let good = GOOD.replace('\n', "");
        let found = Samples::parse(&format!("warning: slow\n{{\"a\": 1}}\n{good}\nbye\n")).unwrap();
        assert_eq!((found.samples.len(), found.samples[0].streamed_bytes_per_pass), (1, 7));
        let gone = Samples::parse("{\"unavailable\": \"no package\"}").unwrap();
        assert_eq!(gone.unavailable.as_deref(), Some("no package"));
    }

    #[test]
    fn garbage_is_refused() {
        let good = GOOD.replace('\n', "");
        for wrong in
            ["", "hello", "{", "{}", "{\"samples\": []}", &good.replace("\"ttft_ms\": 5", "\"ttft_ms\": 0")]
        {
            assert!(Samples::parse(wrong).is_err(), "{wrong}");
        }
    }
}
