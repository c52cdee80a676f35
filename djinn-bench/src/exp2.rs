//! Experiment 2, memory virtualisation: a model larger than the device's memory under one cap, by Djinn, by
//! Djinn without one mechanism each, and by its peers.

mod logits;
mod peers;
pub(crate) mod remote;
pub(crate) mod results;
pub(crate) mod systems;

use crate::args::Exp2Args;
use crate::document::{self, Document};
use crate::gpu::Gpu;
use crate::sample::{self, Samples};
use crate::{figures, interrupt, link, model, process, remark, report, size};
use anyhow::{Context, Result, ensure};
use djinn_cuda::{CudaConfig, CudaDevice};
use djinn_engine::Budget;
use djinn_host::{DeviceName, Setup, one_line};
use peers::Peers;
use results::{Config, Exp2, Row};
use std::time::Duration;
use systems::{CPU_BESIDE, FULL, Kind, SYSTEMS, System};

/// Left free beside the cap when the rest of the card is occupied: what other processes' contexts may take.
const SLACK: u64 = 2 << 30;

/// What samples are taken with.
struct Experiment<'a> {
    args: &'a Exp2Args,
    setup: Setup,
    gpu: Option<Gpu>,
    peers: Peers,
}

pub(crate) fn run(args: &Exp2Args) -> Result<()> {
    if let Some(url) = &args.remote.server {
        return remote::run(args, url);
    }
    let chosen = chosen(args);
    let setup = Setup { encoding: args.encoding, kv_dtype: args.kv_dtype, ..args.device.setup()? };
    check(args, &setup, &chosen)?;
    interrupt::catch(interrupt::stop_all)?;
    remark("measuring the link");
    let experiment = Experiment { args, setup, gpu: Gpu::open(setup.device), peers: Peers::new()? };
    let link = link::measure(&setup)?;
    remark(&format!("{:.1} GB/s from pinned memory to the device", link.pinned.up_gbps));
    let compare = |checkpoint| logits::compare(checkpoint, &setup);
    let logits = args.checkpoint.as_deref().map(compare).transpose()?;
    let config = Config {
        model: model::label(&args.model, args.encoding),
        vram_bytes: args.vram,
        prompt: args.prompt,
        tokens: args.tokens,
        runs: args.runs,
        ablation_runs: args.ablation_runs.unwrap_or(args.runs),
        peer_runs: args.peer_runs,
        process_per_run: args.fresh,
        device: setup.device.to_string(),
    };
    let body = Exp2 { config, link, occupied_bytes: None, logits, systems: vec![] };
    let mut document = Document::new("exp2", setup.device, body);
    if let (true, Some(path)) = (args.add, &args.json) {
        let earlier = report::read::<Exp2>(path, "exp2")?;
        let commit = (earlier.commit != document.commit).then_some(earlier.commit);
        document.body.add(earlier.body, commit.as_deref(), &chosen)?;
    }
    experiment.measure(&chosen, &mut document)?;
    print!("{}", report::exp2(&document));
    if let Some(folder) = &args.figures {
        figures::exp2(&document, folder)?;
        args.trace.as_ref().map_or(Ok(()), |trace| figures::timeline(trace, folder))?;
    }
    let failed: Vec<&str> =
        document.body.systems.iter().filter(|r| r.own && !r.measured()).map(|r| &*r.name).collect();
    ensure!(failed.is_empty(), "no samples of {}", failed.join(", "));
    Ok(())
}

/// The systems that were asked for, each once, in the table's order.
fn chosen(args: &Exp2Args) -> Vec<&'static System> {
    let asked = |system: &&System| args.systems.iter().any(|c| c.0.iter().any(|s| s.name == system.name));
    SYSTEMS.iter().filter(asked).collect()
}

