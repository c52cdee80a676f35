//! The CUDA device behind [`djinn_device`]'s interface: [`CudaDevice`] is a `Device` with `Ops`.
//!
//! Without the feature `cuda` the crate builds everywhere and [`CudaDevice::new`] says what is missing; with
//! it, libraries are looked up when a device is made, so that the same binary starts without a driver.
#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

#[cfg(not(feature = "device"))]
mod absent;
#[cfg(any(feature = "device", test))]
mod arena;
mod config;
mod error;
#[cfg(any(feature = "device", test))]
mod experts;
#[cfg(feature = "device")]
mod present;

#[cfg(not(feature = "device"))]
pub use absent::{CudaDevice, probe};
pub use config::{CudaConfig, ENCODINGS, MOST_HEAD_DIM, Probe, mapping_bytes};
pub use error::{Error, Result};
#[cfg(feature = "device")]
pub use present::{CudaDevice, probe};
