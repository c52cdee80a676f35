//! Every policy of the crate, and Belady's, passes the suite.

use djinn_scheduler::policy::{CostPolicy, LearnedWaits, Lru, NeverEvict, SignalledWaits, Ttl, Weights};
use djinn_scheduler::{EvictionPolicy, conformance};
use std::time::Duration;

fn suite(make: impl Fn() -> Box<dyn EvictionPolicy>) {
    conformance::policy(&make);
}

const WAIT: Duration = Duration::from_millis(300);

#[test]
fn none() {
    suite(|| Box::new(NeverEvict));
}

#[test]
fn lru() {
    suite(|| Box::new(Lru));
}

#[test]
fn ttl() {
    for ms in [0, 500, 60_000] {
        suite(|| Box::new(Ttl::new(Duration::from_millis(ms))));
    }
}

#[test]
fn signal() {
    suite(|| Box::new(CostPolicy::new(SignalledWaits::new(WAIT), Weights::default())));
}

#[test]
fn predicted() {
    suite(|| Box::new(CostPolicy::new(LearnedWaits::new(WAIT), Weights::default())));
}
