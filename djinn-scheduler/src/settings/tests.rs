//! Settings: what is read, and what is said of what cannot be.

use super::{Number, Settings, Whole};
use crate::registry::Registry;
use serde::Deserialize;

fn yaml_error(text: &str) -> String {
    Registry::default().yaml(text).expect_err(text).to_string()
}

fn toml_error(text: &str) -> String {
    Registry::default().toml(text).expect_err(text).to_string()
}

#[test]
fn yaml_and_toml_say_the_same() {
    let yaml =
        "model: smollm2\nscheduler:\n  policy: ttl\n  ttl_ms: 750\n  max_queue: 3\n  headroom_percent: 5\n";
    let toml = "model = 'smollm2'\n[scheduler]\npolicy = 'ttl'\nttl_ms = 750\nmax_queue = 3\nheadroom_percent = 5.0\n";
    let settings = Settings::from_yaml(yaml).expect("valid");
    assert_eq!(settings, Settings::from_toml(toml).expect("valid"));
    let registry = Registry::default();
    assert_eq!(registry.yaml(yaml), registry.toml(toml));
    assert_eq!((registry.yaml(yaml), settings.rules.max_queue), (Ok(settings.clone()), 3));
    assert!((settings.rules.headroom - 0.05).abs() < 1e-12);
}

#[test]
fn nothing_said_is_the_default() {
    for text in ["", "other: 1\n", "scheduler: {}\n"] {
        assert_eq!(Settings::from_yaml(text), Ok(Settings::default()), "{text:?}");
    }
    assert_eq!(Settings::from_toml("[scheduler]\n"), Ok(Settings::default()));
}

#[test]
fn a_wrong_type_is_named_with_its_line_and_field() {
    let message = yaml_error("scheduler:\n  policy: ttl\n  ttl_ms: soon\n");
    assert!(message.starts_with("line 3: ttl_ms: "), "{message}");
    let message = toml_error("[scheduler]\npolicy = \"ttl\"\nttl_ms = \"soon\"\n");
    assert!(message.starts_with("line 3: ttl_ms: "), "{message}");
    let message = yaml_error("scheduler: {policy: ttl, ttl_ms: -5}\n");
    assert!(message.starts_with("line 1: "), "{message}");
    for message in [yaml_error("scheduler: 7\n"), toml_error("scheduler = 7\n"), yaml_error("- a\n- b\n")] {
        assert!(message.starts_with("line 1: scheduler: "), "{message}");
        assert!(!message.contains('\n'), "{message}");
    }
}

#[test]
fn an_unknown_field_is_refused_with_the_known_ones() {
    let message = yaml_error("scheduler:\n  policy: lru\n  lease: 5\n");
    assert!(message.contains("line 3") && message.contains("lease_ms"), "{message}");
    let message = toml_error("[scheduler]\nlease = 5\n");
    assert!(message.contains("line 2") && message.contains("lease_ms"), "{message}");
}

#[test]
fn ranges_are_checked() {
    let message = yaml_error("scheduler:\n  # more\n  headroom_percent: 80\n");
    assert_eq!(message, "line 3: headroom_percent: 80 is out of range; give 0 to 50");
    let message = toml_error("[scheduler]\nhysteresis = nan\n");
    assert!(message.starts_with("line 2: hysteresis: NaN is out of range"), "{message}");
    assert!(yaml_error("scheduler: {queue_timeout_ms: 0}").contains("give 1 to 86400000"));
}

#[test]
fn a_constant_that_the_policy_does_not_read_is_refused() {
    let message = yaml_error("scheduler:\n  policy: lru\n  ttl_ms: 5\n");
    let start = "line 3: ttl_ms: it is not read with the policy `lru`; leave it out, or give policy, state, ";
    assert!(message.starts_with(start) && message.ends_with(", headroom_percent"), "{message}");
    assert!(
        yaml_error("scheduler: {policy: signal, ttl_ms: 5}")
            .ends_with(", hysteresis, restore_ahead, recompute_below")
    );
    let registry = Registry::default();
    assert!(registry.yaml("scheduler:\n  policy: lru\n  max_lease_ms: 5 # not ttl_ms: 5\n").is_ok());
    // Beside other policies, as when several are compared, it is left alone.
    let mut settings = registry.yaml("scheduler: {policy: ttl, ttl_ms: 5}").expect("valid");
    settings.policy = "lru".to_owned();
    let cost = crate::conformance::small_machine().1;
    assert_eq!(registry.parts(&settings, cost).expect("known parts").policy.name(), "lru");
}

/// A policy's own fields, as another crate declares them.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(default)]
struct Own {
    share: Number<1>,
    count: Whole<1, 9>,
    name: String,
}

impl Default for Own {
    fn default() -> Self {
        Own { share: Number(0.5), count: Whole(1), name: "none".to_owned() }
    }
}

#[test]
fn fields_become_the_type_of_the_part_that_takes_them() {
    let take = |text: &str| Settings::from_yaml(text).expect("fields").constants.take::<Own>();
    let all = take("scheduler: {policy: own, share: 1, count: 9, name: x}").expect("in range");
    assert_eq!(all, Own { share: Number(1.0), count: Whole(9), name: "x".to_owned() });
    assert_eq!(take("scheduler: {policy: own}").expect("defaults"), Own::default());
    let refused = |text: &str| take(text).expect_err(text).to_string();
    assert_eq!(refused("scheduler: {share: 1.5}"), "share: 1.5 is out of range; give 0 to 1");
    assert_eq!(refused("scheduler: {count: 10}"), "count: 10 is out of range; give 1 to 9");
    assert!(refused("scheduler: {count: 1.5}").starts_with("count: invalid type"));
    assert_eq!(refused("scheduler: {name: [x]}"), "name: it is neither a number nor a text");
}

#[test]
fn broken_text_gives_one_line() {
    for text in ["scheduler: [", "scheduler:\n\t- x: {", "scheduler: {policy: [1, 2]}", "\u{0}", "%"] {
        let (yaml, toml) = (yaml_error(text), toml_error(text));
        assert!(yaml.starts_with("line ") && !yaml.contains('\n'), "{yaml}");
        assert!(toml.starts_with("line ") && !toml.contains('\n'), "{toml}");
    }
}
