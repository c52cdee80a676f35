//! The plan: a pure function of the state.

mod draft;

use crate::cost::CostModel;
use crate::handler::PhaseHandler;
use crate::keeper::StateKeeper;
use crate::plan::Plan;
use crate::policy::EvictionPolicy;
use crate::state::State;
use draft::Draft;
use std::time::Duration;

/// The exchangeable parts and the constants of a scheduler.
#[derive(Debug)]
pub struct Parts {
    /// Whose pages leave.
    pub policy: Box<dyn EvictionPolicy>,
    /// Where they go.
    pub keeper: Box<dyn StateKeeper>,
    /// What prefill puts into a step.
    pub prefill: Box<dyn PhaseHandler>,
    /// What decode puts into a step.
    pub decode: Box<dyn PhaseHandler>,
    /// What moving costs.
    pub cost: CostModel,
    /// Bounds.
    pub rules: Rules,
}

/// Bounds that make every session finish or be refused.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// A session that gets pages keeps them for so long against demand of a better priority.
    pub lease: Duration,
    /// The longest lease that a policy may give a waiting session, from the beginning of its wait.
    pub max_lease: Duration,
    /// The longest estimate of a wait that counts.
    pub max_wait: Duration,
    /// A session that finds no room for so long is refused.
    pub queue_timeout: Duration,
    /// Sessions that may queue.
    pub max_queue: usize,
    /// Part of the device's pages that is kept free while sessions are off the device.
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

/// Decides the next step, and what moves beside it. Call it when no step is under way.
///
/// Sessions on the device get the pages that they grow by; then those that queue are admitted or brought back,
/// by priority and time of waiting, while pages are free; then those that are due soon. Pages that are missing
/// come from sessions that wait, in the policy's order, never against a lease, and at last from sessions that
/// compute and rank behind the one in need. The step takes decodes first and fills up with chunks of prefill.
///
/// # Panics
/// If a step is under way.
pub fn schedule(state: &State, parts: &Parts, now: Duration) -> Plan {
    assert!(state.step().is_none(), "plan {:?} is still under way", state.step());
    let mut draft = Draft::new(state, parts, now);
    draft.grow();
    draft.admit();
    draft.restore();
    draft.headroom();
    draft.evict();
    draft.preempt();
    draft.fill();
    draft.finish()
}

/// Decides the step after the one of `before`, which is under way, with sessions [as they will be](State::foresee) after it:
/// sessions of it that decode. `None` where others would compute as well, or pages are to be moved.
pub(crate) fn follow(state: &State, parts: &Parts, before: &Plan, now: Duration) -> Option<Plan> {
    let mut draft = Draft::new(state, parts, now);
    draft.grow();
    draft.headroom();
    if draft.wants_moves() {
        return None;
    }
    draft.fill();
    draft.finish_after(before)
}
