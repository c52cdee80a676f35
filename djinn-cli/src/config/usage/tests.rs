//! Usage errors are one line.

use super::*;
use crate::args::Cli;
use clap::CommandFactory;

fn line(args: &[&str]) -> String {
    let error = Cli::command().try_get_matches_from(args).unwrap_err();
    one_line(&error, error.kind())
}

#[test]
fn failures_are_one_line_with_what_was_meant() {
    for (args, expected) in [
        (
            &["djinn", "run", "--vrma", "1"][..],
            "error: unexpected argument '--vrma' found; a similar argument exists: '--vram'; see --help",
        ),
        (
            &["djinn", "logits", "m"],
            "error: the following required arguments were not provided: --tokens <IDS>; usage: djinn logits \
             --tokens <IDS> <MODEL>",
        ),
        (
            &["djinn", "srg", "m", "--phase", "x"],
            "error: invalid value 'x' for '--phase <PHASE>' [possible values: prefill, decode]; see --help",
        ),
        (
            &["djinn", "plan", "m", "--gpu", "rtx-3061"],
            "error: invalid value 'rtx-3061' for '--gpu <NAME>': there is no card rtx-3061; did you mean rtx-3060?; \
             see --help",
        ),
    ] {
        assert_eq!(line(args), expected);
    }
}

/// What other programs call otherwise is told, however it is written.
#[test]
fn options_of_other_programs_are_explained() {
    let unknown =
        [["-ngl", "20"], ["--n-cpu-moe", "4"], ["--gpu-memory-utilization", "0.9"], ["-ncmoe", "3"]];
    for [option, value] in unknown {
        let line = line(&["djinn", "run", "m", option, value]);
        assert!(line.starts_with(&format!("error: there is no '{option}': ")), "{line}");
        assert!(line.contains("--vram"), "{line}");
    }
    let line = line(&["djinn", "run", "m", "--model=x"]);
    assert_eq!(line, "error: there is no '--model': the model is an argument without a flag");
}

#[test]
fn known_cards_are_listed_whole_and_numbers_in_plain_words() {
    let cards: Vec<&str> = djinn_host::CARDS.iter().map(|card| card.name).collect();
    let cards = cards.join(", ");
    let unknown = |name: &str| line(&["djinn", "plan", "m", "--gpu", name]);
    let expected = format!("there is no card abacus; known are {cards}; see --help");
    assert_eq!(unknown("abacus"), format!("error: invalid value 'abacus' for '--gpu <NAME>': {expected}"));
    assert!(unknown(&"x".repeat(10_000)).chars().count() < cards.len() + 600);
    let error = line(&["djinn", "run", "m", "--seed=-1"]);
    assert!(error.contains("for '--seed <N>': expected a whole number from 0 to "), "{error}");
    let error = line(&["djinn", "run", "m", "--ctx=many"]);
    assert!(error.contains("for '--ctx <N>': expected a whole number; "), "{error}");
}
