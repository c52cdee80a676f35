//! Debugging over HTTP: hook points, and sessions that stop at one, are read, changed, and go on.
//!
//! [`breakpoint`] reads breakpoints, [`routes`] sets them and waits for pauses, [`activation`], [`cache`] and [`lens`]
//! read and change as [`change`] says, [`resume`] goes on, [`captures`] and [`tokens`] return results. Requests to the engine
//! go through [`engine`] and run on the engine's thread, between steps.

pub(crate) mod activation;
mod bell;
pub(crate) mod breakpoint;
pub(crate) mod cache;
pub(crate) mod captures;
pub(crate) mod change;
pub(crate) mod engine;
pub(crate) mod hooks;
pub(crate) mod lens;
mod pattern;
mod resume;
pub(crate) mod routes;
mod tensors;
pub(crate) mod tokens;

pub(crate) use bell::Bell;
pub(crate) use breakpoint::Armed;
pub(crate) use engine::{debug, not_paused};
pub use lens::is_residual;
pub(crate) use resume::resume;
