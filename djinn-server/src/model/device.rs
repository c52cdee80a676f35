//! A device that models share.

use super::device_thread::{DeviceThread, Follower, MakeDevice, Report};
use super::resident::{OnThread, Resident};
use super::{ServedModel, Serving};
use crate::error::{Error, Result};
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use djinn_device::Ops;
use djinn_host::{OnDevice, Setup};
use djinn_models::{Location, Model};
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A device that models share under one budget. The first model is loaded at once, each other one at its first
/// request. A model that does not fit waits until others have no running turn. These leave the device, the least
/// recently used first, and stay in host memory while the host budget has room. Equal weights are kept once.
///
/// While this lives, models may be added.
#[derive(Debug)]
pub struct SharedDevice {
    joining: Sender<Box<Resident>>,
    /// Disconnects when the device is gone.
    device_end: Receiver<Infallible>,
    setup: Setup,
    serving: Serving,
}

impl SharedDevice {
    /// Makes the device of `setup` and loads the first of `models`. `on_progress` gets the bytes loaded and in all,
    /// and may cancel. Models are served as by [`ServedModel::start`]; each budget is for all together.
    ///
    /// # Errors
    /// As there, for the first model. The others fail at their first request.
    pub fn start(
        models: Vec<Model>,
        setup: &Setup,
        serving: &Serving,
        on_progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(Self, Vec<ServedModel>)> {
        let setup = &capped(setup);
        Self::start_at(make_device(setup)?, models, (setup, serving, true), on_progress)
    }

    /// As [`start`](Self::start), without later models.
    ///
    /// # Errors
    /// As there.
    pub fn start_all(
        models: Vec<Model>,
        setup: &Setup,
        serving: &Serving,
        on_progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Vec<ServedModel>> {
        let setup = &capped(setup);
        Ok(Self::start_at(make_device(setup)?, models, (setup, serving, false), on_progress)?.1)
    }

    /// As [`start_all`](Self::start_all), on the caller's devices: `device` makes the first one, and another after
    /// each failure. The setup's device only determines the KV caches' element type.
    ///
    /// # Errors
    /// As [`start`](Self::start), or as `device`.
    pub fn start_on<D: Ops + 'static>(
        mut device: impl FnMut() -> djinn_device::Result<D> + Send + 'static,
        models: Vec<Model>,
        setup: &Setup,
        serving: &Serving,
        on_progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Vec<ServedModel>> {
        let make_device: MakeDevice =
            Box::new(move |_, work: OnThread<'_>| work.on(device().map_err(djinn_engine::Error::from)?));
        Ok(Self::start_at(make_device, models, (setup, serving, false), on_progress)?.1)
    }

    fn start_at(
        make_device: MakeDevice,
        models: Vec<Model>,
        (setup, serving, is_open): (&Setup, &Serving, bool),
        on_progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(Self, Vec<ServedModel>)> {
        let (reports, told) = unbounded();
        let ended = Arc::new(AtomicBool::new(false));
        let mut follower = Some(Follower { reports, ended: Arc::clone(&ended) });
        let (running, device_end) = bounded(0);
        let several = models.len() > 1;
        let registered = models.into_iter().map(|model| {
            let follower = follower.take();
            let setup = if several { one_of_several(setup, &model) } else { *setup };
            ServedModel::register(model, (&setup, device_end.clone()), serving, follower)
        });
        let (served, residents): (Vec<_>, Vec<_>) =
            registered.collect::<Result<Vec<_>>>()?.into_iter().unzip();
        drop(follower);
        let (joining, joins) = unbounded();
        let (serving, waits) = (serving.clone(), serving.restart_after.clone());
        DeviceThread::start(make_device, residents, joins, running, (setup, waits, is_open))?;
        let device = SharedDevice { joining, device_end, setup: *setup, serving };
        loop {
            match told.recv() {
                Ok(Report::Loaded(done, total)) => {
                    if on_progress(done, total).is_break() {
                        ended.store(true, Ordering::Relaxed);
                    }
                }
                Ok(Report::Ready(ready)) => return ready.map(|()| (device, served)),
                Err(_) if served.is_empty() => return Ok((device, served)),
                Err(_) => return Err(Error::Setting("the engine's thread ended while it loaded".to_owned())),
            }
        }
    }

    /// Adds a model, which is loaded at its first request.
    ///
    /// # Errors
    /// Shared steering vectors that do not fit the model, or a device whose thread has ended.
    pub fn add(&self, model: Model) -> Result<ServedModel> {
        let setup = one_of_several(&self.setup, &model);
        let device = (&setup, self.device_end.clone());
        let (served, resident) = ServedModel::register(model, device, &self.serving, None)?;
        let ended = |_| Error::Setting("the device's thread has ended".to_owned());
        self.joining.send(Box::new(resident)).map_err(ended)?;
        Ok(served)
    }

    /// Opens a model for this device. Reads weights only to encode them.
    ///
    /// # Errors
    /// As [`djinn_models::open`].
    pub fn open(&self, location: &Location) -> Result<Model> {
        let opened = djinn_models::open(location, &self.setup.open_options());
        Ok(opened.map_err(djinn_host::Error::from)?)
    }
}

/// The setup, with a cap on a GPU's memory: what is free there. Models that come later share it.
fn capped(setup: &Setup) -> Setup {
    Setup { vram: setup.vram.or_else(|| setup.device.free_bytes()), ..*setup }
}

/// The setup for one of several models: those with a shorter context than the setup's have all of their own.
fn one_of_several(setup: &Setup, model: &Model) -> Setup {
    Setup { context: setup.context.map(|context| context.min(model.graph.max_context)), ..*setup }
}

/// A closure that makes the device of `setup`, each time that it is called.
fn make_device(setup: &Setup) -> Result<MakeDevice> {
    // After a failure, the CPU must not replace the first GPU.
    let setup = Setup { device: setup.device.find()?, ..*setup };
    Ok(Box::new(move |needs, work: OnThread<'_>| setup.on_device(needs, work)))
}
