//! The CPU device of Djinn, and the simulator over it.
//!
//! [`CpuDevice`] computes on the host: by the scalar [`reference`](djinn_device::reference), and on a fast path checked
//! against it. [`SimDevice`] runs the same arithmetic in an adversarial order limited only by events,
//! poisons memory that holds nothing, and injects faults.
#![doc = include_str!("../README.md")]

mod config;
mod device;
mod event;
mod kernels;
mod memory;
mod ops;
mod sim;
mod stream;

pub use config::CpuConfig;
pub use device::{CpuDevice, ENCODINGS};
pub use kernels::{CpuKernels, Math};
pub use sim::{SimCalls, SimConfig, SimCopy, SimDevice, SimFault, SimFaults};
