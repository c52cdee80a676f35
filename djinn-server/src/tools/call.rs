//! One call as a JSON object, `{"name": …, "arguments": {…}}`, character by character.

use super::json::{Scanned, ValueScanner};
use serde::de::IgnoredAny;

/// What is read of an object.
#[derive(Clone, Debug)]
enum At {
    /// The brace that begins it.
    Open,
    /// A key, or the end of an empty object.
    FirstKey,
    Key,
    InKey(ValueScanner, String),
    Colon(Field),
    Value(Field, ValueScanner, String),
    /// Arguments that are given out as they come.
    Streamed(ValueScanner),
    /// A comma or the end.
    Next,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Name,
    Arguments,
    Other,
}

/// What a character told of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallNews {
    Nothing,
    /// The call has this name, and its arguments begin with the character.
    Began(String),
    /// The character belongs to the arguments.
    Argument,
    /// The object is over. Where the call had not begun: its name and arguments.
    Ended(Option<(String, String)>),
    /// This is no call.
    Wrong,
}

#[derive(Clone, Debug)]
pub(super) struct CallReader {
    at: At,
    name: Option<String>,
    arguments: Option<String>,
    began: bool,
    /// Whether a call may lack its arguments.
    optional: bool,
}

impl CallReader {
    /// Without `optional`, an object without arguments is no call.
    pub(super) fn new(optional: bool) -> Self {
        CallReader { at: At::Open, name: None, arguments: None, began: false, optional }
    }

    /// Takes a character. The caller bounds how many it gives before the call begins.
    pub(super) fn push(&mut self, c: char) -> CallNews {
        let space = matches!(c, ' ' | '\t' | '\n' | '\r');
        match &mut self.at {
            At::Open | At::FirstKey | At::Key | At::Colon(_) | At::Next if space => CallNews::Nothing,
            At::Open if c == '{' => self.to(At::FirstKey),
            At::FirstKey | At::Next if c == '}' => self.end(),
            At::Next if c == ',' => self.to(At::Key),
            At::FirstKey | At::Key if c == '"' => {
                let mut scanner = ValueScanner::new();
                scanner.push(c);
                self.to(At::InKey(scanner, "\"".to_owned()))
            }
            At::Colon(field) if c == ':' => {
                let field = *field;
                self.to(At::Value(field, ValueScanner::new(), String::new()))
            }
            At::Open | At::FirstKey | At::Key | At::Colon(_) | At::Next => CallNews::Wrong,
            At::InKey(scanner, text) => {
                text.push(c);
                match scanner.push(c) {
                    Scanned::More => CallNews::Nothing,
                    Scanned::Done => match serde_json::from_str::<String>(text) {
                        Ok(key) => self.key(&key),
                        Err(_) => CallNews::Wrong,
                    },
                    Scanned::DoneBefore | Scanned::Wrong => CallNews::Wrong,
                }
            }
            At::Value(_, _, text) if text.is_empty() && space => CallNews::Nothing,
            At::Value(Field::Arguments, scanner, text)
                if text.is_empty() && c == '{' && self.name.is_some() =>
            {
                scanner.push(c);
                let scanner = scanner.clone();
                self.began = true;
                self.at = At::Streamed(scanner);
                CallNews::Began(self.name.clone().expect("just seen"))
            }
            At::Value(field, scanner, text) => match scanner.push(c) {
                Scanned::More => {
                    text.push(c);
                    CallNews::Nothing
                }
                Scanned::Done => {
                    text.push(c);
                    let (field, text) = (*field, std::mem::take(text));
                    self.value(field, text)
                }
                // A number, which neither a name nor arguments are.
                Scanned::DoneBefore if *field == Field::Other => {
                    self.at = At::Next;
                    self.push(c)
                }
                Scanned::DoneBefore | Scanned::Wrong => CallNews::Wrong,
            },
            At::Streamed(scanner) => match scanner.push(c) {
                Scanned::More => CallNews::Argument,
                Scanned::Done => {
                    self.at = At::Next;
                    CallNews::Argument
                }
                Scanned::DoneBefore | Scanned::Wrong => CallNews::Wrong,
            },
        }
    }

    /// Whether arguments that were given out are over.
    pub(super) fn is_over(&self) -> bool {
        self.began && matches!(self.at, At::Next)
    }

    fn to(&mut self, at: At) -> CallNews {
        self.at = at;
        CallNews::Nothing
    }

    fn key(&mut self, key: &str) -> CallNews {
        let field = match key {
            "name" if self.name.is_none() => Field::Name,
            "arguments" | "parameters" if self.arguments.is_none() && !self.began => Field::Arguments,
            "name" | "arguments" | "parameters" => return CallNews::Wrong,
            _ => Field::Other,
        };
        self.to(At::Colon(field))
    }

    fn value(&mut self, field: Field, text: String) -> CallNews {
        self.at = At::Next;
        match field {
            Field::Other => {}
            Field::Name => match serde_json::from_str::<String>(&text) {
                Ok(name) if is_name(&name) => self.name = Some(name),
                _ => return CallNews::Wrong,
            },
            Field::Arguments => match arguments(text) {
                Some(arguments) => self.arguments = Some(arguments),
                None => return CallNews::Wrong,
            },
        }
        CallNews::Nothing
    }

    fn end(&mut self) -> CallNews {
        if self.began {
            return CallNews::Ended(None);
        }
        let arguments = self.arguments.take().or_else(|| self.optional.then(|| "{}".to_owned()));
        match (self.name.take(), arguments) {
            (Some(name), Some(arguments)) => CallNews::Ended(Some((name, arguments))),
            _ => CallNews::Wrong,
        }
    }
}

/// The arguments that a value means: an object, a string that holds one, or null for none.
fn arguments(text: String) -> Option<String> {
    match text.chars().next()? {
        '{' => Some(text),
        '"' => {
            let inner: String = serde_json::from_str(&text).ok()?;
            let is_object = inner.trim_start().starts_with('{');
            (is_object && serde_json::from_str::<IgnoredAny>(&inner).is_ok()).then_some(inner)
        }
        'n' => Some("{}".to_owned()),
        _ => None,
    }
}

/// Whether this may be the name of a function.
pub(super) fn is_name(name: &str) -> bool {
    const LONGEST: usize = 128;
    !name.is_empty()
        && name.len() <= LONGEST
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/'))
}
