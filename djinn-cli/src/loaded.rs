//! From a model's name to an engine that holds it.

use crate::args::{DeviceArgs, DeviceName, MemoryArgs};
use crate::cache::{Cache, Resolver};
use crate::progress::{Progress, PullProgress};
use crate::{size, system};
use anyhow::{Context, Result, anyhow, bail, ensure};
use djinn_cuda::{CudaConfig, CudaDevice};
use djinn_device::{CpuConfig, CpuDevice, DType, Device, DeviceInfo, Ops, Space, Usage};
use djinn_engine::{Budget, Engine, Generated, MemoryPlan, Options, Request, Session, Trace};
use djinn_models::{Location, Model, OpenOptions};
use djinn_vmu::SwapStats;
use std::ops::ControlFlow;
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

/// The KV cache's element type where the user names none: exact on the CPU and for f32 models, small on a GPU.
pub(crate) fn kv_dtype(device: DeviceName, model: &Model) -> DType {
    let unembed = model.graph.nodes.last().and_then(|node| node.weights.first());
    match device {
        DeviceName::Cuda(_) if unembed.is_none_or(|&w| model.graph.value(w).dtype != DType::F32) => {
            DType::F16
        }
        _ => DType::F32,
    }
}

/// The engine's options for sequences of up to `context` tokens.
pub(crate) fn options(memory: &MemoryArgs, kv_dtype: DType, context: u64) -> Options {
    Options {
        budget: Budget {
            vram: memory.vram,
            ram: memory.ram,
            resident_fraction: memory.resident_fraction,
            chunk: memory.chunk,
            ring: memory.ring,
            stream_check: memory.stream_check,
            ..Budget::default()
        },
        context,
        prefill_rows: memory.prefill_chunk,
        kv_dtype: memory.kv_dtype.unwrap_or(kv_dtype),
        ..Options::default()
    }
}

/// The context for `tokens` tokens where the user names none: whole pages, within what the model can do.
pub(crate) fn context_for(tokens: u64, model: &Model) -> u64 {
    let page = Options::default().page_tokens as u64;
    tokens.div_ceil(page).saturating_mul(page).min(model.graph.max_context)
}

/// A model on whatever device it runs: what the commands ask of an [`Engine`].
pub(crate) trait Running {
    /// See [`Engine::generate`].
    fn generate(
        &mut self,
        session: &mut Session,
        request: &Request,
        on_token: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> djinn_engine::Result<Generated>;

    /// See [`Engine::logits`].
    fn logits(&mut self, tokens: &[u32]) -> djinn_engine::Result<Vec<f32>>;

    /// See [`Engine::plan`].
    fn plan(&self) -> &MemoryPlan;

    /// See [`Engine::usage`].
    fn usage(&self, space: Space) -> Usage;

    /// See [`Engine::replayed_passes`].
    fn replayed_passes(&self) -> u64;

    /// See [`Engine::parkings`].
    fn parkings(&self) -> u64;

    /// See [`Engine::swap_stats`].
    fn swap_stats(&self) -> SwapStats;

    /// What the device is.
    fn device_info(&self) -> DeviceInfo;

    /// See [`Engine::finish_trace`].
    fn finish_trace(&mut self) -> Option<Trace>;
}

impl<D: Ops> Running for Engine<D> {
    fn generate(
        &mut self,
        session: &mut Session,
        request: &Request,
        on_token: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> djinn_engine::Result<Generated> {
        self.generate(session, request, on_token)
    }

    fn logits(&mut self, tokens: &[u32]) -> djinn_engine::Result<Vec<f32>> {
        self.logits(tokens)
    }

    fn plan(&self) -> &MemoryPlan {
        self.plan()
    }

    fn usage(&self, space: Space) -> Usage {
        self.usage(space)
    }

    fn replayed_passes(&self) -> u64 {
        self.replayed_passes()
    }

    fn parkings(&self) -> u64 {
        self.parkings()
    }

    fn swap_stats(&self) -> SwapStats {
        self.swap_stats()
    }

    fn device_info(&self) -> DeviceInfo {
        self.device().info()
    }

    fn finish_trace(&mut self) -> Option<Trace> {
        self.finish_trace()
    }
}

/// A model on its device.
pub(crate) struct Loaded {
    pub(crate) engine: Box<dyn Running>,
    /// How long it took.
    pub(crate) time: Duration,
}

/// Plans the memory, then loads the weights; from then on the engine is traced, if the user wants that.
pub(crate) fn load(model: &Model, device: &DeviceArgs, options: &Options, quiet: bool) -> Result<Loaded> {
    let start = Instant::now();
    let Budget { vram, ram, .. } = options.budget;
    let engine = match device.device {
        DeviceName::Cpu => {
            let plan = options.plan(&model.graph, 0)?;
            check_host_memory(plan.segments.total().saturating_add(plan.host_bytes))?;
            let threads = device.threads.unwrap_or(0) as usize;
            let cpu = CpuDevice::new(CpuConfig { vram, threads, ..CpuConfig::default() });
            load_on(cpu.context("cannot start the CPU device")?, model, device, options, quiet)?
        }
        DeviceName::Cuda(ordinal) => {
            let pinned_bytes = options.most_host_bytes(&model.graph);
            let config = CudaConfig { ordinal, vram, ram, pinned_bytes, ..CudaConfig::default() };
            let cuda = CudaDevice::new(config).with_context(|| format!("--device cuda:{ordinal}"))?;
            let plan = options.plan(&model.graph, cuda.info().reserved_bytes)?;
            check_host_memory(plan.host_bytes)?;
            load_on(cuda, model, device, options, quiet)?
        }
    };
    Ok(Loaded { engine, time: start.elapsed() })
}

fn load_on<D: Ops + 'static>(
    device: D,
    model: &Model,
    args: &DeviceArgs,
    options: &Options,
    quiet: bool,
) -> Result<Box<dyn Running>> {
    let progress = Progress::new(format!("loading {}", model.name), quiet);
    let mut tell = |done, total| progress.tell(done, Some(total));
    let mut engine = Engine::load(device, model.graph.clone(), &*model.source, options, &mut tell)?;
    progress.finish(engine.plan().host_weight_bytes() + engine.plan().segments.resident);
    let in_place = engine.plan().placement.streamed_bytes() == 0;
    if in_place && !engine.device().info().host_memory {
        // Milliseconds, by which the first answer would else be later. Where weights are streamed, the link hides
        // them.
        engine.warm_up()?;
    }
    if args.trace.is_some() {
        engine.start_trace()?;
    }
    Ok(Box::new(engine))
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

/// Refuses a device that is not there, before anything is read.
pub(crate) fn check_device(device: DeviceName) -> Result<()> {
    match device {
        DeviceName::Cpu => Ok(()),
        DeviceName::Cuda(ordinal) => {
            djinn_cuda::probe(ordinal).map(drop).with_context(|| format!("--device cuda:{ordinal}"))
        }
    }
}

/// Refuses what the system would only kill later: weights on the host, and the CPU device's own memory.
fn check_host_memory(needed: u64) -> Result<()> {
    let Some(memory) = system::memory() else { return Ok(()) };
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
