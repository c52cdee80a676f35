//! Inference backends: who executes plans.

use crate::plan::{CopyOutcome, Plan, TurnEnd};
use crate::session::SessionId;
use crate::state::State;
use std::fmt;
use std::time::Duration;

/// Executes plans. The simulator's is a table of times; an engine's runs a model.
pub trait Backend: fmt::Debug {
    /// The name in the settings.
    fn name(&self) -> &str;

    /// Begins a plan: its copies and its step, after those that are under way. `state` is that after the plan was booked.
    /// At most one step is under way, and only where the backend [takes the next](Self::takes_next); copies of earlier
    /// plans may be.
    fn submit(&mut self, plan: &Plan, state: &State, now: Duration);

    /// Whether a step in which each session of `plan` computes the token after those of `plan` may be submitted while the
    /// step of `plan` is under way. None may by default.
    fn takes_next(&self, _plan: &Plan) -> bool {
        false
    }

    /// When to poll next: the end of whatever ends first, or a time that has passed where that is not known,
    /// which means all the time. `None` if nothing is under way.
    fn next_event(&self) -> Option<Duration>;

    /// What has ended by `now` and was not reported yet.
    fn poll(&mut self, now: Duration) -> Completion;
}

/// What a backend reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// If the step that was submitted first ended: the sessions whose turn ended with it.
    pub step: Option<Vec<(SessionId, TurnEnd)>>,
    /// With the step: the sessions that met a breakpoint in it.
    pub stopped: Vec<SessionId>,
    /// Copies that ended.
    pub copies: Vec<CopyOutcome>,
    /// The backend is broken, and why: nothing that is under way will end.
    pub failure: Option<String>,
}
