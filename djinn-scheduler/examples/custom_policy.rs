//! An eviction policy of one's own: the largest context leaves first.

use djinn_scheduler::sim::{Report, RunSpan, Shape, SimBackend, Workload, simulate};
use djinn_scheduler::{
    Decision, EvictionPolicy, NoConstants, Registry, Result, Session, Verdict, View, Why, conformance,
};
use std::time::Duration;

/// Frees the most pages with the fewest copies.
#[derive(Debug)]
pub(crate) struct Largest;

impl EvictionPolicy for Largest {
    fn name(&self) -> &str {
        "largest"
    }

    fn verdict(&self, view: &View<'_>, session: &Session) -> Verdict {
        let half = view.state.capacity().device_pages / 2;
        if view.short > 0 && session.device_pages() > half {
            Verdict::go(Decision::Swap, Why::Other("it holds more than half of the device"))
        } else {
            Verdict::keep(Why::OnDemandOnly)
        }
    }

    fn rank(&self, _: &View<'_>, session: &Session) -> Option<u64> {
        Some(session.device_pages() as u64)
    }
}

/// Registers the policy, chooses it by name, and runs it.
pub(crate) fn run() -> Result<Report> {
    let mut registry = Registry::default();
    registry.policy("largest", |_: NoConstants| Box::new(Largest));
    let settings = registry.yaml("scheduler:\n  policy: largest\n  queue_timeout_ms: 5000\n")?;

    let (capacity, cost) = conformance::small_machine();
    let scheduler = registry.scheduler(&settings, capacity, cost)?;
    let backend = SimBackend::from_costs(&capacity, &cost);
    let mut shape = Shape::thinkers(2);
    (shape.first_prompt, shape.max_context) =
        (djinn_scheduler::sim::Distribution::Uniform(50.0, 400.0), 1_024);
    let workload = Workload::closed_loop(&shape, 6, Duration::ZERO, 1);
    let span = RunSpan { warm_up: Duration::ZERO, end: Duration::from_secs(120) };
    Ok(simulate(scheduler, backend, &workload, span, None))
}

#[allow(dead_code, reason = "a test includes this file and calls `run`")]
fn main() -> Result<()> {
    conformance::policy(&|| Box::new(Largest));
    let report = run()?;
    println!("{}: {} turns, {} swaps", report.policy, report.turns.len(), report.swaps_out);
    Ok(())
}
