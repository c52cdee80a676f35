//! The commands' syntax: one table for parsing, help and completion.

#[cfg(test)]
mod tests;

use super::command::{Change, Command, LensOf, TOPICS, at, position, steer, stop, top, topic};
use super::words::Words;
use djinn_host::nearest;

/// The completions of a command's word.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Commands,
    Hooks,
    /// Of these.
    Of(&'static [&'static str]),
    Anything,
}

/// A command as it is typed.
struct Usage {
    name: &'static str,
    /// The letter that abbreviates it, even if others begin with it.
    short: &'static str,
    arguments: &'static str,
    does: &'static str,
    /// The kinds of its words. The last one counts for all that follow.
    words: &'static [Kind],
    parse: fn(&mut Words) -> Result<Command, String>,
}

const STOP_WORDS: &[&str] = &["at", "entropy", "generated", "if", "once", "prompt", "step", "token"];

const USAGES: [Usage; 21] = [
    Usage {
        name: "break",
        short: "b",
        arguments: "HOOK [prompt|generated] [at POSITION|step N] [if token TEXT|if entropy > X] [once]",
        does: "stop where tokens come to a hook",
        words: &[Kind::Hooks, Kind::Of(STOP_WORDS)],
        parse: |words| stop(words).map(Command::Break),
    },
    Usage {
        name: "delete",
        short: "d",
        arguments: "[N]",
        does: "remove a breakpoint, or all",
        words: &[],
        parse: |words| match words.is_at_number() {
            true => words.number("the breakpoint").map(|n| Command::Delete(Some(n))),
            false => Ok(Command::Delete(None)),
        },
    },
    Usage {
        name: "info",
        short: "i",
        arguments: "breakpoints|session|steering|hooks [FILTER]",
        does: "list what there is",
        words: &[Kind::Of(TOPICS)],
        parse: |words| topic(words).map(Command::Info),
    },
    Usage {
        name: "run",
        short: "r",
        arguments: "",
        does: "begin with the prompt, also anew",
        words: &[],
        parse: |_| Ok(Command::Run),
    },
    Usage {
        name: "continue",
        short: "c",
        arguments: "",
        does: "go on to the next breakpoint",
        words: &[],
        parse: |_| Ok(Command::Continue),
    },
    Usage {
        name: "step",
        short: "s",
        arguments: "",
        does: "go on to the output of the next block",
        words: &[],
        parse: |_| Ok(Command::Step),
    },
    Usage {
        name: "next",
        short: "n",
        arguments: "",
        does: "go on to the same hook of the next token",
        words: &[],
        parse: |_| Ok(Command::Next),
    },
    Usage {
        name: "finish",
        short: "",
        arguments: "",
        does: "go on to the end, past all breakpoints",
        words: &[],
        parse: |_| Ok(Command::Finish),
    },
    Usage {
        name: "print",
        short: "p",
        arguments: "HOOK [at POSITION] [first N]",
        does: "show a token's values",
        words: &[Kind::Hooks, Kind::Of(&["at", "first"])],
        parse: |words| {
            let hook = words.need("the hook")?;
            let at = position(words)?;
            let first = if words.eat("first") { words.number("the number of values")? } else { 8 };
            Ok(Command::Print { hook, at, first })
        },
    },
    Usage {
        name: "lens",
        short: "l",
        arguments: "[HOOK|all] [top K]",
        does: "the next tokens if the blocks after a hook did nothing",
        words: &[Kind::Hooks, Kind::Of(&["top"])],
        parse: |words| {
            if words.eat("all") {
                return Ok(Command::Lens { of: LensOf::All, top: top(words, 3)? });
            }
            if words.eat("top") {
                return Ok(Command::Lens { of: LensOf::Here, top: words.number("the number of tokens")? });
            }
            let of = words.next().map_or(LensOf::Here, LensOf::Hook);
            Ok(Command::Lens { of, top: top(words, 5)? })
        },
    },
    Usage {
        name: "logits",
        short: "",
        arguments: "[top K]",
        does: "the next tokens, with all changes so far",
        words: &[Kind::Of(&["top"])],
        parse: |words| Ok(Command::Logits { top: top(words, 5)? }),
    },
    Usage {
        name: "set",
        short: "",
        arguments: "HOOK VALUE|zero|mean|scale F [at POSITION|all]",
        does: "change a token's values, for all that follows",
        words: &[Kind::Hooks, Kind::Of(&["all", "at", "mean", "scale", "zero"])],
        parse: |words| {
            let hook = words.need("the hook")?;
            let change = match () {
                () if words.eat("zero") => Change::Value(0.0),
                () if words.eat("mean") => Change::Mean,
                () if words.eat("scale") => Change::Scale(words.finite("the factor")?),
                () => Change::Value(words.finite("the value")?),
            };
            Ok(Command::Set { hook, change, at: at(words)? })
        },
    },
    Usage {
        name: "save",
        short: "",
        arguments: "HOOK FILE [at POSITION|all]",
        does: "write a token's values to a new file of safetensors",
        words: &[Kind::Hooks, Kind::Of(&["all", "at"])],
        parse: |words| {
            let (hook, file) = (words.need("the hook")?, words.need("the file")?);
            Ok(Command::Save { hook, file, at: at(words)? })
        },
    },
    Usage {
        name: "load",
        short: "",
        arguments: "HOOK FILE",
        does: "set values that were saved: one token's for this one, or all tokens'",
        words: &[Kind::Hooks, Kind::Anything],
        parse: |words| Ok(Command::Load { hook: words.need("the hook")?, file: words.need("the file")? }),
    },
    Usage {
        name: "steer",
        short: "",
        arguments: "NAME HOOK FILE|diff TEXT TEXT [STRENGTH], or NAME off",
        does: "add a vector at each token from now on; diff: the first text's less the second's",
        words: &[Kind::Anything, Kind::Hooks, Kind::Of(&["diff"])],
        parse: steer,
    },
    Usage {
        name: "fork",
        short: "",
        arguments: "NAME",
        does: "a second session that is stopped at the same place",
        words: &[],
        parse: |words| words.need("the name").map(Command::Fork),
    },
    Usage {
        name: "switch",
        short: "",
        arguments: "NAME",
        does: "work with another session; the first is main",
        words: &[],
        parse: |words| words.need("the name").map(Command::Switch),
    },
    Usage {
        name: "diff",
        short: "",
        arguments: "NAME NAME [KIND]",
        does: "compare two sessions' texts, and their blocks' hook_out or another KIND of hook",
        words: &[],
        parse: |words| {
            let names = [words.need("the first name")?, words.need("the second name")?];
            Ok(Command::Diff { names, kind: words.next().unwrap_or_else(|| "hook_out".to_owned()) })
        },
    },
    Usage {
        name: "text",
        short: "t",
        arguments: "",
        does: "what was generated so far",
        words: &[],
        parse: |_| Ok(Command::Text),
    },
    Usage {
        name: "help",
        short: "h",
        arguments: "[COMMAND]",
        does: "this list",
        words: &[Kind::Commands],
        parse: |words| Ok(Command::Help(words.next())),
    },
    Usage {
        name: "quit",
        short: "q",
        arguments: "",
        does: "end, as Ctrl-D does",
        words: &[],
        parse: |_| Ok(Command::Quit),
    },
];

