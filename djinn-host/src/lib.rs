//! The library below the binaries: a model on a device by name; text in, text out.

#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod answer;
mod cards;
mod chat;
mod device;
mod djinn;
mod engine;
mod error;
mod forecast;
mod generation;
mod nearest;
pub mod rates;
pub mod settings;
mod setup;
mod speech;
pub mod system;
mod target;

pub use answer::{Answer, Speaker};
pub use cards::{CARDS, Card};
pub use chat::{Chat, Reply};
pub use device::DeviceName;
pub use djinn::Djinn;
pub use engine::{AnyEngine, load};
pub use error::{Error, Result};
pub use forecast::{Bottlenecks, Chunks, Forecast, Predicted, RingUse, Task};
pub use generation::{Generation, check_prompt, seed};
pub use nearest::nearest;
pub use setup::{Setup, context_for, kv_dtype};
pub use speech::{SYSTEM, Speech};
pub use target::{Known, Target};
