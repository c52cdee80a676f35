//! The CUDA device behind [`djinn_device`]'s seam: [`CudaDevice`] is a `Device` with `Ops`.
//!
//! Without the feature `cuda` the crate builds everywhere and [`CudaDevice::new`] says what is missing; with
//! it, libraries are looked up when a device is made, so that the same binary starts without a driver.
#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod config;
mod error;

#[cfg(not(feature = "cuda"))]
mod absent;
#[cfg(any(feature = "cuda", test))]
mod arena;
#[cfg(feature = "cuda")]
mod capture;
#[cfg(feature = "cuda")]
mod context;
#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod event;
#[cfg(feature = "cuda")]
mod launch;
#[cfg(feature = "cuda")]
mod matmul;
#[cfg(feature = "cuda")]
mod memory;
#[cfg(feature = "cuda")]
mod nvml;
#[cfg(feature = "cuda")]
mod ops;
#[cfg(feature = "cuda")]
mod scratch;
#[cfg(feature = "cuda")]
mod stream;
#[cfg(feature = "cuda")]
mod warm_up;

#[cfg(not(feature = "cuda"))]
pub use absent::{CudaDevice, probe};
pub use config::{CudaConfig, Probe, mapping_bytes};
#[cfg(feature = "cuda")]
pub use context::probe;
#[cfg(feature = "cuda")]
pub use device::CudaDevice;
pub use error::{Error, Result};
