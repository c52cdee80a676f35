//! Names of systems, and the budget of each ablation.

use super::*;

#[test]
fn names_are_found_and_unknown_ones_refused() {
    assert_eq!(find("no-pipelining").unwrap().name, "NO_PIPELINING");
    assert_eq!(find("Three_Slot").unwrap().name, "three-slot");
    assert_eq!(parse("own").unwrap().0.len() + parse("peers").unwrap().0.len(), SYSTEMS.len());
    assert!(parse("vllm").unwrap_err().contains("three-slot"));
    assert!(parse_own("eager").is_err());
}

#[test]
fn each_ablation_changes_the_budget_and_says_why() {
    for system in SYSTEMS {
        let Kind::Own(change) = system.kind else { continue };
        let mut budget = Budget::default();
        change(&mut budget);
        assert_eq!(budget != Budget::default(), system.why.is_some(), "{}", system.name);
    }
}
