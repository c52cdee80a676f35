//! The conformance suite for eviction policies. Run it in the tests of your own policy.

use crate::cost::CostModel;
use crate::handler::{ChunkedPrefill, DecodeOne};
use crate::keeper::SpillToHost;
use crate::plan::{CopyOutcome, Outcome, ScheduledSession, TurnEnd};
use crate::policy::EvictionPolicy;
use crate::schedule::{Parts, Rules};
use crate::scheduler::{Scheduler, SessionEvent};
use crate::session::{Arrival, SessionId};
use crate::sim::{Profile, Rng, RunSpan, Shape, SimBackend, Workload, simulate};
use crate::state::Capacity;
use djinn_pages::Residency;
use std::collections::BTreeSet;
use std::time::Duration;

/// A small machine: 64 pages of 16 tokens on the device and as many on the host.
pub fn small_machine() -> (Capacity, CostModel) {
    let capacity = Capacity {
        device_pages: 64,
        host_pages: 64,
        page_tokens: 16,
        rows: 192,
        sequences: 64,
        chunk: 128,
        rows_beside_decodes: None,
    };
    let cost = CostModel {
        page_bytes: 8 << 20,
        out_bytes_per_s: 50e9,
        in_bytes_per_s: 50e9,
        prefill_tokens_per_s: 20_000.0,
    };
    (capacity, cost)
}

/// A policy with the default parts around it.
pub fn parts(policy: Box<dyn EvictionPolicy>, cost: CostModel) -> Parts {
    let rules = Rules { queue_timeout: Duration::from_secs(5), ..Rules::default() };
    Parts {
        policy,
        keeper: Box::new(SpillToHost),
        prefill: Box::new(ChunkedPrefill),
        decode: Box::new(DecodeOne),
        cost,
        rules,
    }
}

/// Runs the suite on policies made by `make`.
///
/// # Panics
/// With what the policy did wrong.
pub fn policy(make: &dyn Fn() -> Box<dyn EvictionPolicy>) {
    only_waiting_sessions_are_moved(make);
    demand_is_met_or_refused(make);
    everybody_finishes_under_overload(make);
    the_same_calls_give_the_same_plans(make);
    no_better_than_the_future(make);
}

/// Sessions that compute, or are not on the device, are never evicted for queued ones.
fn only_waiting_sessions_are_moved(make: &dyn Fn() -> Box<dyn EvictionPolicy>) {
    let (capacity, cost) = small_machine();
    let mut scheduler = Scheduler::new(capacity, parts(make(), cost)).expect("a small machine");
    let arrival = |id| Arrival { id: SessionId(id), priority: 0, prompt: 96, max_tokens: 16, limit: 112 };
    for id in 0..16 {
        scheduler.arrive(&arrival(id), Duration::ZERO).expect("room to queue");
    }
    for step in 0..12 {
        let now = Duration::from_secs(step);
        let before = scheduler.state().clone();
        let plan = scheduler.schedule(now);
        let session = |id| before.session(id).expect("a session that moves exists");
        for session in plan.swap_out.iter().map(|copy| session(copy.session)) {
            assert!(session.is_parked(), "{} was moved while it computed", session.id);
            assert_eq!(session.residency(), Residency::Device, "{} was moved from elsewhere", session.id);
        }
        for session in plan.discard.iter().map(|&id| session(id)) {
            assert!(session.is_parked(), "{} was discarded while it computed", session.id);
            assert_ne!(session.residency(), Residency::Gone, "{} has nothing to discard", session.id);
        }
        // Every other session waits for a tool after its first token.
        let calls = |entry: &ScheduledSession| match *entry {
            ScheduledSession::Prefill { session, last: true, .. } if session.0 % 2 == 0 => Some(session),
            _ => None,
        };
        let ended = plan.batch.iter().filter_map(calls).map(|id| (id, TurnEnd::ToolCall { tool: None }));
        let outcome = Outcome { ended: ended.collect(), ..Outcome::default() };
        if !plan.batch.is_empty() {
            scheduler.on_completed(&plan, &outcome, now);
        }
        scheduler.state().audit();
    }
}

/// A policy that does not reserve gives up every page on demand, once leases are over.
fn demand_is_met_or_refused(make: &dyn Fn() -> Box<dyn EvictionPolicy>) {
    let (capacity, cost) = small_machine();
    let shape = Shape { turns: crate::sim::Distribution::Fixed(1.0), ..waiters() };
    let workload = Workload::closed_loop(&shape, 20, Duration::ZERO, 1);
    let scheduler = Scheduler::new(capacity, parts(make(), cost)).expect("a small machine");
    let reserves = scheduler.parts().policy.reserves();
    let report = run(scheduler, cost, &workload, Duration::from_secs(30));
    assert_eq!(report.arrived, report.finished + report.refused + report.open);
    let served = report.turns.iter().map(|turn| turn.session).collect::<BTreeSet<_>>().len();
    assert!(reserves || served >= 20, "only {served} of 20 sessions got a turn in 30 s");
    assert!(!reserves || report.refused > 0, "nobody is refused though nothing fits");
}

/// Sessions that wait for an hour.
fn waiters() -> Shape {
    use crate::sim::{Distribution::Fixed, Hint, Tool};
    Shape {
        first_prompt: Fixed(200.0),
        next_prompt: Fixed(16.0),
        output: Fixed(8.0),
        turns: Fixed(4.0),
        tools: vec![Tool { name: "sleep".to_owned(), weight: 1.0, seconds: Fixed(3_600.0) }],
        hint: Hint::Exact,
        max_context: 1_024,
    }
}

