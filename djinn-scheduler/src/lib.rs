//! Schedules many language-model sessions on one device.
//!
//! Agents wait for tools most of the time, and their keys and values wait with them. This crate decides whose
//! pages stay on the device, whose go to the host and come back, what is computed next, and who is refused.
//! Decisions see sizes, times and ids: no clock, no I/O, no device, no threads. The same calls give the same
//! decisions, so the code that an engine runs is the code that the simulator replays.
//!
//! - [`Scheduler`]: the state of all sessions; [`schedule`](Scheduler::schedule) gives a [`Plan`],
//!   [`on_completed`](Scheduler::on_completed) books what came of it, [`signal`](Scheduler::signal) takes hints.
//! - Four seams, each a trait with a default, chosen by name from [`Settings`] through a [`Registry`]:
//!   [`EvictionPolicy`], [`StateKeeper`], [`PhaseHandler`], [`Backend`].
//! - [`drive()`]: clients, scheduler and backend in simulated time or in the machine's, the only place with a clock.
//! - [`sim`]: discrete events, workloads, traces, reports, and Belady's MIN as the bound.
//! - [`conformance`]: what every policy must satisfy.
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod backend;
pub mod conformance;
mod cost;
mod drive;
mod error;
mod handler;
mod keeper;
mod phase;
mod plan;
pub mod policy;
mod registry;
mod schedule;
mod scheduler;
mod session;
mod settings;
mod signal;
pub mod sim;
mod state;

pub use backend::{Backend, Completion};
pub use cost::CostModel;
pub use drive::{Clock, Span, Virtual, WallClock, drive};
pub use error::{Error, Result};
pub use handler::{Chunked, PhaseHandler, Single, StepRoom};
pub use keeper::{StateKeeper, Tiered};
pub use phase::{EventKind, Next, Phase, table, transition};
pub use plan::{CopyOutcome, Entry, Grant, Move, Outcome, Plan, Refusal, TurnEnd};
pub use policy::{Decision, EvictionPolicy, Verdict, View, Why};
pub use registry::Registry;
pub use schedule::{Parts, Rules, schedule};
pub use scheduler::{Event, Scheduler};
pub use session::{Arrival, Residency, Session, SessionId, Wait};
pub use settings::Settings;
pub use signal::{Signal, SignalAnswer, SignalOutcome};
pub use state::{Capacity, State};
