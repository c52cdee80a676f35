//! The device of a build with CUDA.

mod capture;
mod context;
mod decoded;
mod device;
mod event;
mod launch;
mod matmul;
mod memory;
mod nvml;
mod on_cpu;
mod ops;
mod scratch;
mod stream;
mod tiles;
mod warm_up;

pub use context::probe;
pub use device::CudaDevice;
