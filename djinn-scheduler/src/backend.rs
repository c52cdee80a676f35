//! Backends: executors of plans.

use crate::plan::{CopyOutcome, Plan, TurnEnd};
use crate::session::SessionId;
use crate::state::State;
use std::fmt;
use std::time::Duration;

/// Executes plans. The simulator's backend is a table of times; an engine's runs a model.
pub trait Backend: fmt::Debug {
    /// The name in the settings.
    fn name(&self) -> &str;

    /// Begins a plan's copies and its step, after earlier work. `state` is the state after the plan was booked. At
    /// most one step is under way, unless the backend [takes the next](Self::takes_next); earlier plans' copies may
    /// be.
    fn submit(&mut self, plan: &Plan, state: &State, now: Duration);

    /// Whether the next step may be submitted while one is under way, if each session of that step computes its next
    /// token in it. By default it may not.
    fn takes_next(&self) -> bool {
        false
    }

    /// When to poll next: the time of the next end, or a time in the past if only polling can tell. `None` if nothing
    /// is under way.
    fn next_event(&self) -> Option<Duration>;

    /// What has ended by `now` and was not reported before.
    fn poll(&mut self, now: Duration) -> Completion;
}

/// What a backend reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// If the oldest step ended: the sessions whose turn ended with it.
    pub step: Option<Vec<(SessionId, TurnEnd)>>,
    /// With the step: the sessions that met a breakpoint.
    pub stopped: Vec<SessionId>,
    /// Copies that ended.
    pub copies: Vec<CopyOutcome>,
    /// Why the backend is broken, if it is: nothing under way will end.
    pub failure: Option<String>,
}
