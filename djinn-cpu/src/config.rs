//! What a device is made of.

use crate::kernels::Math;

/// What a [`CpuDevice`](crate::CpuDevice) is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CpuConfig {
    /// Cap on [`Space::Device`](djinn_device::Space::Device), in bytes. `None`: no cap.
    pub vram: Option<u64>,
    /// Cap on [`Space::Host`](djinn_device::Space::Host), in bytes. `None`: no cap.
    pub ram: Option<u64>,
    /// Threads that compute; 0 for as many as the machine runs at once.
    pub threads: usize,
    /// Which arithmetic.
    pub math: Math,
    /// The instruction set, by its name among [`Math::instruction_sets`]. `None`: the best that the CPU has.
    pub instructions: Option<&'static str>,
}
