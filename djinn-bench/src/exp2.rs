//! Experiment 2, memory virtualisation: a model larger than the device's memory under one cap, by Djinn, by
//! Djinn without one mechanism each, and by its peers.

mod logits;
mod peers;
pub(crate) mod results;
pub(crate) mod systems;

use crate::args::{DeviceName, Exp2Args};
use crate::document::Document;
use crate::gpu::Gpu;
use crate::process;
use crate::sample::Samples;
use crate::subject;
use crate::{figures, interrupt, link, remark, report, size};
use anyhow::{Context, Result, ensure};
use djinn_cuda::{CudaConfig, CudaDevice};
use peers::Peers;
use results::{Config, Exp2, Row};
use std::process::Command;
use std::time::Duration;
use systems::{FULL, Kind, SYSTEMS, System};

/// Left free beside the cap when the rest of the card is occupied: what other processes' contexts may take.
const SLACK: u64 = 2 << 30;

/// `djinn-bench exp2`.
pub(crate) fn run(args: &Exp2Args) -> Result<()> {
    let chosen = chosen(args);
    check(args, &chosen)?;
    interrupt::catch(interrupt::stop_all)?;
    remark("measuring the link");
    let gpu = Gpu::open(args.device.device);
    let link = link::measure(&args.device)?;
    remark(&format!("{:.1} GB/s from pinned memory to the device", link.pinned.up_gbps));
    let logits = match &args.checkpoint {
        Some(checkpoint) => Some(logits::compare(checkpoint, &args.device)?),
        None => None,
    };
    let config = Config {
        model: args.model.clone(),
        vram_bytes: args.vram,
        prompt: args.prompt,
        tokens: args.tokens,
        runs: args.runs,
        ablation_runs: args.ablation_runs.unwrap_or(args.runs),
        peer_runs: args.peer_runs,
        process_per_run: args.fresh,
        device: args.device.device.to_string(),
    };
    let body = Exp2 { config, link, occupied_bytes: None, logits, systems: vec![] };
    let mut document = Document::new("exp2", args.device.device, body);
    if let (true, Some(path)) = (args.add, &args.json) {
        let earlier = report::read_exp2(path)?;
        let commit = (earlier.commit != document.commit).then_some(earlier.commit);
        document.body.add(earlier.body, commit.as_deref(), &chosen)?;
    }
    measure(args, &chosen, gpu.as_ref(), &mut document)?;
    print!("{}", report::exp2(&document));
    draw(args, &document)?;
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
fn check(args: &Exp2Args, chosen: &[&'static System]) -> Result<()> {
    let device = args.device.device;
    subject::check_device(device)?;
    let model = subject::open(&args.model)?;
    let mut options = subject::options(&model, device, args.prompt as u64 + args.tokens as u64 + 1)?;
    for system in chosen.iter().filter(|s| s.capped) {
        let Kind::Own(change) = system.kind else { continue };
        options.budget = djinn_engine::Budget { vram: Some(args.vram), ..Default::default() };
        change(&mut options.budget);
        options
            .plan(&model.graph, 0)
            .with_context(|| format!("{} under {}", system.name, size::human(args.vram)))?;
    }
    for path in args.json.iter().filter_map(|path| path.parent()).filter(|p| !p.as_os_str().is_empty()) {
        ensure!(path.is_dir(), "{}: no such folder for --json", path.display());
    }
    Ok(())
}

/// Takes the samples: of the capped systems beside an occupied card, then of the others.
fn measure(
    args: &Exp2Args,
    chosen: &[&'static System],
    gpu: Option<&Gpu>,
    document: &mut Document<Exp2>,
) -> Result<()> {
    interrupt::keep();
    let peers = Peers::new()?;
    for capped in [true, false] {
        let systems: Vec<_> = chosen.iter().filter(|s| s.capped == capped).collect();
        // Freed at the end of the round.
        let occupied = if capped && !systems.is_empty() { occupy(args)? } else { None };
        if capped {
            let bytes = occupied.as_ref().map(|(_, bytes)| *bytes);
            document.body.occupied_bytes = bytes.or(document.body.occupied_bytes);
        }
        for system in systems {
            if interrupt::stop() {
                remark("stopped; what was measured is kept");
                break;
            }
            remark(&format!("{}: {}", system.name, system.title));
            let row = sample(args, system, &peers, gpu)?;
            if let Some(why) = row.failure.as_ref().or(row.unavailable.as_ref()) {
                remark(&format!("{}: {why}", system.name));
            }
            document.body.systems.push(row);
            document.body.compare(FULL);
            if let Some(path) = &args.json {
                document.write(path)?;
            }
        }
    }
    Ok(())
}

/// Takes the card's memory beyond the cap, so that no system can use it.
fn occupy(args: &Exp2Args) -> Result<Option<(CudaDevice, u64)>> {
    let DeviceName::Cuda(ordinal) = args.device.device else { return Ok(None) };
    if args.no_occupy {
        return Ok(None);
    }
    let free = djinn_cuda::probe(ordinal)?
        .free_bytes
        .context("the card does not tell its free memory; use --no-occupy")?;
    let rest = free.saturating_sub(args.vram + SLACK);
    if rest < SLACK {
        remark("the card has little more than the cap: nothing to occupy");
        return Ok(None);
    }
    let device = CudaDevice::new(CudaConfig { ordinal, vram: Some(rest), ..CudaConfig::default() });
    remark(&format!("occupying {} of the card", size::human(rest)));
    Ok(Some((device.context("cannot occupy the rest of the card; use --no-occupy")?, rest)))
}

fn sample(args: &Exp2Args, system: &'static System, peers: &Peers, gpu: Option<&Gpu>) -> Result<Row> {
    let runs = match system.kind {
        Kind::Peer(_) => args.peer_runs,
        Kind::Own(_) if system.why.is_some() => args.ablation_runs.unwrap_or(args.runs),
        Kind::Own(_) => args.runs,
    };
    let processes = if args.fresh && system.is_own() { runs } else { 1 };
    let mut row = Row::new(system);
    for _ in 0..processes {
        let command = match system.kind {
            Kind::Own(_) => own_command(args, system, runs / processes)?,
            Kind::Peer(script) => match peers.command(args, script, runs) {
                Ok(command) => command,
                Err(why) => {
                    row.unavailable = Some(why);
                    return Ok(row);
                }
            },
        };
        row.command = shown(&command);
        let ended = process::run(command, Duration::from_secs(args.timeout), gpu);
        let samples = ended.output.and_then(|text| Samples::parse(&text).map_err(|e| crate::one_line(&e)));
        row.add(samples, ended.memory);
        if !row.measured() || interrupt::stop() {
            break;
        }
    }
    Ok(row)
}

/// This program as a process that takes samples of Djinn.
fn own_command(args: &Exp2Args, system: &System, runs: u32) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    command.args(["sample", "--system", system.name, "--model", &args.model]);
    if system.capped {
        command.args(["--vram", &args.vram.to_string()]);
    }
    command.args(["--prompt", &args.prompt.to_string(), "--tokens", &args.tokens.to_string()]);
    command.args(["--runs", &runs.to_string(), "--device", &args.device.device.to_string()]);
    if let Some(most) = args.most_seconds {
        command.args(["--most-seconds", &most.to_string()]);
    }
    if let Some(threads) = args.device.threads {
        command.args(["--threads", &threads.to_string()]);
    }
    Ok(command)
}

/// A command line without folders, as results keep it.
fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let short = |word: &std::ffi::OsStr| {
        let word = word.to_string_lossy();
        if word.starts_with('/') {
            word.rsplit('/').next().unwrap_or_default().to_owned()
        } else {
            word.into_owned()
        }
    };
    words.map(short).collect::<Vec<_>>().join(" ")
}

fn draw(args: &Exp2Args, document: &Document<Exp2>) -> Result<()> {
    let Some(folder) = &args.figures else { return Ok(()) };
    figures::exp2(document, folder)?;
    if let Some(trace) = &args.trace {
        figures::timeline(trace, folder)?;
    }
    Ok(())
}