/// Refuses what could only fail later, before anything is measured.
fn check(args: &Exp2Args, setup: &Setup, chosen: &[&'static System]) -> Result<()> {
    let model = model::open_to_plan(setup, &args.model)?;
    let mut options = setup.options_for(&model, args.prompt as u64 + args.tokens as u64 + 1)?;
    for system in chosen.iter().filter(|s| s.capped) {
        let Kind::Own(change) = system.kind else { continue };
        options.budget = Budget { vram: Some(args.vram), ..Budget::default() };
        change(&mut options.budget);
        options
            .plan(&model.graph, 0)
            .with_context(|| format!("{} under {}", system.name, size::human(args.vram)))?;
    }
    document::check_folder(args.json.as_deref())
}

impl Experiment<'_> {
    /// Takes the samples: of the capped systems beside an occupied card, then of the others.
    fn measure(&self, chosen: &[&'static System], document: &mut Document<Exp2>) -> Result<()> {
        interrupt::keep();
        for capped in [true, false] {
            let systems: Vec<_> = chosen.iter().filter(|s| s.capped == capped).collect();
            // Freed at the end of the round.
            let occupied = if capped && !systems.is_empty() { self.occupy()? } else { None };
            if let Some((_, bytes)) = &occupied {
                document.body.occupied_bytes = Some(*bytes);
            }
            for system in systems {
                if interrupt::stop() {
                    remark("stopped; what was measured is kept");
                    break;
                }
                remark(&format!("{}: {}", system.name, system.title));
                let row = self.sample(system)?;
                if let Some(why) = row.failure.as_ref().or(row.unavailable.as_ref()) {
                    remark(&format!("{}: {why}", system.name));
                }
                document.body.systems.push(row);
                document.body.compare(FULL);
                if let Some(path) = &self.args.json {
                    document.write(path)?;
                }
            }
        }
        Ok(())
    }

    /// Takes the card's memory beyond the cap, so that no system can use it.
    fn occupy(&self) -> Result<Option<(CudaDevice, u64)>> {
        let DeviceName::Cuda(ordinal) = self.setup.device else { return Ok(None) };
        if self.args.no_occupy {
            return Ok(None);
        }
        let free = djinn_cuda::probe(ordinal)?
            .free_bytes
            .context("the card does not tell its free memory; use --no-occupy")?;
        let rest = free.saturating_sub(self.args.vram + SLACK);
        if rest < SLACK {
            remark("the card has little more than the cap: nothing to occupy");
            return Ok(None);
        }
        let device = CudaDevice::new(CudaConfig { ordinal, vram: Some(rest), ..CudaConfig::default() });
        remark(&format!("occupying {} of the card", size::human(rest)));
        Ok(Some((device.context("cannot occupy the rest of the card; use --no-occupy")?, rest)))
    }

    fn sample(&self, system: &'static System) -> Result<Row> {
        let args = self.args;
        let runs = match system.kind {
            Kind::Peer(_) => args.peer_runs,
            Kind::Own(_) if system.why.is_some() => args.ablation_runs.unwrap_or(args.runs),
            Kind::Own(_) => args.runs,
        };
        let processes = if args.fresh && system.is_own() { runs } else { 1 };
        let mut row = Row::new(system);
        for _ in 0..processes {
            let command = match system.kind {
                Kind::Own(_) => {
                    let cpu_share = (system.name == CPU_BESIDE).then_some(args.cpu_share);
                    let vram = system.capped.then_some(args.vram);
                    let setup = Setup { vram, cpu_share, ..self.setup };
                    let shape = [args.prompt, args.tokens, runs / processes];
                    sample::command(system.name, &setup, &args.model, shape, args.most_seconds)?
                }
                Kind::Peer(script) => match self.peers.command(args, self.setup.device, script, runs) {
                    Ok(command) => command,
                    Err(why) => {
                        row.unavailable = Some(why);
                        return Ok(row);
                    }
                },
            };
            let words = std::iter::once(command.get_program()).chain(command.get_args());
            row.command = document::command_line(words.map(|word| word.to_string_lossy().into_owned()));
            let ended = process::run(command, Duration::from_secs(args.timeout), self.gpu.as_ref());
            let parse = |text: String| Samples::parse(&text).map_err(|error| one_line(error.as_ref()));
            row.add(ended.output.and_then(parse), ended.memory);
            let measured_s = row.samples.iter().map(|sample| sample.total_ms).sum::<f64>() / 1e3;
            let enough = args.most_seconds.is_some_and(|most| measured_s >= most as f64);
            if enough || !row.measured() || interrupt::stop() {
                break;
            }
        }
        Ok(row)
    }
}
