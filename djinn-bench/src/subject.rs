//! A model on a device: opened, planned, loaded.

use crate::args::{DeviceArgs, DeviceName};
use crate::{interrupt, remark, size};
use anyhow::{Context, Result, ensure};
use djinn_cuda::{CudaConfig, CudaDevice};
use djinn_device::{CpuConfig, CpuDevice, DType, Ops};
use djinn_engine::{Engine, Options};
use djinn_models::{Location, Model, OpenOptions};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Between two remarks on how far a load is.
const AGAIN: Duration = Duration::from_secs(5);

/// Work on a device of whatever kind.
pub(crate) trait Work {
    type Out;

    /// Does it.
    fn on<D: Ops>(self, device: D) -> Result<Self::Out>;
}

/// Makes the device, capped to `vram` bytes with up to `pinned_bytes` of host memory, and does `work` on it.
///
/// # Errors
/// If there is no such device, or as the work.
pub(crate) fn on_device<W: Work>(
    args: &DeviceArgs,
    vram: Option<u64>,
    pinned_bytes: u64,
    work: W,
) -> Result<W::Out> {
    match args.device {
        DeviceName::Cpu => {
            let threads = args.threads.unwrap_or(0) as usize;
            let cpu = CpuDevice::new(CpuConfig { vram, threads, ..CpuConfig::default() });
            work.on(cpu.context("cannot start the CPU device")?)
        }
        DeviceName::Cuda(ordinal) => {
            let config = CudaConfig { ordinal, vram, pinned_bytes, ..CudaConfig::default() };
            work.on(CudaDevice::new(config).with_context(|| format!("--device cuda:{ordinal}"))?)
        }
    }
}

/// Refuses a device that is not there.
pub(crate) fn check_device(device: DeviceName) -> Result<()> {
    match device {
        DeviceName::Cpu => Ok(()),
        DeviceName::Cuda(ordinal) => {
            djinn_cuda::probe(ordinal).map(drop).with_context(|| format!("--device cuda:{ordinal}"))
        }
    }
}

/// Opens a model; reads no weights.
///
/// # Errors
/// In one line, if it is none.
pub(crate) fn open(model: &str) -> Result<Model> {
    let location = Location::find(model).with_context(|| format!("--model {model}"))?;
    djinn_models::open(&location, &OpenOptions::default()).with_context(|| format!("--model {model}"))
}

/// Options for sequences of `tokens` tokens: whole pages, keys and values as `djinn run` keeps them (f32 on the
/// CPU and for f32 models, else f16).
///
/// # Errors
/// If the model's context is shorter.
pub(crate) fn options(model: &Model, device: DeviceName, tokens: u64) -> Result<Options> {
    let most = model.graph.max_context;
    ensure!(tokens <= most, "{tokens} tokens exceed the context of {}, {most}; ask for fewer", model.name);
    let page = Options::default().page_tokens as u64;
    let unembed = model.graph.nodes.last().and_then(|node| node.weights.first());
    let is_f32 = unembed.is_some_and(|&w| model.graph.value(w).dtype == DType::F32);
    let kv_dtype = if device == DeviceName::Cpu || is_f32 { DType::F32 } else { DType::F16 };
    Ok(Options { context: (tokens.div_ceil(page) * page).min(most), kv_dtype, ..Options::default() })
}

/// Loads the model's weights; says how far it is. Ctrl-C ends it.
pub(crate) fn load<D: Ops>(device: D, model: &Model, options: &Options) -> Result<Engine<D>> {
    remark(&format!("loading {}", model.name));
    let (mut said, presses) = (Instant::now(), interrupt::presses());
    let mut progress = |done: u64, all: u64| {
        if said.elapsed() >= AGAIN {
            said = Instant::now();
            remark(&format!("loading {}: {} of {}", model.name, size::human(done), size::human(all)));
        }
        match interrupt::presses() == presses {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    };
    let engine = Engine::load(device, model.graph.clone(), &*model.source, options, &mut progress);
    engine.with_context(|| format!("cannot load {}", model.name))
}

/// Token ids of a prompt of `len` tokens; prompts of different `seed` differ.
pub(crate) fn prompt(len: u32, vocab: u64, seed: u64) -> Vec<u32> {
    (0..len as u64).map(|i| (((i + 131 * seed) * 37 + 5) % vocab) as u32).collect()
}
