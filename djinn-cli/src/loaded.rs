//! From a model's name to an engine that holds it.

use crate::args::{DeviceArgs, DeviceName, MemoryArgs};
use crate::cache::{Cache, Resolver};
use crate::progress::{Progress, PullProgress};
use crate::{size, system};
use anyhow::{Context, Result, anyhow, bail, ensure};
use djinn_device::{CpuConfig, CpuDevice, DType};
use djinn_engine::{Budget, Engine, MemoryPlan, Options};
use djinn_models::{Location, Model, OpenOptions};
use std::path::Path;
use std::time::{Duration, Instant};

/// Finds a model, pulling it where needed, and opens it. No weights are read.
pub(crate) fn open(spec: &str, dtype: Option<DType>, quiet: bool) -> Result<Model> {
    let location = locate(spec, quiet)?;
    Ok(djinn_models::open(&location, &OpenOptions { dtype })?)
}

fn locate(spec: &str, quiet: bool) -> Result<Location> {
    let progress = PullProgress::new(quiet);
    let tell = |event| progress.tell(event);
    let location = Resolver::new(Cache::from_env()?, &tell).resolve(spec)?;
    Ok(location)
}

/// The engine's options for sequences of up to `context` tokens.
pub(crate) fn options(memory: &MemoryArgs, context: u64) -> Options {
    Options {
        budget: Budget {
            vram: memory.vram,
            ram: memory.ram,
            resident_fraction: memory.resident_fraction,
            chunk: memory.chunk,
            ring: memory.ring,
            stream_check: memory.stream_check,
        },
        context,
        prefill_rows: memory.prefill_chunk,
        kv_dtype: memory.kv_dtype,
        ..Options::default()
    }
}

/// The context for `tokens` tokens where the user names none: whole pages, within what the model can do.
pub(crate) fn context_for(tokens: u64, model: &Model) -> u64 {
    let page = Options::default().page_tokens as u64;
    tokens.div_ceil(page).saturating_mul(page).min(model.graph.max_context)
}

/// A model on its device.
pub(crate) struct Loaded {
    pub(crate) engine: Engine<CpuDevice>,
    /// How long it took.
    pub(crate) time: Duration,
}

/// Plans the memory, then loads the weights.
pub(crate) fn load(model: &Model, device: &DeviceArgs, options: &Options, quiet: bool) -> Result<Loaded> {
    let start = Instant::now();
    refuse_other_devices(device.device)?;
    let plan = options.plan(&model.graph)?;
    check_host_memory(&plan)?;
    let config = CpuConfig {
        vram: options.budget.vram,
        threads: device.threads.unwrap_or(0) as usize,
        ..CpuConfig::default()
    };
    let device = CpuDevice::new(config).context("cannot start the CPU device")?;
    let progress = Progress::new(format!("loading {}", model.name), quiet);
    let mut tell = |done, total| progress.tell(done, Some(total));
    let engine = Engine::load(device, model.graph.clone(), &*model.source, options, &mut tell)?;
    progress.finish(plan.host_bytes + plan.segments.resident);
    Ok(Loaded { engine, time: start.elapsed() })
}

/// Refuses tokens that the model cannot take, before its weights are loaded.
pub(crate) fn check_tokens(model: &Model, tokens: &[u32]) -> Result<()> {
    let (most, vocab, count) = (model.graph.max_context, model.graph.vocab, tokens.len());
    ensure!(count > 0, "the prompt has no tokens; give a longer one");
    ensure!(count as u64 <= most, "{count} tokens exceed the model's context of {most}; give fewer");
    let unknown = tokens.iter().find(|&&token| token as u64 >= vocab);
    unknown.map_or(Ok(()), |token| {
        Err(anyhow!("token {token} is outside the vocabulary of {vocab}; give ids below that"))
    })
}

/// Refuses a prompt where the model should be.
pub(crate) fn refuse_prompt(spec: &str) -> Result<()> {
    if spec.contains(char::is_whitespace) && !Path::new(spec).exists() {
        bail!("{spec:?} is no model; the model comes before the prompt: djinn run MODEL PROMPT");
    }
    Ok(())
}

/// Refuses devices that this build has no support for.
pub(crate) fn refuse_other_devices(device: DeviceName) -> Result<()> {
    match device {
        DeviceName::Cpu => Ok(()),
        DeviceName::Cuda(number) => {
            bail!("--device cuda:{number}: this build has no CUDA support; use --device cpu")
        }
    }
}

/// The CPU's device memory is the host's own: refuses what would only be killed later.
fn check_host_memory(plan: &MemoryPlan) -> Result<()> {
    let Some(memory) = system::memory() else { return Ok(()) };
    let needed = plan.segments.total().saturating_add(plan.host_bytes);
    let available = memory.available.saturating_add(memory.swap_free);
    ensure!(
        needed <= available,
        "the model needs {} of memory and this machine has {} available; close other programs, lower --ctx, or \
         take a smaller model",
        size::human(needed),
        size::human(available)
    );
    Ok(())
}
