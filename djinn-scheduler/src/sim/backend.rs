//! The simulated machine: one step at a time, one copy at a time in each direction of the link.

use super::profile::{Profile, SHORT_PROMPT};
use super::rng::Rng;
use crate::backend::{Backend, Completion};
use crate::cost::{CostModel, seconds};
use crate::plan::{CopyOutcome, Move, Plan, ScheduledSession, TurnEnd};
use crate::session::SessionId;
use crate::state::{Capacity, State};
use std::time::Duration;

/// Times plans by a [`Profile`]. Turns end when all their tokens are generated.
#[derive(Clone, Debug)]
pub struct SimBackend {
    profile: Profile,
    step: Option<(Duration, Vec<(SessionId, TurnEnd)>)>,
    copies: Vec<(Duration, CopyOutcome)>,
    out_busy_until: Duration,
    in_busy_until: Duration,
    failures: Option<(Rng, f64)>,
}

impl SimBackend {
    /// A machine with these times.
    pub fn new(profile: Profile) -> crate::Result<Self> {
        profile.check()?;
        Ok(SimBackend {
            profile,
            step: None,
            copies: Vec::new(),
            out_busy_until: Duration::ZERO,
            in_busy_until: Duration::ZERO,
            failures: None,
        })
    }

    /// The backend named `sim`: a step takes 10 ms and the time to read its contexts at 4 TB/s.
    ///
    /// # Panics
    /// If a figure of the cost model is not above 0. A scheduler refuses those.
    pub fn from_costs(capacity: &Capacity, cost: &CostModel) -> Box<dyn Backend> {
        let profile = Profile::roofline(*cost, capacity.page_tokens, 0.0, 4e12, Duration::from_millis(10));
        Box::new(SimBackend::new(profile).expect("a cost model that a scheduler takes"))
    }

    /// Makes copies fail with probability `share`, by a seeded choice.
    pub fn with_failing_copies(mut self, share: f64, seed: u64) -> Self {
        self.failures = Some((Rng::new(seed), share));
        self
    }

    fn copy(&mut self, copy: &Move, now: Duration, out: bool) {
        let Profile { cost, both_ways_bytes_per_s, .. } = &self.profile;
        let (own, other) = match out {
            true => (&mut self.out_busy_until, self.in_busy_until),
            false => (&mut self.in_busy_until, self.out_busy_until),
        };
        let start = now.max(*own);
        let alone = if out { cost.out_bytes_per_s } else { cost.in_bytes_per_s };
        let rate = if other > start { both_ways_bytes_per_s.min(alone) } else { alone };
        *own = start + seconds(cost.bytes(copy.pages) as f64 / rate);
        let ok = !self.failures.as_mut().is_some_and(|(rng, share)| rng.uniform() < *share);
        self.copies.push((*own, CopyOutcome { session: copy.session, ok }));
    }

    fn step_time(&self, plan: &Plan, state: &State, now: Duration) -> Duration {
        // Contexts of rows; tokens and contexts of chunks.
        let (mut rows, mut chunks) = (Vec::new(), Vec::new());
        for entry in &plan.batch {
            let context = state.session(entry.session()).map_or(0, |session| session.context);
            match entry {
                ScheduledSession::Prefill { tokens, last: true, .. } if *tokens <= SHORT_PROMPT => {
                    rows.extend((0..*tokens).map(|at| context + at));
                }
                ScheduledSession::Prefill { tokens, .. } => chunks.push((*tokens, context)),
                ScheduledSession::Decode { .. } => rows.push(context),
            }
        }
        let time = self.profile.step(&rows, &chunks);
        // Only the part of the step that overlaps copies is slower.
        let copying = self.out_busy_until.max(self.in_busy_until).saturating_sub(now);
        time + time.min(copying).mul_f64(self.profile.slowed_by_copies - 1.0)
    }
}

/// Sessions of a batch whose turn is over with this step.
fn turns_over(plan: &Plan, state: &State) -> Vec<(SessionId, TurnEnd)> {
    let over = |entry: &&ScheduledSession| {
        let yields =
            matches!(entry, ScheduledSession::Decode { .. } | ScheduledSession::Prefill { last: true, .. });
        let session = state.session(entry.session());
        yields && session.is_some_and(|session| session.generated + 1 >= session.max_tokens)
    };
    plan.batch.iter().filter(over).map(|entry| (entry.session(), TurnEnd::Finish)).collect()
}

impl Backend for SimBackend {
    fn name(&self) -> &str {
        "sim"
    }

    fn submit(&mut self, plan: &Plan, state: &State, now: Duration) {
        for copy in &plan.swap_out {
            self.copy(copy, now, true);
        }
        for copy in &plan.swap_in {
            self.copy(copy, now, false);
        }
        if !plan.batch.is_empty() {
            let end = now + self.step_time(plan, state, now).max(Duration::from_micros(1));
            self.step = Some((end, turns_over(plan, state)));
        }
    }

    fn next_event(&self) -> Option<Duration> {
        let step = self.step.iter().map(|&(end, _)| end);
        step.chain(self.copies.iter().map(|&(end, _)| end)).min()
    }

    fn poll(&mut self, now: Duration) -> Completion {
        let step = self.step.take_if(|(end, _)| *end <= now).map(|(_, ended)| ended);
        let mut copies = Vec::new();
        self.copies.retain(|&(end, outcome)| {
            let under_way = end > now;
            if !under_way {
                copies.push(outcome);
            }
            under_way
        });
        Completion { step, copies, ..Completion::default() }
    }
}
