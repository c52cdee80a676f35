//! What a signal and a plan cost, among 100 and 1,000 sessions.

use divan::Bencher;
use djinn_scheduler::{
    Arrival, Capacity, CostModel, Outcome, Registry, Scheduler, SessionId, Settings, Signal, TurnEnd,
};
use std::hint::black_box;
use std::time::Duration;

/// `sessions` sessions of 2,048 tokens that wait on the device, as far as `fit` of them fit; the others queue.
fn scheduler(policy: &str, sessions: u64, fit: u64) -> Scheduler {
    let device_pages = fit as u32 * 32;
    let capacity = Capacity {
        device_pages,
        host_pages: 2 * device_pages,
        page_tokens: 64,
        rows: 1 << 16,
        sequences: 1 << 12,
        chunk: 2_048,
        rows_beside_decodes: None,
    };
    let cost = CostModel {
        page_bytes: 32 << 20,
        out_bytes_per_s: 50e9,
        in_bytes_per_s: 50e9,
        prefill_tokens_per_s: 25_000.0,
    };
    let mut settings = Settings { policy: policy.to_owned(), ..Settings::default() };
    settings.rules.max_queue = 1 << 20;
    let mut scheduler = Registry::default().scheduler(&settings, capacity, cost).expect("valid");
    for id in 0..sessions {
        let arrival =
            Arrival { id: SessionId(id), priority: 0, prompt: 1_900, max_tokens: 100, limit: 2_048 };
        scheduler.arrive(&arrival, Duration::ZERO).expect("it queues");
    }
    for at in 1..=sessions / 8 {
        let now = Duration::from_millis(at);
        let plan = scheduler.schedule(now);
        if plan.batch.is_empty() {
            break;
        }
        let end = |id: SessionId| (id, TurnEnd::ToolCall { tool: Some(format!("tool {}", id.0 % 7)) });
        let ended = plan.batch.iter().map(|entry| end(entry.session())).collect();
        scheduler.on_completed(&plan, &Outcome { ended, ..Outcome::default() }, now);
    }
    scheduler
}

/// Policies, and numbers of sessions.
const CASES: [(&str, u64); 4] =
    [("signal", 100), ("signal", 1_000), ("predicted", 100), ("predicted", 1_000)];

#[divan::bench(args = CASES)]
fn signal(bencher: Bencher<'_, '_>, (policy, sessions): (&str, u64)) {
    let mut scheduler = scheduler(policy, sessions, sessions);
    let hint = Signal::IoWait { tool: Some("bash".to_owned()), estimated_resume_ms: Some(9_000) };
    let mut next = 0;
    bencher.bench_local(|| {
        next = (next + 1) % sessions;
        scheduler.signal(SessionId(next), hint.clone(), Duration::from_secs(1))
    });
}

#[divan::bench(args = CASES)]
fn schedule(bencher: Bencher<'_, '_>, (policy, sessions): (&str, u64)) {
    let scheduler = scheduler(policy, sessions, sessions * 2 / 3);
    let (state, parts) = (scheduler.state(), scheduler.parts());
    bencher.bench_local(|| djinn_scheduler::schedule(black_box(state), parts, Duration::from_secs(1)));
}

fn main() {
    divan::main();
}
