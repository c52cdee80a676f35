//! The four traits, each through its example: written outside the crate, chosen by name, run.

#[path = "../examples/custom_backend.rs"]
mod custom_backend;
#[path = "../examples/custom_phases.rs"]
mod custom_phases;
#[path = "../examples/custom_policy.rs"]
mod custom_policy;
#[path = "../examples/custom_state.rs"]
mod custom_state;

use djinn_scheduler::{Error, Registry, conformance};
use std::time::Duration;

#[test]
fn an_eviction_policy() {
    conformance::policy(&|| Box::new(custom_policy::Largest));
    let report = custom_policy::run().expect("it runs");
    assert_eq!(report.policy, "largest");
    assert!(report.swaps_out > 5 && report.turns.len() > 20, "{} turns", report.turns.len());
}

#[test]
fn a_phase_handler() {
    // 150 alone; then 1 decode and a quarter of 192 rows twice; then the rest of 4.
    assert_eq!(custom_phases::run().expect("it runs"), [150, 49, 49, 5]);
}

#[test]
fn session_state() {
    assert_eq!(custom_state::run().expect("it runs"), (17, true));
}

#[test]
fn a_backend() {
    let report = custom_backend::run().expect("it runs");
    // One prefill step and 127 decodes of 5 ms.
    assert_eq!(report.latency(0.5), Duration::from_millis(5 * 128));
}

#[test]
fn unknown_names_are_refused_with_the_known_ones() {
    let registry = Registry::default();
    let message = |text| registry.yaml(text).expect_err(text).to_string();
    assert_eq!(
        message("scheduler:\n  # best\n  policy: best\n"),
        "line 3: policy: there is no `best`; known names: lru, none, predicted, signal, ttl"
    );
    assert_eq!(message("scheduler:\n  state: x"), "line 2: state: there is no `x`; known names: tiered");
    assert_eq!(message("scheduler: {backend: x}"), "line 1: backend: there is no `x`; known names: sim");
    let toml = registry.toml("[scheduler]\nprefill = 'x'").expect_err("unknown");
    assert!(matches!(toml, Error::Settings { line: 2, .. }), "{toml}");
}
