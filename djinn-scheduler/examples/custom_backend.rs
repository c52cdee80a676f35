//! A backend of one's own, chosen by name: steps of fixed length, copies at once. An engine's backend has the
//! same three calls: begin a plan, say when to look, say what has ended.

use djinn_scheduler::sim::{Report, RunSpan, Shape, Workload, simulate};
use djinn_scheduler::{
    Backend, Completion, CopyOutcome, Plan, Registry, Result, ScheduledSession, SessionId, State, TurnEnd,
    conformance,
};
use std::time::Duration;

/// Every step takes 5 ms.
#[derive(Debug, Default)]
pub(crate) struct Metronome {
    step: Option<(Duration, Vec<(SessionId, TurnEnd)>)>,
    copies: Vec<(Duration, CopyOutcome)>,
}

impl Backend for Metronome {
    fn name(&self) -> &str {
        "metronome"
    }

    fn submit(&mut self, plan: &Plan, state: &State, now: Duration) {
        let moved = plan.swap_out.iter().chain(&plan.swap_in);
        self.copies.extend(moved.map(|copy| (now, CopyOutcome { session: copy.session, ok: true })));
        let over = |entry: &&ScheduledSession| {
            let yields = !matches!(entry, ScheduledSession::Prefill { last: false, .. });
            let session = state.session(entry.session());
            yields && session.is_some_and(|session| session.generated + 1 >= session.max_tokens)
        };
        let ended = plan.batch.iter().filter(over).map(|entry| (entry.session(), TurnEnd::Finish)).collect();
        if !plan.batch.is_empty() {
            self.step = Some((now + Duration::from_millis(5), ended));
        }
    }

    fn next_event(&self) -> Option<Duration> {
        self.step.iter().map(|(end, _)| *end).chain(self.copies.iter().map(|(end, _)| *end)).min()
    }

    fn poll(&mut self, now: Duration) -> Completion {
        let step = self.step.take_if(|(end, _)| *end <= now).map(|(_, ended)| ended);
        let copies = std::mem::take(&mut self.copies).into_iter().map(|(_, outcome)| outcome).collect();
        Completion { step, copies, ..Completion::default() }
    }
}

/// Runs a workload on the backend that the settings name.
pub(crate) fn run() -> Result<Report> {
    let mut registry = Registry::default();
    registry.backend("metronome", |_, _| Box::new(Metronome::default()));
    let settings = registry.yaml("scheduler:\n  policy: lru\n  backend: metronome\n")?;
    let (capacity, cost) = conformance::small_machine();
    let scheduler = registry.scheduler(&settings, capacity, cost)?;
    let backend = registry.make_backend(&settings, &capacity, &cost)?;
    let mut shape = Shape::thinkers(2);
    (shape.first_prompt, shape.max_context) = (djinn_scheduler::sim::Distribution::Fixed(100.0), 512);
    let workload = Workload::closed_loop(&shape, 1, Duration::ZERO, 1);
    let span = RunSpan { warm_up: Duration::ZERO, end: Duration::from_secs(120) };
    Ok(simulate(scheduler, backend, &workload, span, None))
}

#[allow(dead_code, reason = "a test includes this file and calls `run`")]
fn main() -> Result<()> {
    let report = run()?;
    println!("{} steps, {} turns, P50 {:?}", report.steps, report.turns.len(), report.latency(0.5));
    Ok(())
}
