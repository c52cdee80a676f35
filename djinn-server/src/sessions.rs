//! Sessions that clients name: what is remembered of each, and which session of the engine has its keys and values.
//!
//! A request names its session ([`identity`]) by what agents send anyway. That alone makes a record, and keeps the keys
//! and values for the next request; what a request says beyond that are hints ([`hints`]). [`routes`] shows and moves
//! sessions. A request begins a turn ([`SessionTable::begin`]) and holds a [`Ticket`] until its end. A request that comes
//! before that takes the name over: it computes on its own, and the former turn's session ends with that turn.

mod debugged;
mod file;
pub(crate) mod hints;
mod identity;
pub(crate) mod routes;
mod table;
pub(crate) mod transfer;

pub use hints::SessionUse;
pub(crate) use identity::check as check_name;
pub(crate) use routes::{Named, Told, body as session_body};
pub(crate) use table::{EngineSession, SessionTable, Ticket, TurnResult, conflict};

use djinn_scheduler::Residency;

/// Longest name of a tool, in bytes; waits are learned under it.
const LONGEST_TOOL: usize = 128;

/// Where keys and values are, in the words of the API.
pub(crate) fn residency_name(residency: Residency) -> &'static str {
    match residency {
        Residency::Device => "device",
        Residency::Host => "host",
        Residency::Leaving | Residency::Arriving => "both",
        Residency::Gone => "none",
    }
}
