//! The debugger's commands, and their arguments.

use super::words::Words;
use djinn_engine::debug::TokenKind;
use std::ops::Range;

/// What the user wants.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Command {
    Break(Stop),
    Delete(Option<u64>),
    Info(Topic),
    Run,
    Continue,
    Step,
    Next,
    Finish,
    Print { hook: String, at: Option<u64>, first: usize },
    Lens { of: LensOf, top: usize },
    Logits { top: usize },
    Set { hook: String, change: Change, at: At },
    Save { hook: String, file: String, at: At },
    Load { hook: String, file: String },
    Steer { name: String, by: Option<(String, Direction, f32)> },
    Fork(String),
    Switch(String),
    Diff { names: [String; 2], kind: String },
    Text,
    Help(Option<String>),
    Quit,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stop {
    pub(super) hook: String,
    pub(super) tokens: TokenKind,
    pub(super) positions: Range<u64>,
    pub(super) steps: Range<u64>,
    pub(super) when: Option<When>,
    pub(super) once: bool,
}

/// The tokens at which to stop.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum When {
    Token(String),
    Entropy(f32),
}

/// What `info` lists.
pub(super) const TOPICS: &[&str] = &["breakpoints", "hooks", "session", "steering"];

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Topic {
    Breakpoints,
    Session,
    Hooks(Option<String>),
    Steering,
}

/// Whose logit lens.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum LensOf {
    /// The hook of the stop.
    Here,
    Hook(String),
    /// Every block's output.
    All,
}

/// A change of values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Change {
    Value(f32),
    Scale(f32),
    Mean,
}

/// Which of the stopped tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// The shown one.
    Current,
    Position(u64),
    All,
}

/// The origin of a steering vector.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Direction {
    File(String),
    /// The difference of two texts' last tokens.
    Texts([String; 2]),
}

pub(super) fn stop(words: &mut Words) -> Result<Stop, String> {
    let hook = words.need("the hook")?;
    let (tokens, all) = (TokenKind::Any, 0..u64::MAX);
    let mut stop = Stop { hook, tokens, positions: all.clone(), steps: all, when: None, once: false };
    let one = |at: u64| at..at.saturating_add(1);
    while let Some(word) = words.next() {
        match &*word {
            "prompt" if stop.steps.end != u64::MAX => {
                return Err("a prompt's tokens have no steps".to_owned());
            }
            "prompt" => stop.tokens = TokenKind::Prompt,
            "generated" => stop.tokens = TokenKind::Generated,
            "at" => stop.positions = one(words.number("the position")?),
            "step" if stop.tokens == TokenKind::Prompt => {
                return Err("a prompt's tokens have no steps".to_owned());
            }
            // Only generated tokens have steps.
            "step" => {
                stop.tokens = TokenKind::Generated;
                stop.steps = match words.number("the step")? {
                    0 => return Err("steps are counted from 1".to_owned()),
                    step => one(step),
                };
            }
            "once" => stop.once = true,
            "if" if words.eat("token") => stop.when = Some(When::Token(words.need("the token's text")?)),
            "if" if words.eat("entropy") && words.eat(">") => {
                stop.when = Some(When::Entropy(words.finite("the entropy")?));
            }
            "if" => return Err("a condition is `if token TEXT` or `if entropy > X`".to_owned()),
            word => return Err(format!("{word:?} has no meaning there")),
        }
    }
    Ok(stop)
}

pub(super) fn topic(words: &mut Words) -> Result<Topic, String> {
    let word = words.need("what to list")?;
    let mut fits = TOPICS.iter().filter(|topic| topic.starts_with(&word));
    match (fits.next(), fits.next()) {
        (Some(&"breakpoints"), None) => Ok(Topic::Breakpoints),
        (Some(&"hooks"), None) => Ok(Topic::Hooks(words.next())),
        (Some(&"session"), None) => Ok(Topic::Session),
        (Some(&"steering"), None) => Ok(Topic::Steering),
        _ => Err(format!("there is no list of {word:?}")),
    }
}

pub(super) fn top(words: &mut Words, default: usize) -> Result<usize, String> {
    if words.eat("top") { words.number("the number of tokens") } else { Ok(default) }
}

pub(super) fn position(words: &mut Words) -> Result<Option<u64>, String> {
    match words.eat("at") || words.is_at_number() {
        true => words.number("the position").map(Some),
        false => Ok(None),
    }
}

pub(super) fn at(words: &mut Words) -> Result<At, String> {
    if words.eat("all") {
        return Ok(At::All);
    }
    Ok(position(words)?.map_or(At::Current, At::Position))
}

pub(super) fn steer(words: &mut Words) -> Result<Command, String> {
    let name = words.need("the name")?;
    if words.eat("off") {
        return Ok(Command::Steer { name, by: None });
    }
    let hook = words.need("the hook, or off,")?;
    let direction = match words.eat("diff") {
        true => Direction::Texts([words.need("the first text")?, words.need("the second text")?]),
        false => Direction::File(words.need("the file, or diff,")?),
    };
    let strength = match words.next() {
        Some(word) => {
            let strength: Option<f32> = word.parse().ok().filter(|strength: &f32| strength.is_finite());
            strength.ok_or_else(|| format!("the strength cannot be {word:?}"))?
        }
        None => 1.0,
    };
    Ok(Command::Steer { name, by: Some((hook, direction, strength)) })
}
