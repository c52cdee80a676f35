//! A line of a chat: a message, or a command that begins with a slash.

use crate::commands::editor::Lines;
use djinn_host::nearest;

/// Opens and closes a message of several lines.
const FENCE: &str = "\"\"\"";

/// What the user typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Line {
    Empty,
    Message(String),
    Command(Command),
}

/// A command of the chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Help,
    /// Shows the system message, or replaces it.
    System(Option<String>),
    /// Shows the settings, or changes one; without a value, to its initial one.
    Set(Option<(String, Option<String>)>),
    Stats,
    Clear,
    Save {
        file: String,
        overwrite: bool,
    },
    Load(String),
    Exit,
}

/// A command as it is typed.
struct Usage {
    name: &'static str,
    arguments: &'static str,
    does: &'static str,
}

const USAGES: [Usage; 9] = [
    Usage { name: "/help", arguments: "", does: "this list" },
    Usage {
        name: "/system",
        arguments: "[TEXT]",
        does: "show or replace the system message; \"\" leaves it out",
    },
    Usage {
        name: "/set",
        arguments: "[NAME [VALUE]]",
        does: "show all, or set one; without VALUE: reset, or switch on",
    },
    Usage { name: "/stats", arguments: "", does: "the cost of the last answer, and what is left" },
    Usage { name: "/clear", arguments: "", does: "forget the conversation" },
    Usage { name: "/save", arguments: "FILE", does: "write messages and settings to a new file" },
    Usage { name: "/save!", arguments: "FILE", does: "the same, in place of a file that is there" },
    Usage { name: "/load", arguments: "FILE", does: "go on with a conversation that was saved" },
    Usage { name: "/exit", arguments: "", does: "end the chat, as Ctrl-D does" },
];

/// Completion and continuation of a chat's lines.
pub(super) struct Known {
    /// Names that follow `/set`.
    pub(super) settings: Vec<String>,
}

impl Lines for Known {
    fn complete(&self, begun: &str) -> (usize, Vec<String>) {
        let (start, known) = match begun.strip_prefix("/set ") {
            Some(_) => ("/set ".len(), self.settings.clone()),
            None => (0, names().map(str::to_owned).collect()),
        };
        let fits = |name: &String| !begun.is_empty() && name.starts_with(&begun[start..]);
        (start, known.into_iter().filter(fits).collect())
    }

    fn is_open(&self, text: &str) -> bool {
        is_open(text)
    }
}

fn names() -> impl Iterator<Item = &'static str> {
    USAGES.iter().map(|usage| usage.name)
}

/// The text of `/help`.
pub(super) fn help() -> String {
    let mut text = String::new();
    for Usage { name, arguments, does } in &USAGES {
        text += &format!("{:<22} {does}\n", format!("{name} {arguments}"));
    }
    text + &format!("{:<22} send a text that begins with a slash\n", "//text")
        + &format!("{FENCE:<22} begin a message of several lines; {FENCE} ends it\n")
        + "Ctrl-C clears the line or ends the answer; Ctrl-D ends the chat"
}

/// Whether more lines must follow, since a fence is open.
fn is_open(text: &str) -> bool {
    text.trim().strip_prefix(FENCE).is_some_and(|rest| !rest.ends_with(FENCE))
}

impl Line {
    /// Parses the typed text. An error is a message for the user.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let trimmed = text.trim();
        if let Some(message) = fenced(trimmed) {
            return Ok(if message.trim().is_empty() {
                Line::Empty
            } else {
                Line::Message(message.to_owned())
            });
        }
        if trimmed.starts_with("//") {
            return Ok(Line::Message(trimmed[1..].to_owned()));
        }
        match trimmed {
            "" => Ok(Line::Empty),
            command if command.starts_with('/') => Command::parse(command).map(Line::Command),
            _ => Ok(Line::Message(text.to_owned())),
        }
    }
}

/// What is between two fences.
fn fenced(text: &str) -> Option<&str> {
    text.strip_prefix(FENCE)?.strip_suffix(FENCE).map(|inner| inner.trim_matches('\n'))
}

