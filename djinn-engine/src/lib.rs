//! Runs a model on a device: one executor walks the graph of any model on any device.
//!
//! [`Engine`] joins a graph, the virtual memory unit's segments and a device. [`Engine::step`] runs one
//! pass for a batch of sequences; [`Engine::generate`] samples from it. [`Service`] serves many sessions: it runs a
//! scheduler's plans through a [`Batcher`]. [`Engine::start_trace`] collects what ran when.
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod batch;
mod batcher;
mod engine;
mod error;
mod executor;
mod generate;
mod logits;
mod options;
mod parking;
mod replay;
mod sampler;
mod service;
mod trace;

pub use batch::{Entry, SHORT_RUN, Wanted};
pub use batcher::{Batcher, NewToken, Origin, Turn};
pub use djinn_vmu::{Budget, MemoryPlan, PassStats, Segments};
pub use engine::Engine;
pub use error::{Error, Result};
pub use generate::{Finish, Generated, Progress, Request, Session, Stats};
pub use logits::{BadLogit, greedy};
pub use options::Options;
pub use sampler::{Sampler, Sampling};
pub use service::{Client, Happening, Opening, Service, Stopped, spawn};
pub use trace::Trace;
