//! A device and what its models share: the compute stream, the store of weights, the budget.

use crate::{Options, Result};
use djinn_device::{DeviceInfo, Ops, Space, Stream};
use djinn_srg::Graph;
use djinn_vmu::{MemoryPlan, TextStore};
use std::cell::RefCell;

/// A device for one or more models, each an [`Engine`](crate::Engine). All are used from one thread at a time.
pub struct Runtime<D> {
    pub(crate) device: D,
    pub(crate) info: DeviceInfo,
    /// All models compute on this stream.
    pub(crate) compute: Stream,
    pub(crate) shared: RefCell<Shared>,
    /// Whether each model is planned with the whole budget, and models leave the device for one another.
    in_turns: bool,
    /// The most host bytes of all models.
    host_limit: u64,
}

/// What models share beside the device.
#[derive(Default)]
pub(crate) struct Shared {
    /// Weights by content: equal ones are kept once.
    pub(crate) store: TextStore,
    /// Bytes of the budget that the plans of models on the device take.
    device_bytes: u64,
    host_bytes: u64,
}

impl<D: Ops> Runtime<D> {
    /// A runtime without models. Its models divide the budget.
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

    /// A runtime whose models take turns. Each is planned with the whole budget. A model that does not fit is refused
    /// until others [leave](crate::Engine::evict). Resident weights are also kept in host memory, as long as that uses
    /// at most `host_limit` bytes.
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
        self.device.free_stream(self.compute);
        self.device
    }

    /// Bytes of weights in a memory space. Equal ones count once.
    pub fn weight_bytes(&self, space: Space) -> u64 {
        self.shared.borrow().store.bytes(space)
    }

    /// Free bytes of device memory.
    pub fn free_bytes(&self) -> u64 {
        let usage = self.device.usage(Space::Device);
        usage.limit - usage.in_use
    }

    /// Host bytes that models in turns may still use.
    pub fn host_room(&self) -> u64 {
        let limit = self.device.usage(Space::Host).limit.min(self.host_limit);
        limit.saturating_sub(self.device.usage(Space::Host).in_use)
    }

    /// Plans one more model: within the rest of the budget, or with all of it if models take turns. Weights that it
    /// shares with others count again, since equality is known only once they are read.
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

    /// Counts a loaded model's plan.
    pub(crate) fn take(&self, plan: &MemoryPlan) {
        let mut shared = self.shared.borrow_mut();
        shared.device_bytes += own_bytes(plan);
        shared.host_bytes += plan.host_bytes;
    }

    /// Stops counting an unloaded model's plan.
    pub(crate) fn give_back(&self, plan: &MemoryPlan, is_away: bool) {
        let mut shared = self.shared.borrow_mut();
        shared.device_bytes -= if is_away { 0 } else { own_bytes(plan) };
        shared.host_bytes -= plan.host_bytes;
    }

    /// Counts a model that left the device or came back.
    pub(crate) fn moved(&self, plan: &MemoryPlan, is_away: bool) {
        let bytes = &mut self.shared.borrow_mut().device_bytes;
        *bytes = if is_away { *bytes - own_bytes(plan) } else { *bytes + own_bytes(plan) };
    }
}

/// A model's device bytes, without the device's reserve.
fn own_bytes(plan: &MemoryPlan) -> u64 {
    plan.segments.total() - plan.segments.reserved
}