/// Finds a command by its name, its letter, or a unique prefix.
fn find(word: &str) -> Result<&'static Usage, String> {
    if let Some(usage) = USAGES.iter().find(|usage| [usage.name, usage.short].contains(&word)) {
        return Ok(usage);
    }
    let fits: Vec<&Usage> = USAGES.iter().filter(|usage| usage.name.starts_with(word)).collect();
    match fits[..] {
        [usage] => Ok(usage),
        [] => {
            let near = nearest(word, USAGES.iter().map(|usage| usage.name));
            let more = near.map_or("`help` lists them".to_owned(), |near| format!("did you mean {near}?"));
            let word: String = word.chars().take(40).collect();
            Err(format!("there is no command {word:?}; {more}"))
        }
        _ => {
            let names: Vec<&str> = fits.iter().map(|usage| usage.name).collect();
            Err(format!("{word:?} could be {}", names.join(", ")))
        }
    }
}

impl Command {
    /// Parses a line; `None` for an empty one. An error is a message for the user.
    pub(super) fn parse(line: &str) -> Result<Option<Self>, String> {
        let mut words = Words::split(line)?;
        let Some(name) = words.next() else { return Ok(None) };
        let usage = find(&name)?;
        let parsed = (usage.parse)(&mut words).and_then(|command| words.end().map(|()| command));
        parsed.map(Some).map_err(|why| format!("{why}; usage: {}", usage.line()))
    }
}

impl Usage {
    fn line(&self) -> String {
        format!("{} {}", self.name, self.arguments).trim_end().to_owned()
    }
}

/// The text of `help`, for all commands or one.
pub(super) fn help(of: Option<&str>) -> Result<String, String> {
    if let Some(name) = of {
        let usage = find(name)?;
        return Ok(format!("{}\n  {}", usage.line(), usage.does));
    }
    let line = |usage: &Usage| match usage.line() {
        short if short.len() <= 28 => format!("{short:<30}{}", usage.does),
        long => format!("{long}\n{:<30}{}", "", usage.does),
    };
    let lines: Vec<String> = USAGES.iter().map(line).collect();
    let more = "Beginnings of names are enough. Ctrl-C stops what runs; Ctrl-D ends.";
    Ok(format!("{}\n{more}", lines.join("\n")))
}

/// Where the completed word begins, and its completions.
pub(super) fn complete(begun: &str, hooks: &[String]) -> (usize, Vec<String>) {
    let start = begun.rfind(char::is_whitespace).map_or(0, |space| space + 1);
    let (before, word) = begun.split_at(start);
    let mut words = before.split_whitespace();
    let commands = || USAGES.iter().map(|usage| usage.name.to_owned()).collect::<Vec<_>>();
    let kind = match words.next() {
        None => Kind::Commands,
        Some(name) => {
            let kinds = find(name).map_or(&[][..], |usage| usage.words);
            kinds.get(words.count()).or(kinds.last()).copied().unwrap_or(Kind::Anything)
        }
    };
    let known: Vec<String> = match kind {
        Kind::Commands if begun.trim().is_empty() => Vec::new(),
        Kind::Commands => commands(),
        Kind::Hooks => hooks.to_vec(),
        Kind::Of(words) => words.iter().map(|&word| word.to_owned()).collect(),
        Kind::Anything => Vec::new(),
    };
    (start, known.into_iter().filter(|name| name.starts_with(word)).collect())
}