fn run(scheduler: Scheduler, cost: CostModel, workload: &Workload, end: Duration) -> crate::sim::Report {
    let page_tokens = scheduler.state().capacity().page_tokens;
    let profile = Profile::roofline(cost, page_tokens, 10e9, 4e12, Duration::from_millis(1));
    let backend = SimBackend::new(profile).expect("a valid profile");
    simulate(scheduler, Box::new(backend), workload, RunSpan { warm_up: Duration::ZERO, end }, None)
}

/// With four times the machine's load, all waiting, each session finishes or is refused.
fn everybody_finishes_under_overload(make: &dyn Fn() -> Box<dyn EvictionPolicy>) {
    let (capacity, cost) = small_machine();
    let mut rng = Rng::new(7);
    let mut shape = waiters();
    shape.tools[0].seconds = crate::sim::Distribution::Uniform(0.5, 20.0);
    let scripts = (0..40).map(|_| (Duration::ZERO, shape.script(&mut rng))).collect();
    let scheduler = Scheduler::new(capacity, parts(make(), cost)).expect("a small machine");
    let report = run(scheduler, cost, &Workload::open(scripts), Duration::from_secs(86_400));
    assert_eq!(report.open, 0, "{} sessions hang: {report:?}", report.open);
    assert_eq!(report.finished + report.refused, 40);
}

/// Two runs of the same workload give the same report.
fn the_same_calls_give_the_same_plans(make: &dyn Fn() -> Box<dyn EvictionPolicy>) {
    let (capacity, cost) = small_machine();
    let mut shape = waiters();
    shape.tools[0].seconds = crate::sim::Distribution::LogNormal(1.0, 1.0);
    let workload = Workload::closed_loop(&shape, 12, Duration::from_secs(1), 3);
    let once = || {
        let scheduler = Scheduler::new(capacity, parts(make(), cost)).expect("a small machine");
        run(scheduler, cost, &workload, Duration::from_secs(20))
    };
    assert_eq!(once(), once(), "two runs differ");
}

/// On a sequence of references to contexts of one size, a policy has at least as many misses as Belady's MIN, if its
/// ranks alone choose the victims.
fn no_better_than_the_future(make: &dyn Fn() -> Box<dyn EvictionPolicy>) {
    for seed in 0..16 {
        let mut rng = Rng::new(seed);
        let references: Vec<_> = (0..200).map(|_| (rng.uniform() * rng.uniform() * 12.0) as u64).collect();
        let Some(own) = misses(make(), &references) else { return };
        let best = min_misses(&references, SLOTS);
        assert!(own >= best, "{own} misses where the future allows {best}: the count is wrong");
    }
}

const SLOTS: usize = 5;

/// Misses of a policy's ranks; `None` if it does not evict.
fn misses(policy: Box<dyn EvictionPolicy>, references: &[u64]) -> Option<usize> {
    let (mut capacity, cost) = small_machine();
    (capacity.page_tokens, capacity.device_pages) = (1_024, SLOTS as u32);
    let mut parts = parts(policy, cost);
    (parts.rules.headroom, parts.rules.max_lease) = (0.0, Duration::ZERO);
    if parts.policy.reserves() {
        return None;
    }
    let mut scheduler = Scheduler::new(capacity, parts).expect("a small machine");
    let (mut missed, mut now) = (0, Duration::ZERO);
    let mut used = BTreeSet::new();
    for &id in references {
        now += Duration::from_secs(1);
        let session = SessionId(id);
        if used.insert(id) {
            let arrival = Arrival { id: session, priority: 0, prompt: 250, max_tokens: 1, limit: 1_024 };
            scheduler.arrive(&arrival, now).expect("room to queue");
        } else {
            let event = SessionEvent::NextTurn { prompt: 1, max_tokens: 1 };
            scheduler.event(session, event, now).expect("a waiting session takes a turn");
        }
        let here = scheduler.state().session(session).map(|s| s.residency()) == Some(Residency::Device);
        missed += !here as usize;
        settle(&mut scheduler, session, now);
    }
    Some(missed)
}

/// Runs plans until a session's turn is over.
fn settle(scheduler: &mut Scheduler, session: SessionId, now: Duration) {
    for _ in 0..64 {
        let plan = scheduler.schedule(now);
        let moved = plan.swap_out.iter().chain(&plan.swap_in);
        let copies: Vec<_> = moved.map(|copy| CopyOutcome { session: copy.session, ok: true }).collect();
        if plan.batch.is_empty() {
            scheduler.on_copied(&copies);
            continue;
        }
        let over = scheduler.state().session(session).is_some_and(|s| s.in_step > 0 && s.in_step == s.prompt);
        let ended = if over { vec![(session, TurnEnd::ToolCall { tool: None })] } else { Vec::new() };
        scheduler.on_completed(&plan, &Outcome { ended, copies, ..Outcome::default() }, now);
        if over {
            return;
        }
    }
    panic!("{session} does not get its turn in 64 plans");
}

/// Misses of MIN, which evicts what is used farthest in the future.
fn min_misses(references: &[u64], slots: usize) -> usize {
    let mut held: Vec<u64> = Vec::new();
    let mut missed = 0;
    for (at, id) in references.iter().enumerate() {
        if held.contains(id) {
            continue;
        }
        missed += 1;
        if held.len() == slots {
            let next = |id: &u64| references[at..].iter().position(|other| other == id).unwrap_or(usize::MAX);
            let farthest = (0..held.len()).max_by_key(|&slot| next(&held[slot])).expect("slots are held");
            held.swap_remove(farthest);
        }
        held.push(*id);
    }
    missed
}
