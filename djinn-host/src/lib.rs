//! The library below the binaries: a model on a device by name; text in, text out.

#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod answer;
mod device;
mod engine;
mod error;
mod generation;
mod setup;
mod speech;
pub mod system;

pub use answer::{Answer, Speaker};
pub use device::DeviceName;
pub use engine::{AnyEngine, load};
pub use error::{Error, Result};
pub use generation::{Generation, check_prompt, seed};
pub use setup::{Setup, context_for, kv_dtype};
pub use speech::{SYSTEM, Speech};
