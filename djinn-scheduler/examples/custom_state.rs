//! Session-state management of one's own: a model with a sliding window, whose state is bounded, on a machine
//! without host memory to swap to.

use djinn_scheduler::{
    Arrival, Capacity, Decision, Outcome, Registry, Result, Session, SessionId, StateKeeper, TurnEnd, View,
    conformance,
};
use std::time::Duration;

/// Keeps the pages of the last `window` tokens, and recomputes what it gives up.
#[derive(Debug)]
pub(crate) struct Windowed {
    window: u64,
}

impl StateKeeper for Windowed {
    fn name(&self) -> &str {
        "windowed"
    }

    fn pages(&self, capacity: &Capacity, tokens: u64) -> u32 {
        // The window seldom begins at the beginning of a page.
        let most = capacity.pages(self.window) + 1;
        capacity.pages(tokens).min(most)
    }

    fn place(&self, _: &View<'_>, _: &Session, wish: Decision, pressing: bool) -> Decision {
        match wish {
            Decision::Keep => Decision::Keep,
            _ if pressing => Decision::Discard,
            _ => Decision::Keep,
        }
    }
}

/// A session far longer than the device: the pages that it holds at the end of its prompt, and whether another
/// one can have them then.
pub(crate) fn run() -> Result<(u32, bool)> {
    let mut registry = Registry::default();
    registry.keeper("windowed", || Box::new(Windowed { window: 256 }));
    let settings = registry.yaml("scheduler: {state: windowed, policy: lru}")?;
    let (capacity, cost) = conformance::small_machine();
    let capacity = Capacity { device_pages: 20, host_pages: 0, ..capacity };
    let mut scheduler = registry.scheduler(&settings, capacity, cost)?;

    let long = Arrival { id: SessionId(1), priority: 0, prompt: 5_000, max_tokens: 1, limit: 8_192 };
    scheduler.arrive(&long, Duration::ZERO)?;
    let mut held = 0;
    for at in 0..40 {
        let plan = scheduler.schedule(Duration::from_millis(at));
        held = scheduler.state().session(long.id).map_or(0, |session| session.device_pages());
        let last = plan
            .batch
            .iter()
            .any(|e| matches!(e, djinn_scheduler::ScheduledSession::Prefill { last: true, .. }));
        let ended = if last { vec![(long.id, TurnEnd::ToolCall { tool: None })] } else { Vec::new() };
        let outcome = Outcome { ended, ..Outcome::default() };
        scheduler.on_completed(&plan, &outcome, Duration::from_millis(at));
        if last {
            break;
        }
    }
    let other = Arrival { id: SessionId(2), ..long };
    scheduler.arrive(&other, Duration::from_millis(50))?;
    let plan = scheduler.schedule(Duration::from_millis(50));
    Ok((held, plan.discard == [long.id]))
}

#[allow(dead_code, reason = "a test includes this file and calls `run`")]
fn main() -> Result<()> {
    let (held, discarded) = run()?;
    println!("5,000 tokens in {held} pages; given up when another session came: {discarded}");
    Ok(())
}
