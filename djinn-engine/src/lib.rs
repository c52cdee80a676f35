//! Runs a model on a device: one executor walks the graph of any model on any device.
//!
//! An [`Engine`] is a model on a [`Runtime`], a device that several models may share.
//! [`Engine::step`] runs one pass for a batch of sequences. [`Service`] serves sessions: it runs a scheduler's plans through
//! a [`Batcher`]; [`Generate::generate`] drives one of them through a turn. [`Engine::start_trace`] collects what ran when.
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod batcher;
mod cost;
pub mod debug;
mod engine;
mod error;
mod hooks;
mod kv;
mod logits;
mod options;
mod parts;
mod pass;
mod presence;
mod runtime;
mod sampler;
mod sequence;
mod service;
mod trace;
mod workspaces;

pub use batcher::{Batcher, DeviceTimes, Finish, NewToken, Origin, StepCounts, Turn};
pub use djinn_pages::Pages;
pub use djinn_scheduler::SessionId;
pub use djinn_vmu::{Budget, MemoryPlan, PassStats, Segments};
pub use engine::{Engine, check_heads};
pub use error::{Error, Result};
pub use hooks::{Act, Captured, Edit, Intervention};
pub use logits::{BadLogit, chosen, greedy};
pub use options::Options;
pub use pass::batch::{BatchEntry, SHORT_RUN, Wanted};
pub use runtime::Runtime;
pub use sampler::{
    ChosenToken, Constraint, ConstraintError, NoToken, Sampler, Sampling, TokenLogprobs, TokenMask,
};
pub use sequence::{Entry, Sequence};
pub use service::{
    Client, ExportedSession, Generate, Generated, Happening, Inbox, IncomingSession, KvShape, Listener,
    LoadError, Occupancy, OpenTurn, Opening, Pool, PoolModel, Progress, Request, Residence, Service,
    SessionImage, SessionSnapshot, Snapshot, Stats, TraceProgress, WeightPlaces, spawn,
};
pub use trace::Trace;
pub use workspaces::Workspaces;
