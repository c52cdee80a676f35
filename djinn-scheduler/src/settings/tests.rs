//! Settings: what is read, and what is said of what cannot be.

use super::Settings;
use std::time::Duration;

fn yaml_error(text: &str) -> String {
    Settings::from_yaml(text).expect_err(text).to_string()
}

fn toml_error(text: &str) -> String {
    Settings::from_toml(text).expect_err(text).to_string()
}

#[test]
fn yaml_and_toml_say_the_same() {
    let yaml =
        "model: smollm2\nscheduler:\n  policy: ttl\n  ttl_ms: 750\n  max_queue: 3\n  headroom_percent: 5\n";
    let toml = "model = 'smollm2'\n[scheduler]\npolicy = 'ttl'\nttl_ms = 750\nmax_queue = 3\nheadroom_percent = 5.0\n";
    let settings = Settings::from_yaml(yaml).expect("valid");
    assert_eq!(settings, Settings::from_toml(toml).expect("valid"));
    assert_eq!((settings.ttl, settings.rules.max_queue), (Duration::from_millis(750), 3));
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
    assert_eq!(message, "line 3: ttl_ms: the policy `lru` does not read it, only ttl; leave it out");
    assert!(Settings::from_yaml("scheduler:\n  policy: own\n  ttl_ms: 5\n").is_ok());
    assert!(Settings::from_yaml("scheduler:\n  policy: lru\n  max_lease_ms: 5 # not ttl_ms: 5\n").is_ok());
}

#[test]
fn broken_text_gives_one_line() {
    for text in ["scheduler: [", "scheduler:\n\t- x: {", "scheduler: {policy: [1, 2]}", "\u{0}", "%"] {
        let (yaml, toml) = (yaml_error(text), toml_error(text));
        assert!(yaml.starts_with("line ") && !yaml.contains('\n'), "{yaml}");
        assert!(toml.starts_with("line ") && !toml.contains('\n'), "{toml}");
    }
}