impl Command {
    fn parse(text: &str) -> Result<Self, String> {
        let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let rest = rest.trim();
        let argument = (!rest.is_empty()).then(|| rest.to_owned());
        let file = || argument.clone().ok_or_else(|| format!("{name} needs a file: {name} FILE"));
        let command = match name {
            "/system" => {
                return Ok(Command::System(
                    argument.map(|text| if text == "\"\"" { String::new() } else { text }),
                ));
            }
            "/set" => return Ok(Command::Set(argument.as_deref().map(setting))),
            "/save" | "/save!" => return Ok(Command::Save { file: file()?, overwrite: name.ends_with('!') }),
            "/load" => return Ok(Command::Load(file()?)),
            "/help" | "/?" => Command::Help,
            "/stats" => Command::Stats,
            "/clear" => Command::Clear,
            "/exit" | "/quit" | "/bye" => Command::Exit,
            _ => return Err(unknown(name)),
        };
        match argument {
            None => Ok(command),
            Some(_) => Err(format!("{name} takes nothing after it")),
        }
    }
}

fn setting(text: &str) -> (String, Option<String>) {
    match text.split_once(|c: char| c.is_whitespace() || c == '=') {
        None => (text.to_owned(), None),
        Some((name, value)) => (name.to_owned(), Some(value.trim().to_owned())),
    }
}

fn unknown(name: &str) -> String {
    let near = match nearest(name, names()) {
        Some(near) => format!("did you mean {near}?"),
        None => "/help lists the commands.".to_owned(),
    };
    let name: String = name.chars().take(40).collect();
    format!("there is no command {name}; {near} A text that begins with a slash is sent with two: /{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> Result<Line, String> {
        Ok(Line::Message(text.to_owned()))
    }

    fn command(command: Command) -> Result<Line, String> {
        Ok(Line::Command(command))
    }

    #[test]
    fn lines_are_messages_or_commands() {
        for (text, expected) in [
            ("", Ok(Line::Empty)),
            (" \n", Ok(Line::Empty)),
            ("Hello /help", message("Hello /help")),
            (" two\n lines\n", message(" two\n lines\n")),
            ("//usr is a folder", message("/usr is a folder")),
            ("\"\"\"\nfirst\n\nsecond\n\"\"\"", message("first\n\nsecond")),
            ("\"\"\"/help\"\"\"", message("/help")),
            ("\"\"\"\"\"\"", Ok(Line::Empty)),
            ("/help", command(Command::Help)),
            ("  /exit ", command(Command::Exit)),
            ("/system", command(Command::System(None))),
            ("/system Be brief.\nBe kind.", command(Command::System(Some("Be brief.\nBe kind.".into())))),
            ("/system \"\"", command(Command::System(Some(String::new())))),
            ("/set", command(Command::Set(None))),
            ("/set top-p", command(Command::Set(Some(("top-p".into(), None))))),
            ("/set top-p 0.5", command(Command::Set(Some(("top-p".into(), Some("0.5".into())))))),
            ("/set stop=a b", command(Command::Set(Some(("stop".into(), Some("a b".into())))))),
            ("/save a b.json", command(Command::Save { file: "a b.json".into(), overwrite: false })),
            ("/save! a", command(Command::Save { file: "a".into(), overwrite: true })),
            ("/load a", command(Command::Load("a".into()))),
        ] {
            assert_eq!(Line::parse(text), expected, "{text:?}");
        }
    }

    #[test]
    fn unknown_commands_are_refused_with_a_near_one() {
        for (text, expected) in [
            ("/hlep", "there is no command /hlep; did you mean /help? "),
            ("/sav x", "there is no command /sav; did you mean /save? "),
            ("/usr/bin/env is missing", "there is no command /usr/bin/env; /help lists the commands. "),
            ("/clear all", "/clear takes nothing after it"),
            ("/load", "/load needs a file: /load FILE"),
        ] {
            let error = Line::parse(text).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn a_fence_is_open_until_it_is_closed() {
        assert!(is_open("\"\"\"") && is_open(" \"\"\"a\nb") && is_open("\"\"\"\"\""));
        assert!(
            !is_open("\"\"\"a\nb\"\"\"")
                && !is_open("\"\"\"\"\"\"")
                && !is_open("a \"\"\" b")
                && !is_open("")
        );
    }

    #[test]
    fn help_names_every_command() {
        let help = help();
        assert!(names().all(|name| help.contains(name)));
        assert!(help.contains("without VALUE: reset, or switch on"), "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
    }
}
