//! Devices by name, and work on them.

#[cfg(test)]
mod tests;

use crate::{Activations, Error, Result, Setup, system};
use djinn_cpu::{CpuConfig, CpuDevice, CpuKernels, Math};
use djinn_cuda::{CudaConfig, CudaDevice};
use djinn_device::{Encoding, Ops};
use djinn_engine::{Options, Workspaces};
use djinn_models::Model;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// What is left of a GPU's free memory, in bytes: others may take some before the device is made.
const LEFT_FREE: u64 = 256 << 20;
/// What a driver takes beside a plan's bytes, at most: its context, kernels, and units of allocation.
const BESIDE_PLAN: u64 = 2 << 30;

/// A device's name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceName {
    /// `auto`: the first GPU if the build and the machine have one, else the CPU.
    #[default]
    Auto,
    /// `cpu`.
    Cpu,
    /// `cuda` or `cuda:N`: the Nth GPU, counted from 0.
    Cuda(u32),
}

impl DeviceName {
    /// The actual device on this machine, never [`Auto`](DeviceName::Auto).
    ///
    /// # Errors
    /// [`Error::Gpu`] for a named GPU that does not exist. The CPU always does.
    pub fn find(self) -> Result<DeviceName> {
        let device = self.meant();
        if let DeviceName::Cuda(ordinal) = device {
            djinn_cuda::probe(ordinal).map_err(|source| Error::Gpu { device, source })?;
        }
        Ok(device)
    }

    /// The same without a check that the device exists.
    pub(crate) fn meant(self) -> DeviceName {
        match self {
            DeviceName::Auto if djinn_cuda::probe(0).is_ok() => DeviceName::Cuda(0),
            DeviceName::Auto => DeviceName::Cpu,
            named => named,
        }
    }

    /// The memory of a GPU that a program may take now, in bytes; `None` for the CPU, or if the driver does not tell.
    pub fn free_bytes(self) -> Option<u64> {
        let DeviceName::Cuda(ordinal) = self.meant() else { return None };
        Some(djinn_cuda::probe(ordinal).ok()?.free_bytes?.saturating_sub(LEFT_FREE))
    }

    /// The encodings, besides plain elements, that the actual device computes from.
    pub fn encodings(self) -> &'static [Encoding] {
        match self.meant() {
            DeviceName::Cuda(_) => djinn_cuda::ENCODINGS,
            _ => djinn_cpu::ENCODINGS,
        }
    }
}

/// Work on a device that is chosen at run time.
pub trait OnDevice {
    /// Its result.
    type Out;
    /// Its errors, and those of the device.
    type Error: From<Error>;

    /// Does it.
    fn on<D: Ops + 'static>(self, device: D) -> Result<Self::Out, Self::Error>;
}

/// A device's requirements, which must be known before it is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// The most bytes of host memory that the device pins.
    pub pinned_bytes: u64,
    /// Device memory that operations use while they run.
    pub workspaces: Workspaces,
    /// A cap on device memory for a setup without one, in bytes. `None` if all weights fit without it.
    pub vram: Option<u64>,
    /// Whether the CPU computes some products.
    pub cpu_products: bool,
}

impl Needs {
    /// Those of a model under the engine's `options`.
    pub fn of(model: &Model, options: &Options) -> Needs {
        let graph = &model.graph;
        let needs = Needs {
            pinned_bytes: options.most_host_bytes(graph),
            workspaces: options.workspaces(graph),
            vram: None,
            cpu_products: options.budget.cpu_share > 0.0,
        };
        let beside = BESIDE_PLAN.saturating_add(needs.card_bytes());
        let all_resident = |_: &u64| {
            let plan = options.plan(graph, beside);
            plan.is_ok_and(|plan| plan.placement.streamed_bytes() == 0)
        };
        Needs { vram: options.budget.vram.filter(|vram| !all_resident(vram)), ..needs }
    }

    /// What a GPU takes of its memory for these needs, beside what it takes for any work.
    pub fn card_bytes(self) -> u64 {
        let Workspaces { decoded_bytes, activation_bytes } = self.workspaces;
        let more = activation_bytes.saturating_sub(CudaConfig::default().activation_bytes);
        djinn_cuda::mapping_bytes(self.pinned_bytes).saturating_add(decoded_bytes).saturating_add(more)
    }
}

impl Setup {
    /// Makes the device, within the setup's budgets, and does `work` on it, with at most these `needs`.
    ///
    /// # Errors
    /// [`Error::Gpu`] or [`Error::Cpu`] if there is no such device, [`Error::CpuOnly`] if it is a GPU that shall round
    /// activations to int8, or as the work.
    pub fn on_device<W: OnDevice>(&self, needs: Needs, work: W) -> Result<W::Out, W::Error> {
        let (device, Setup { vram, ram, .. }) = (self.device.find()?, *self);
        let threads = self.threads.unwrap_or(0) as usize;
        let DeviceName::Cuda(ordinal) = device else {
            let math = match self.activations.unwrap_or_default() {
                Activations::Float => Math::Fast,
                Activations::Int8 => Math::Int8,
            };
            let config = CpuConfig { vram, threads, math, ..CpuConfig::default() };
            return work.on(CpuDevice::new(config).map_err(Error::Cpu)?);
        };
        self.check_target(true)?;
        let Needs { pinned_bytes, workspaces, vram: least, cpu_products } = needs;
        let vram = vram.or(least);
        let Workspaces { decoded_bytes, activation_bytes } = workspaces;
        let activation_bytes = activation_bytes.max(CudaConfig::default().activation_bytes);
        // Pinned memory is never swapped out, and the system ends a process that takes more than its container may have.
        let ram = ram.or_else(|| system::memory().map(|memory| memory.available));
        let config = CudaConfig { ordinal, vram, ram, pinned_bytes, activation_bytes, decoded_bytes };
        let mut made = CudaDevice::new(config).map_err(|source| Error::Gpu { device, source })?;
        // A server's later models have the setup's share.
        if cpu_products || self.cpu_share.is_some_and(|share| share > 0.0) {
            let cpu = CpuKernels::new(threads).map_err(Error::Cpu)?;
            made = made.with_cpu(Arc::new(cpu)).map_err(Error::Cpu)?;
        }
        work.on(made)
    }
}

impl Setup {
    /// Refuses activations in int8 on a GPU.
    pub(crate) fn check_target(&self, on_gpu: bool) -> Result<()> {
        match self.activations {
            Some(Activations::Int8) if on_gpu => Err(Error::CpuOnly { flag: "activations" }),
            _ => Ok(()),
        }
    }
}

impl FromStr for DeviceName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let number = match text.split_once(':') {
            None if text == "auto" => return Ok(DeviceName::Auto),
            None if text == "cpu" => return Ok(DeviceName::Cpu),
            None if text == "cuda" => Some(0),
            Some(("cuda", number)) => number.parse().ok(),
            _ => None,
        };
        number.map(DeviceName::Cuda).ok_or("expected auto, cpu, cuda or cuda:N")
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceName::Auto => f.write_str("auto"),
            DeviceName::Cpu => f.write_str("cpu"),
            DeviceName::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}
