//! A device and what the models on it share: the compute stream, the store of weights, the budget.

use crate::{Options, Result};
use djinn_device::{DeviceInfo, Ops, Space, Stream};
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
    /// Models are planned as if each was alone, and leave the device for one another.
    in_turns: bool,
    /// Bytes of host memory that they may have together.
    host_limit: u64,
}

/// What models share beside the device.
#[derive(Default)]
pub(crate) struct Shared {
    /// Equal weights are kept once.
    pub(crate) store: TextStore,
    /// What the plans of models on the device take of the budget, in bytes.
    device_bytes: u64,
    host_bytes: u64,
}

impl<D: Ops> Runtime<D> {
    /// A runtime without models. They divide the budget between them.
    ///
    /// # Errors
    /// A device that has failed, or has no more streams.
    pub fn new(device: D) -> Result<Self> {
        let (info, compute) = (device.info(), device.stream()?);
        Ok(Runtime {
            device,
            info,
            compute,
            shared: RefCell::default(),
            in_turns: false,
            host_limit: u64::MAX,
        })
    }

    /// A runtime whose models take turns: each is planned with the whole budget, one that does not fit beside the others
    /// is refused until some [leave](crate::Engine::evict), and what they keep on the device is kept in host memory as well
    /// while no more than `host_limit` bytes of that are in use.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn in_turns(device: D, host_limit: u64) -> Result<Self> {
        let runtime = Runtime { in_turns: true, host_limit, ..Runtime::new(device)? };
        runtime.shared.borrow_mut().store.keep_copies(host_limit);
        Ok(runtime)
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The device, once its models are unloaded.
    pub fn into_device(self) -> D {
        self.device
    }

    /// Bytes of weights that models have in a memory now, equal ones counted once.
    pub fn weight_bytes(&self, space: Space) -> u64 {
        self.shared.borrow().store.bytes(space)
    }

    /// Bytes of device memory that may be allocated now.
    pub fn free_bytes(&self) -> u64 {
        let usage = self.device.usage(Space::Device);
        usage.limit - usage.in_use
    }

    /// Bytes of host memory that models which take turns may have beside those in use.
    pub fn host_room(&self) -> u64 {
        let limit = self.device.usage(Space::Host).limit.min(self.host_limit);
        limit.saturating_sub(self.device.usage(Space::Host).in_use)
    }

    /// Plans one more model: within what the others leave of the budget, or with all of it where models take turns.
    /// Weights that it shares with others are counted again: which these are is known once they are read.
    pub(crate) fn plan(&self, graph: &Graph, options: &Options) -> Result<MemoryPlan> {
        let (mut options, shared) = (options.clone(), self.shared.borrow());
        if !self.in_turns {
            let left =
                |cap: &mut Option<u64>, taken| *cap = cap.map(|bytes: u64| bytes.saturating_sub(taken));
            left(&mut options.budget.vram, shared.device_bytes);
            left(&mut options.budget.ram, shared.host_bytes);
        }
        options.plan(graph, self.info.reserved_bytes)
    }

    /// A model of `plan` is loaded.
    pub(crate) fn take(&self, plan: &MemoryPlan) {
        let mut shared = self.shared.borrow_mut();
        shared.device_bytes += own_bytes(plan);
        shared.host_bytes += plan.host_bytes;
    }

    /// A model of `plan` is gone, which was on the device or not.
    pub(crate) fn give_back(&self, plan: &MemoryPlan, is_away: bool) {
        let mut shared = self.shared.borrow_mut();
        shared.device_bytes -= if is_away { 0 } else { own_bytes(plan) };
        shared.host_bytes -= plan.host_bytes;
    }

    /// A model of `plan` left the device, or came back.
    pub(crate) fn moved(&self, plan: &MemoryPlan, is_away: bool) {
        let bytes = &mut self.shared.borrow_mut().device_bytes;
        *bytes = if is_away { *bytes - own_bytes(plan) } else { *bytes + own_bytes(plan) };
    }
}

/// A model's device bytes, without those that the device takes for itself.
fn own_bytes(plan: &MemoryPlan) -> u64 {
    plan.segments.total() - plan.segments.reserved
}
