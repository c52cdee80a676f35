//! What a signal and a plan cost, among 100 and 1,000 sessions.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
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

fn signal(c: &mut Criterion) {
    let mut group = c.benchmark_group("signal");
    for policy in ["signal", "predicted"] {
        for sessions in [100, 1_000] {
            let mut scheduler = scheduler(policy, sessions, sessions);
            let hint = Signal::IoWait { tool: Some("bash".to_owned()), estimated_resume_ms: Some(9_000) };
            let mut next = 0;
            group.bench_function(BenchmarkId::new(policy, sessions), |b| {
                b.iter(|| {
                    next = (next + 1) % sessions;
                    black_box(scheduler.signal(SessionId(next), hint.clone(), Duration::from_secs(1)))
                });
            });
        }
    }
    group.finish();
}

fn plan(c: &mut Criterion) {
    let mut group = c.benchmark_group("schedule");
    for policy in ["signal", "predicted"] {
        for sessions in [100, 1_000] {
            let scheduler = scheduler(policy, sessions, sessions * 2 / 3);
            let (state, parts) = (scheduler.state(), scheduler.parts());
            group.bench_function(BenchmarkId::new(policy, sessions), |b| {
                b.iter(|| djinn_scheduler::schedule(black_box(state), parts, Duration::from_secs(1)));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, signal, plan);
criterion_main!(benches);
