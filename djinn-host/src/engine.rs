//! An engine on any device, and loading a model.

use crate::{Error, Needs, OnDevice, Result, Setup, system};
use djinn_device::{DeviceInfo, Ops, Space, Usage};
use djinn_engine::debug::Debugger;
use djinn_engine::{
    Engine, Generate, Happening, MemoryPlan, Opening, Options, Runtime, Service, SessionId, Trace,
};
use djinn_models::Model;
use std::ops::ControlFlow;
use std::rc::Rc;

/// A [`Service`] for one conversation at a time, on a device that is chosen at run time.
pub trait AnyEngine: Generate + Debugger {
    /// See [`Service::open`].
    fn open(&mut self, opening: Opening) -> djinn_engine::Result<SessionId>;

    /// See [`Service::go_on`].
    fn go_on(&mut self) -> djinn_engine::Result<Vec<(SessionId, Happening)>>;

    /// Ends the turn of a session that is in no step.
    fn end_turn(&mut self, session: SessionId) -> djinn_engine::Result<()>;

    /// See [`Service::close`].
    fn close(&mut self, session: Option<SessionId>) -> djinn_engine::Result<()>;

    /// See [`Service::logits`].
    fn logits(&mut self, tokens: &[u32]) -> djinn_engine::Result<Vec<f32>>;

    /// See [`Engine::plan`].
    fn plan(&self) -> &MemoryPlan;

    /// See [`Engine::context`].
    fn context(&self) -> u64;

    /// See [`Engine::replayed_passes`].
    fn replayed_passes(&self) -> u64;

    /// See [`Engine::usage`].
    fn usage(&self, space: Space) -> Usage;

    /// The device's properties.
    fn device_info(&self) -> DeviceInfo;

    /// See [`Engine::start_trace`].
    fn start_trace(&mut self) -> djinn_engine::Result<()>;

    /// See [`Engine::finish_trace`].
    fn finish_trace(&mut self) -> Option<Trace>;
}

impl<D: Ops> AnyEngine for Service<D> {
    fn open(&mut self, opening: Opening) -> djinn_engine::Result<SessionId> {
        self.open(opening)
    }

    fn go_on(&mut self) -> djinn_engine::Result<Vec<(SessionId, Happening)>> {
        self.go_on()
    }

    fn end_turn(&mut self, session: SessionId) -> djinn_engine::Result<()> {
        self.end_turn(session)
    }

    fn close(&mut self, session: Option<SessionId>) -> djinn_engine::Result<()> {
        self.close(session)
    }

    fn logits(&mut self, tokens: &[u32]) -> djinn_engine::Result<Vec<f32>> {
        self.logits(tokens)
    }

    fn plan(&self) -> &MemoryPlan {
        self.engine().plan()
    }

    fn context(&self) -> u64 {
        self.engine().context()
    }

    fn replayed_passes(&self) -> u64 {
        self.engine().replayed_passes()
    }

    fn usage(&self, space: Space) -> Usage {
        self.engine().usage(space)
    }

    fn device_info(&self) -> DeviceInfo {
        self.engine().device().info()
    }

    fn start_trace(&mut self) -> djinn_engine::Result<()> {
        self.start_trace()
    }

    fn finish_trace(&mut self) -> Option<Trace> {
        self.finish_trace()
    }
}

/// Makes the device of `setup` and loads the model onto it, as [`load_on`] does.
///
/// # Errors
/// As [`Setup::on_device`] and [`load_on`].
pub fn load(
    model: &Model,
    setup: &Setup,
    options: &Options,
    on_progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Box<dyn AnyEngine>> {
    struct Loading<'a>(&'a Model, &'a Options, &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>);

    impl OnDevice for Loading<'_> {
        type Out = Box<dyn AnyEngine>;
        type Error = Error;

        fn on<D: Ops + 'static>(self, device: D) -> Result<Self::Out> {
            let engine = load_on(device, self.0, self.1, self.2)?;
            Ok(Box::new(Service::single(engine)?))
        }
    }

    setup.on_device(Needs::of(model, options), Loading(model, options, on_progress))
}

/// Plans the memory under `options` and loads the model's weights. `on_progress` gets the bytes loaded and in all, and
/// may cancel.
///
/// # Errors
/// [`Error::HostMemory`] if the machine has too little, or as [`Engine::load`].
pub fn load_on<D: Ops>(
    device: D,
    model: &Model,
    options: &Options,
    on_progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Engine<D>> {
    load_into(Rc::new(Runtime::new(device)?), model, options, on_progress)
}

/// [`load_on`] a device that other models may share.
///
/// # Errors
/// As there. Nothing of the model stays on the runtime.
pub fn load_into<D: Ops>(
    runtime: Rc<Runtime<D>>,
    model: &Model,
    options: &Options,
    on_progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Engine<D>> {
    let DeviceInfo { host_memory, reserved_bytes, .. } = runtime.device().info();
    let plan = options.plan(&model.graph, reserved_bytes)?;
    let device_bytes = if host_memory { plan.segments.total() } else { 0 };
    check_host_memory(plan.host_bytes.saturating_add(device_bytes))?;
    let engine = Engine::load_on(runtime, model.graph.clone(), &*model.source, options, on_progress)?;
    if plan.placement.streamed_bytes() > 0 || host_memory {
        return Ok(engine);
    }
    // It takes milliseconds, which would delay the first answer. If weights stream, the link hides them.
    let (engine, ()) = engine.prepared(|engine| engine.warm_up(&mut engine.free_pages()))?;
    Ok(engine)
}

/// What is said where [`Setup::for_models`] drops `--activations int8`.
pub const IDLE_INT8: &str =
    "--activations int8 has no effect: no weights are in blocks of integers in memory";

/// The choices that have no effect on `plan`, one sentence each.
pub fn without_effect(options: &Options, plan: &MemoryPlan) -> Vec<&'static str> {
    let (budget, placement) = (&options.budget, &plan.placement);
    let streams = placement.streamed().next().is_some();
    let idle = [
        (
            budget.cpu_share > 0.0 && !placement.uses_cpu(),
            "--cpu-share has no effect: it leaves no streamed weights to the CPU",
        ),
        (budget.ring.is_some() && !streams, "--ring has no effect: all weights are resident"),
        (budget.chunk.is_some() && !streams, "--chunk has no effect: all weights are resident"),
        (budget.stream_check && !streams, "--stream-check has no effect: all weights are resident"),
    ];
    idle.into_iter().filter(|(is_idle, _)| *is_idle).map(|(_, what)| what).collect()
}

/// Refuses a plan that the system would kill later: weights on the host, and the CPU device's memory.
fn check_host_memory(needed_bytes: u64) -> Result<()> {
    let Some(memory) = system::memory() else { return Ok(()) };
    let available_bytes = memory.available.saturating_add(memory.swap_free);
    if needed_bytes > available_bytes {
        return Err(Error::HostMemory { needed_bytes, available_bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
