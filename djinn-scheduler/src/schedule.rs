//! Makes the plan, a pure function of the state.

mod draft;

use crate::cost::CostModel;
use crate::handler::PhaseHandler;
use crate::keeper::StateKeeper;
use crate::plan::Plan;
use crate::policy::EvictionPolicy;
use crate::state::State;
use draft::Draft;
use std::time::Duration;

/// A scheduler's exchangeable parts and constants.
#[derive(Debug)]
pub struct Parts {
    /// Chooses whose pages leave.
    pub policy: Box<dyn EvictionPolicy>,
    /// Chooses where they go.
    pub keeper: Box<dyn StateKeeper>,
    /// Chooses the prefill of a step.
    pub prefill: Box<dyn PhaseHandler>,
    /// Chooses the decodes of a step.
    pub decode: Box<dyn PhaseHandler>,
    /// The cost of copies and recomputation.
    pub cost: CostModel,
    /// Bounds.
    pub rules: Rules,
}

/// Bounds that make every session finish or be refused.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// How long a session that gets pages keeps them against demand of a better priority.
    pub lease: Duration,
    /// The longest lease that a policy may give a waiting session, from the beginning of its wait.
    pub max_lease: Duration,
    /// The longest estimate of a wait that counts.
    pub max_wait: Duration,
    /// A session that finds no room for this time is refused.
    pub queue_timeout: Duration,
    /// The most sessions that may queue.
    pub max_queue: usize,
    /// The share of device pages that is kept free while sessions are off the device.
    pub headroom: f64,
}

impl Default for Rules {
    fn default() -> Self {
        Rules {
            lease: Duration::from_millis(500),
            max_lease: Duration::from_secs(5),
            max_wait: Duration::from_secs(3_600),
            queue_timeout: Duration::from_secs(60),
            max_queue: 1_024,
            headroom: 0.04,
        }
    }
}

/// Decides the next step and the movements with it. Call it when no step is under way.
///
/// Sessions on the device get the pages that they grow by. Then queued sessions are admitted or brought back, by
/// priority and waiting time, while pages are free; then sessions that are due soon. Missing pages come from waiting
/// sessions, in the policy's order and never against a lease, and at last from computing sessions of lower rank. The
/// step takes decodes first, then prefill chunks.
///
/// # Panics
/// If a step is under way.
pub fn schedule(state: &State, parts: &Parts, now: Duration) -> Plan {
    assert!(state.step().is_none(), "plan {:?} is still under way", state.step());
    let sessions: Vec<_> = state.sessions().collect();
    let mut draft = Draft::new(state, &sessions, parts, now);
    draft.grow();
    draft.admit();
    draft.restore();
    draft.headroom();
    draft.evict();
    draft.preempt();
    draft.fill();
    draft.finish()
}

/// Decides the step after that of `before`, which is under way. Sessions are [as they will be](State::foresee) after
/// it, and only those of it that decode take part. `None` if others would compute as well, or pages must move.
pub(crate) fn follow(state: &State, parts: &Parts, before: &Plan, now: Duration) -> Option<Plan> {
    let sessions: Vec<_> = state.sessions().collect();
    let mut draft = Draft::new(state, &sessions, parts, now);
    draft.grow();
    draft.headroom();
    if draft.wants_moves() {
        return None;
    }
    draft.fill();
    draft.finish_after(before)
}
