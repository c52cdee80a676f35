//! Schedules many language-model sessions on one device.
//!
//! Agents wait for tools most of the time, and their keys and values wait with them. This crate decides whose pages
//! stay on the device, whose go to the host and come back, what is computed next, and which session is refused.
//! Decisions see sizes, times and ids: no clock, no I/O, no device, no threads. The same calls give the same
//! decisions, so the simulator runs the same code as an engine.
//!
//! - [`Scheduler`]: the state of all sessions. [`schedule`](Scheduler::schedule) gives a [`Plan`],
//!   [`on_completed`](Scheduler::on_completed) books its outcome, [`signal`](Scheduler::signal) takes hints.
//! - Four traits with defaults, chosen by name from [`Settings`] through a [`Registry`]:
//!   [`EvictionPolicy`], [`StateKeeper`], [`PhaseHandler`], [`Backend`].
//! - [`EventLoop`]: a scheduler and its backend, pumped by whatever serves sessions.
//! - [`drive()`]: workloads through that loop, in simulated or real time; the only part with a clock.
//! - [`sim`]: discrete events, workloads, traces, reports, and Belady's MIN as the bound.
//! - [`conformance`]: the suite that every policy must pass.
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod answer;
mod backend;
pub mod conformance;
mod cost;
mod drive;
mod error;
mod event_loop;
mod handler;
mod keeper;
mod phase;
mod plan;
pub mod policy;
mod registry;
mod rewrite;
mod schedule;
mod scheduler;
mod session;
mod settings;
mod signal;
pub mod sim;
mod state;

pub use djinn_pages::{BlockTable, PageName, Pages, Residency};

pub use answer::{SessionReport, SignalAnswer, SignalOutcome};
pub use backend::{Backend, Completion};
pub use cost::CostModel;
pub use drive::{Clock, RunSpan, Virtual, WallClock, drive};
pub use error::{Error, Result};
pub use event_loop::{EventLoop, Pumped};
pub use handler::{ChunkedPrefill, DecodeOne, PhaseHandler, StepRoom};
pub use keeper::{SpillToHost, StateKeeper};
pub use phase::{EventKind, Next, Phase, table, transition};
pub use plan::{CopyOutcome, Grant, Move, Outcome, Plan, Refusal, ScheduledSession, TurnEnd};
pub use policy::{Decision, EvictionPolicy, Verdict, View, Why};
pub use registry::{NoConstants, Registry};
pub use rewrite::Rewrite;
pub use schedule::{Parts, Rules, schedule};
pub use scheduler::{Scheduler, SessionEvent};
pub use session::{Arrival, Session, SessionId, Wait};
pub use settings::{Constants, Settings};
pub use signal::Signal;
pub use state::{Capacity, State};
