//! An engine on whatever device, and how a model gets there.

use crate::{DeviceName, Error, Result, Setup, system};
use djinn_cuda::{CudaConfig, CudaDevice};
use djinn_device::{CpuConfig, CpuDevice, Device, DeviceInfo, Ops, Space, Usage};
use djinn_engine::{Budget, Engine, Generated, MemoryPlan, Options, Progress, Request, Session, Trace};
use djinn_models::Model;
use djinn_vmu::SwapStats;
use std::ops::ControlFlow;

/// An [`Engine`] whose device is chosen when the program runs.
pub trait AnyEngine {
    /// See [`Engine::generate`].
    fn generate(
        &mut self,
        session: &mut Session,
        request: &Request,
        on_progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
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

    /// See [`Engine::context`].
    fn context(&self) -> u64;

    /// What the device is.
    fn device_info(&self) -> DeviceInfo;

    /// See [`Engine::start_trace`].
    fn start_trace(&mut self) -> djinn_engine::Result<()>;

    /// See [`Engine::finish_trace`].
    fn finish_trace(&mut self) -> Option<Trace>;

    /// See [`Engine::close`].
    fn close(&mut self, session: Session);
}

impl<D: Ops> AnyEngine for Engine<D> {
    fn generate(
        &mut self,
        session: &mut Session,
        request: &Request,
        on_progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> djinn_engine::Result<Generated> {
        self.generate(session, request, on_progress)
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

    fn context(&self) -> u64 {
        self.context()
    }

    fn device_info(&self) -> DeviceInfo {
        self.device().info()
    }

    fn start_trace(&mut self) -> djinn_engine::Result<()> {
        self.start_trace()
    }

    fn finish_trace(&mut self) -> Option<Trace> {
        self.finish_trace()
    }

    fn close(&mut self, session: Session) {
        self.close(session);
    }
}

/// Plans the memory under `options`, makes the device of `setup` and loads the model's weights;
/// `on_progress` gets the bytes that are loaded and the bytes in all, and may end the work.
///
/// # Errors
/// [`Error::Gpu`] if there is no such device, [`Error::HostMemory`] if the machine has too little, or as
/// [`Engine::load`].
pub fn load(
    model: &Model,
    setup: &Setup,
    options: &Options,
    on_progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Box<dyn AnyEngine>> {
    let Budget { vram, ram, .. } = options.budget;
    let device = setup.device.find()?;
    let DeviceName::Cuda(ordinal) = device else {
        let plan = options.plan(&model.graph, 0)?;
        check_host_memory(plan.segments.total().saturating_add(plan.host_bytes))?;
        let threads = setup.threads.unwrap_or(0) as usize;
        let cpu = CpuDevice::new(CpuConfig { vram, threads, ..CpuConfig::default() }).map_err(Error::Cpu)?;
        return load_on(cpu, model, options, on_progress);
    };
    let pinned_bytes = options.most_host_bytes(&model.graph);
    let config = CudaConfig { ordinal, vram, ram, pinned_bytes, ..CudaConfig::default() };
    let cuda = CudaDevice::new(config).map_err(|source| Error::Gpu { device, source })?;
    let plan = options.plan(&model.graph, cuda.info().reserved_bytes)?;
    check_host_memory(plan.host_bytes)?;
    load_on(cuda, model, options, on_progress)
}

fn load_on<D: Ops + 'static>(
    device: D,
    model: &Model,
    options: &Options,
    on_progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Box<dyn AnyEngine>> {
    let mut engine = Engine::load(device, model.graph.clone(), &*model.source, options, on_progress)?;
    let in_place = engine.plan().placement.streamed_bytes() == 0;
    if in_place && !engine.device().info().host_memory {
        // Milliseconds, by which the first answer would else be later. Where weights are streamed, the link hides
        // them.
        engine.warm_up()?;
    }
    Ok(Box::new(engine))
}

/// Refuses what the system would only kill later: weights on the host, and the CPU device's own memory.
fn check_host_memory(needed_bytes: u64) -> Result<()> {
    let Some(memory) = system::memory() else { return Ok(()) };
    let available_bytes = memory.available.saturating_add(memory.swap_free);
    if needed_bytes > available_bytes {
        return Err(Error::HostMemory { needed_bytes, available_bytes });
    }
    Ok(())
}
