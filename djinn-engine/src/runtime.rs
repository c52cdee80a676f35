//! A device and what the models on it share: the compute stream, the store of weights, the budget.

use crate::{Options, Result};
use djinn_device::{DeviceInfo, Ops, Stream};
use djinn_srg::Graph;
use djinn_vmu::{MemoryPlan, TextStore};
use std::cell::RefCell;

/// A device that may hold several models, each as an [`Engine`](crate::Engine). One thread uses them at a time.
pub struct Runtime<D> {
    pub(crate) device: D,
    pub(crate) info: DeviceInfo,
    /// All models compute on this stream.
    pub(crate) compute: Stream,
    pub(crate) shared: RefCell<Shared>,
}

/// What models share beside the device.
#[derive(Default)]
pub(crate) struct Shared {
    /// Equal weights are kept once.
    pub(crate) store: TextStore,
    /// What the models' plans take of the budget, in bytes.
    device_bytes: u64,
    host_bytes: u64,
}

impl<D: Ops> Runtime<D> {
    /// A runtime without models.
    ///
    /// # Errors
    /// A device that has failed, or has no more streams.
    pub fn new(device: D) -> Result<Self> {
        let (info, compute) = (device.info(), device.stream()?);
        Ok(Runtime { device, info, compute, shared: RefCell::default() })
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The device, once its models are unloaded.
    pub fn into_device(self) -> D {
        self.device
    }

    /// Plans one more model within what the others leave of the budget. Weights that it shares with them are counted
    /// again: which these are is known once they are read.
    pub(crate) fn plan(&self, graph: &Graph, options: &Options) -> Result<MemoryPlan> {
        let (mut options, shared) = (options.clone(), self.shared.borrow());
        let left = |cap: &mut Option<u64>, taken| *cap = cap.map(|bytes: u64| bytes.saturating_sub(taken));
        left(&mut options.budget.vram, shared.device_bytes);
        left(&mut options.budget.ram, shared.host_bytes);
        options.plan(graph, self.info.reserved_bytes)
    }

    /// A model of `plan` is loaded.
    pub(crate) fn take(&self, plan: &MemoryPlan) {
        let mut shared = self.shared.borrow_mut();
        shared.device_bytes += own_bytes(plan);
        shared.host_bytes += plan.host_bytes;
    }

    /// A model of `plan` is gone.
    pub(crate) fn give_back(&self, plan: &MemoryPlan) {
        let mut shared = self.shared.borrow_mut();
        shared.device_bytes -= own_bytes(plan);
        shared.host_bytes -= plan.host_bytes;
    }
}

/// A model's device bytes, without those that the device takes for itself.
fn own_bytes(plan: &MemoryPlan) -> u64 {
    plan.segments.total() - plan.segments.reserved
}
