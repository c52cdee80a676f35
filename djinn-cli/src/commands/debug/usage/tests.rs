//! What lines mean, what is wrong with others, and how they are completed.

use super::super::command::{At, Direction, Stop, Topic, When};
use super::*;
use djinn_engine::debug::TokenKind;

fn stop(hook: &str) -> Stop {
    let all = 0..u64::MAX;
    let hook = hook.to_owned();
    Stop { hook, tokens: TokenKind::Any, positions: all.clone(), steps: all, when: None, once: false }
}

#[test]
fn commands_are_read_whole() {
    let (hook, file) = (|| "h".to_owned(), || "f".to_owned());
    for (line, expected) in [
        ("break h", Command::Break(stop("h"))),
        ("b h prompt at 3", Command::Break(Stop { tokens: TokenKind::Prompt, positions: 3..4, ..stop("h") })),
        (
            "b h once generated step 2 if token \" Paris\"",
            Command::Break(Stop {
                tokens: TokenKind::Generated,
                steps: 2..3,
                when: Some(When::Token(" Paris".to_owned())),
                once: true,
                ..stop("h")
            }),
        ),
        ("break h if entropy > 1.5", Command::Break(Stop { when: Some(When::Entropy(1.5)), ..stop("h") })),
        ("d", Command::Delete(None)),
        ("delete 2", Command::Delete(Some(2))),
        ("info b", Command::Info(Topic::Breakpoints)),
        ("i hooks mlp", Command::Info(Topic::Hooks(Some("mlp".to_owned())))),
        ("s", Command::Step),
        ("n # to the next token", Command::Next),
        ("p h", Command::Print { hook: hook(), at: None, first: 8 }),
        ("p h 4 first 2", Command::Print { hook: hook(), at: Some(4), first: 2 }),
        ("p h at 4", Command::Print { hook: hook(), at: Some(4), first: 8 }),
        ("lens", Command::Lens { of: LensOf::Here, top: 5 }),
        ("lens top 2", Command::Lens { of: LensOf::Here, top: 2 }),
        ("lens all", Command::Lens { of: LensOf::All, top: 3 }),
        ("lens h top 1", Command::Lens { of: LensOf::Hook(hook()), top: 1 }),
        ("logits top 7", Command::Logits { top: 7 }),
        ("set h -2.5", Command::Set { hook: hook(), change: Change::Value(-2.5), at: At::Current }),
        ("set h zero all", Command::Set { hook: hook(), change: Change::Value(0.0), at: At::All }),
        (
            "set h scale 3 at 9",
            Command::Set { hook: hook(), change: Change::Scale(3.0), at: At::Position(9) },
        ),
        ("save h f all", Command::Save { hook: hook(), file: file(), at: At::All }),
        ("steer x off", Command::Steer { name: "x".to_owned(), by: None }),
        (
            "steer x h diff \"a b\" c 2",
            Command::Steer {
                name: "x".to_owned(),
                by: Some((hook(), Direction::Texts(["a b".to_owned(), "c".to_owned()]), 2.0)),
            },
        ),
        ("diff a b", Command::Diff { names: ["a".to_owned(), "b".to_owned()], kind: "hook_out".to_owned() }),
    ] {
        assert_eq!(Command::parse(line), Ok(Some(expected)), "{line}");
    }
    assert_eq!(Command::parse("  # nothing"), Ok(None));
}

#[test]
fn what_is_wrong_with_a_line_is_said() {
    for (line, expected) in [
        ("contineu", "there is no command \"contineu\"; did you mean continue?"),
        ("frobnicate", "there is no command \"frobnicate\"; `help` lists them"),
        ("sa b c d", "\"d\" has no meaning there; usage: save HOOK FILE"),
        ("st", "\"st\" could be step, steer"),
        ("break", "the hook is missing; usage: break HOOK"),
        ("break h if", "a condition is `if token TEXT` or `if entropy > X`; usage"),
        ("break h if entropy > NaN", "the entropy cannot be NaN; usage"),
        ("break h step 2 prompt", "a prompt's tokens have no steps; usage"),
        ("break h prompt step 2", "a prompt's tokens have no steps; usage"),
        ("break h at x", "the position cannot be \"x\"; usage"),
        ("set h", "the value is missing; usage"),
        ("set h inf", "the value cannot be inf; usage"),
        ("delete one", "\"one\" has no meaning there; usage: delete [N]"),
        ("info x", "there is no list of \"x\"; usage"),
        ("run now", "\"now\" has no meaning there; usage: run"),
        ("diff a", "the second name is missing; usage"),
        ("print \"h", "a quote is not closed"),
    ] {
        let error = Command::parse(line).unwrap_err();
        assert!(error.starts_with(expected), "{line}: {error}");
    }
}

#[test]
fn help_says_each_command_in_lines_that_fit_a_terminal() {
    let all = help(None).unwrap();
    for usage in &USAGES {
        assert!(all.contains(&usage.line()), "{}", usage.name);
        assert!(help(Some(usage.name)).unwrap().contains(usage.does));
    }
    assert!(all.lines().all(|line| line.chars().count() <= 110), "{all}");
    assert!(help(Some("nothing")).is_err());
}

#[test]
fn words_are_completed_by_what_they_are() {
    let hooks = ["blocks.0.hook_out", "blocks.1.hook_out", "embed.hook_out"].map(str::to_owned);
    for (begun, start, expected) in [
        ("", 0, &[][..]),
        ("br", 0, &["break"]),
        ("st", 0, &["step", "steer"]),
        ("break blocks.1", 6, &["blocks.1.hook_out"]),
        ("b e", 2, &["embed.hook_out"]),
        ("b embed.hook_out o", 17, &["once"]),
        ("b embed.hook_out once g", 22, &["generated"]),
        ("steer love bl", 11, &["blocks.0.hook_out", "blocks.1.hook_out"]),
        ("info s", 5, &["session", "steering"]),
        ("help qu", 5, &["quit"]),
        ("fork x", 5, &[]),
        ("nothing x", 8, &[]),
    ] {
        assert_eq!(
            complete(begun, &hooks),
            (start, expected.iter().map(|&name| name.to_owned()).collect()),
            "{begun}"
        );
    }
}
