//! The device seam: memory, streams, events and copies ([`Device`]) and the closed list of decoder
//! operations ([`Ops`]), with two devices behind it.
//!
//! [`CpuDevice`] computes on the host: a scalar reference for every operation, and a fast path checked
//! against it. [`SimDevice`] runs the same arithmetic in an adversarial order limited only by events,
//! poisons memory that holds nothing, and injects faults.
#![doc = include_str!("../README.md")]

pub mod args;
pub mod conformance;
mod cpu;
mod error;
mod kernels;
mod memory;
mod ops;
mod sim;
mod stream;

pub use cpu::{CpuConfig, CpuDevice, Math};
pub use djinn_srg::{DType, Gelu, RopeStyle};
pub use error::{Error, Result};
pub use kernels::reference::checksum;
pub use memory::{Buffer, Space, Span, Usage};
pub use ops::Ops;
pub use sim::{SimCalls, SimConfig, SimCopy, SimDevice};
pub use stream::{Capture, Device, DeviceInfo, Event, Stream};
