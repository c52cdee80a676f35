//! The library below the binaries: a model on a named device; text in, text out.

#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod answer;
mod args;
mod cards;
mod chat;
mod device;
mod dialogue;
mod djinn;
mod engine;
mod error;
mod failure;
mod forecast;
mod generation;
mod nearest;
mod progress;
pub mod rates;
#[cfg(feature = "remote")]
pub mod remote;
pub mod settings;
mod setup;
mod speech;
pub mod system;
mod tables;
mod target;

pub use answer::{Answer, Speaker};
pub use args::{
    CostPhase, DeviceArgs, PlanAsked, SrgAsked, WorkArgs, bytes, dtype, kv_type, of_query, parameters, query,
    share,
};
pub use cards::{CARDS, Card};
pub use chat::{Chat, Reply};
pub use device::{DeviceName, Needs, OnDevice};
pub use dialogue::Dialogue;
pub use djinn::{Djinn, OpenChat};
pub use engine::{AnyEngine, IDLE_INT8, load, load_into, load_on, without_effect};
pub use error::{Error, Result};
pub use failure::{line_about, one_line};
pub use forecast::{Bottlenecks, Chunks, PredictedTimes, RingUse, Task, TaskPlan};
pub use generation::{Generation, check_prompt, seed};
pub use nearest::{last_layer, nearest};
pub use progress::{Meter, remark};
pub use setup::{Activations, DEFAULT_CONTEXT, Setup, WeightEncoding, context_for, kv_dtype};
pub use speech::{SYSTEM, Speech};
pub use tables::{LogitRows, count, logits_table, plan_table, plan_text, srg_text};
pub use target::{Known, Target};
