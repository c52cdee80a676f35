//! The shapes of experiment 1 in simulation: what policies must be worth.

#[path = "../examples/compare.rs"]
#[allow(dead_code, reason = "the example also prints")]
mod compare;

use compare::{Machine, run};
use djinn_scheduler::sim::{Report, RunSpan, Shape, SimBackend, Workload, simulate};
use djinn_scheduler::{Registry, Scheduler};
use std::time::Duration;

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn thinkers(agents: u32, policy: &str) -> Report {
    let workload = Workload::closed_loop(&Shape::thinkers(3), agents, s(15), 1);
    let span = RunSpan { warm_up: s(60), end: s(300) };
    run(&Machine::llama_2_7b(), policy, &workload, span).expect("valid settings")
}

#[test]
fn eighty_thinking_agents_where_forty_eight_fit() {
    let (none, signal) = (thinkers(80, "none"), thinkers(80, "signal"));
    let gain = signal.tokens_per_second() / none.tokens_per_second();
    assert!((1.5..=80.0 / 48.0 + 0.005).contains(&gain), "gain {gain:.3}");
    // What fits is served as if alone, and no session is refused.
    let most = none.samples.iter().map(|sample| sample.on_device).max();
    assert_eq!((most, none.refused, signal.refused), (Some(48), 0, 0));
    let (lru, belady) = (thinkers(80, "lru"), thinkers(80, "belady"));
    assert!(signal.tokens_per_second() > 0.995 * lru.tokens_per_second());
    assert!(signal.tokens_per_second() < 1.005 * belady.tokens_per_second());
    // Evicting the farthest moves sessions less often. Both copy only what was written since a session came back.
    assert!(signal.swaps_out < lru.swaps_out / 2, "{} and {} swaps", signal.swaps_out, lru.swaps_out);
    assert!(signal.bytes_out < lru.bytes_out * 3 / 4, "{} and {} bytes", signal.bytes_out, lru.bytes_out);
}

#[test]
fn nothing_moves_where_everybody_fits() {
    let (none, signal) = (thinkers(40, "none"), thinkers(40, "signal"));
    assert_eq!(signal.swaps_out + signal.swaps_in + signal.discards, 0);
    assert_eq!((signal.tokens, &signal.turns), (none.tokens, &none.turns));
}

/// Work per second over several seeds.
fn coding(machine: Machine, agents: u32, policies: &[&'static str]) -> Vec<f64> {
    let span = RunSpan { warm_up: s(120), end: s(720) };
    let work = |policy: &str| {
        let of = |seed| {
            let workload = Workload::closed_loop(&Shape::coding_agents(), agents, s(60), seed);
            run(&machine, policy, &workload, span).expect("valid settings").tokens_per_second()
        };
        (1..=6).map(of).sum::<f64>()
    };
    std::thread::scope(|scope| {
        let runs: Vec<_> = policies.iter().map(|policy| scope.spawn(|| work(policy))).collect();
        runs.into_iter().map(|run| run.join().expect("a simulation ends")).collect()
    })
}

#[test]
fn coding_agents_under_pressure_and_without() {
    // Where copies cost something, to learn is better than either; at 50 GB/s they hide behind steps that are
    // bound by arithmetic, and swapping at every wait is as good.
    for (link, agents, gain) in [(50e9, 12, 1.0), (10e9, 24, 1.01), (10e9, 36, 1.0), (50e9, 36, 0.99)] {
        let machine = Machine::llama_3_8b().with_link(link);
        let work = coding(machine, agents, &["none", "always", "signal", "predicted"]);
        let [keep, swap, signal, predicted] = work[..] else { panic!("four policies") };
        let best = keep.max(swap);
        let figures = format!("{agents} agents at {link:.0e} B/s: {work:.1?}");
        assert!(signal >= 0.95 * best, "{figures}");
        assert!(predicted >= gain * best, "{figures}");
    }
}

#[test]
fn swapping_at_every_wait_loses_on_a_slow_link() {
    let machine = Machine::llama_3_8b().with_link(10e9);
    let work = coding(machine, 12, &["lru", "always", "predicted"]);
    let [keep, swap, predicted] = work[..] else { panic!("three policies") };
    assert!(swap < 0.99 * keep && predicted > 0.995 * keep, "{work:.1?}");
}

#[test]
fn a_full_host_is_left_to_those_who_are_away_for_long() {
    let work = coding(Machine::llama_3_8b_small_host(), 48, &["none", "always", "signal", "predicted"]);
    let [keep, swap, signal, predicted] = work[..] else { panic!("four policies") };
    assert!(signal.min(predicted) > 1.05 * keep.max(swap), "{work:.1?}");
}

#[test]
fn sessions_finish_when_copies_fail() {
    let machine = Machine::llama_2_7b();
    let workload = Workload::poisson(&Shape::thinkers(2), 120, 4.0, 5);
    let settings = compare::settings("signal");
    let parts = Registry::default().parts(&settings, machine.profile.cost).expect("known parts");
    let scheduler = Scheduler::new(machine.capacity, parts).expect("valid");
    let backend = SimBackend::new(machine.profile).expect("valid").with_failing_copies(0.2, 9);
    let span = RunSpan { warm_up: Duration::ZERO, end: s(86_400) };
    let report = simulate(scheduler, Box::new(backend), &workload, span, None);
    assert!(report.failed_copies > 5, "{} copies failed", report.failed_copies);
    assert_eq!((report.finished, report.open, report.turns.len()), (120, 0, 240));
}

/// Four times what device and host hold, all waiting: each finishes or is refused, none hangs.
#[test]
fn overload_is_served_or_refused() {
    for policy in ["none", "lru", "always", "ttl", "signal", "predicted"] {
        let mut machine = Machine::llama_2_7b();
        (machine.capacity.device_pages, machine.capacity.host_pages) = (8 * 32, 8 * 32);
        let workload = Workload::poisson(&Shape::thinkers(3), 64, 1e6, 3);
        let report = run(&machine, policy, &workload, RunSpan { warm_up: s(0), end: s(86_400) });
        let report = report.expect("valid settings");
        assert_eq!((report.finished + report.refused, report.open), (64, 0), "{policy}");
        assert_eq!(report.refused, 0, "{policy}: the queue has a day");
    }
}
