//! Named sessions: a record for each, and the engine's session with its keys and values.
//!
//! A request names its session ([`identity`]) with fields that agents send anyway. The name is enough to make a
//! record, and to keep keys and values for the next request; further fields are hints ([`hints`]). [`routes`] shows
//! and moves sessions. A request begins a turn ([`SessionTable::begin`]) and holds a [`Ticket`] until its end. A new
//! request during a turn takes the name over: it computes on its own, and the earlier turn's session ends with that
//! turn.

mod debugged;
mod file;
pub(crate) mod hints;
mod identity;
pub(crate) mod routes;
mod table;
pub(crate) mod transfer;

pub use hints::SessionUse;
pub(crate) use identity::check as check_name;
pub(crate) use routes::{EngineReport, Named, body as session_body};
pub(crate) use table::{EngineSession, SessionTable, Ticket, TurnResult};

use djinn_scheduler::Residency;

/// Longest name of a tool, in bytes; waits are learned under it.
const LONGEST_TOOL: usize = 128;

/// The API's word for the place of keys and values.
pub(crate) fn residency_name(residency: Residency) -> &'static str {
    match residency {
        Residency::Device => "device",
        Residency::Host => "host",
        Residency::Leaving | Residency::Arriving => "both",
        Residency::Gone => "none",
    }
}
