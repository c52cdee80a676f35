//! A phase handler of one's own: prefill takes at most a quarter of a step while others decode, so that their
//! tokens come evenly.

use djinn_scheduler::{
    Arrival, Outcome, PhaseHandler, Plan, Registry, Result, Session, SessionId, StepRoom, conformance,
};
use std::time::Duration;

/// Prefill that leaves room. Its chunks depend on who else decodes: do not use it where results must not.
#[derive(Debug)]
pub(crate) struct Gentle;

impl PhaseHandler for Gentle {
    fn name(&self) -> &str {
        "gentle"
    }

    fn order(&self) -> u32 {
        1
    }

    fn tokens(&self, room: &StepRoom, session: &Session) -> u64 {
        let share = if room.decoding > 0 { room.rows / 4 } else { room.rows };
        session.prompt.min(share.saturating_sub(room.prefilling) as u64)
    }
}

/// The rows of the steps in which one session decodes and another comes with a long prompt.
pub(crate) fn run() -> Result<Vec<u64>> {
    let mut registry = Registry::default();
    registry.handler("gentle", || Box::new(Gentle));
    let settings = registry.toml("[scheduler]\nprefill = \"gentle\"\n")?;
    let (capacity, cost) = conformance::small_machine();
    let mut scheduler = registry.scheduler(&settings, capacity, cost)?;

    let step = |scheduler: &mut djinn_scheduler::Scheduler, at: u64| -> Plan {
        let plan = scheduler.schedule(Duration::from_millis(at));
        scheduler.on_completed(&plan, &Outcome::default(), Duration::from_millis(at));
        plan
    };
    let first = Arrival { id: SessionId(1), priority: 0, prompt: 150, max_tokens: 32, limit: 256 };
    scheduler.arrive(&first, Duration::ZERO)?;
    let mut rows = vec![step(&mut scheduler, 1).rows()];
    let second = Arrival { id: SessionId(2), prompt: 100, ..first };
    scheduler.arrive(&second, Duration::from_millis(2))?;
    rows.extend((3..6).map(|at| step(&mut scheduler, at).rows()));
    Ok(rows)
}

#[allow(dead_code, reason = "a test includes this file and calls `run`")]
fn main() -> Result<()> {
    println!("rows of the steps: {:?}", run()?);
    Ok(())
}
