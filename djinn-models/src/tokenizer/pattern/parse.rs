//! The syntax of patterns: Oniguruma's, without features that no published tokenizer uses.

use super::class::CharSet;
use crate::{Error, Result};
use std::iter::Peekable;
use std::str::CharIndices;

/// The longest pattern in bytes, and the deepest nesting of its groups; published ones have some hundreds and three.
const MAX_BYTES: usize = 16 << 10;
const MAX_DEPTH: u32 = 24;

/// The most copies of a part in `{n,m}`.
const MAX_COPIES: u32 = 1000;

/// A part of a pattern. Sets are indices of [`parse`]'s list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Set(usize),
    Concat(Vec<Node>),
    Alternatives(Vec<Node>),
    Repeat {
        node: Box<Node>,
        min: u32,
        max: Option<u32>,
        kind: Repeat,
    },
    /// `(?=…)`, `(?!…)`, `(?<=…)`, `(?<!…)`.
    Look {
        node: Box<Node>,
        ahead: bool,
        negated: bool,
    },
    /// `(?>…)`: after a match, no other way is tried.
    Atomic(Box<Node>),
    Assert(Assertion),
}

/// Which number of repetitions is tried first. A possessive one is final.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    Greedy,
    Lazy,
    Possessive,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Assertion {
    LineStart,
    LineEnd,
    TextStart,
    TextEnd,
    /// The end, or before the line feed at the end.
    LastLineEnd,
}

pub(super) fn unsupported(source: &str) -> Error {
    let shown: String = source.chars().take(60).collect();
    Error::Tokenizer(format!("the pattern {shown:?} is malformed, or uses what no known tokenizer does"))
}

/// The pattern's tree, and its sets.
pub(super) fn parse(source: &str) -> Result<(Node, Vec<CharSet>)> {
    if source.len() > MAX_BYTES {
        let detail = format!("a pattern of {} bytes; {MAX_BYTES} are the most supported", source.len());
        return Err(Error::Tokenizer(detail));
    }
    let mut parser = Parser { source, chars: source.char_indices().peekable(), sets: Vec::new(), depth: 0 };
    let node = parser.alternatives(false)?;
    match parser.chars.next() {
        None => Ok((node, parser.sets)),
        Some(_) => Err(unsupported(source)),
    }
}

struct Parser<'a> {
    source: &'a str,
    chars: Peekable<CharIndices<'a>>,
    sets: Vec<CharSet>,
    depth: u32,
}

impl<'a> Parser<'a> {
    fn wrong<T>(&self) -> Result<T> {
        Err(unsupported(self.source))
    }

    fn peek(&mut self) -> Option<char> {
        self.chars.peek().map(|(_, c)| *c)
    }

    fn take(&mut self, wanted: char) -> bool {
        self.chars.next_if(|(_, c)| *c == wanted).is_some()
    }

    fn skip(&mut self, chars: usize) {
        self.chars.by_ref().take(chars).for_each(|_| ());
    }

    fn rest(&mut self) -> &'a str {
        let at = self.chars.peek().map_or(self.source.len(), |(at, _)| *at);
        &self.source[at..]
    }

    /// Consumes the text if the pattern continues with it.
    fn take_text(&mut self, text: &str) -> bool {
        let found = self.rest().starts_with(text);
        if found {
            self.skip(text.chars().count());
        }
        found
    }

    fn set(&mut self, set: CharSet) -> Node {
        let known = self.sets.iter().position(|known| *known == set);
        Node::Set(known.unwrap_or_else(|| {
            self.sets.push(set);
            self.sets.len() - 1
        }))
    }

    /// Up to the end of the pattern or of the group.
    fn alternatives(&mut self, mut ignore_case: bool) -> Result<Node> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.wrong();
        }
        let (mut alternatives, mut parts) = (Vec::new(), Vec::new());
        loop {
            match self.peek() {
                None | Some(')') => break,
                Some('|') => {
                    self.chars.next();
                    alternatives.push(Node::Concat(std::mem::take(&mut parts)));
                }
                // Applies to the rest of this group.
                Some('(') if self.take_text("(?i)") => ignore_case = true,
                Some(_) => {
                    let atom = self.atom(ignore_case)?;
                    let repeated = self.repetition(atom)?;
                    parts.push(repeated);
                }
            }
        }
        self.depth -= 1;
        alternatives.push(Node::Concat(parts));
        Ok(if alternatives.len() == 1 { alternatives.remove(0) } else { Node::Alternatives(alternatives) })
    }

    fn atom(&mut self, ignore_case: bool) -> Result<Node> {
        let Some((at, c)) = self.chars.next() else { return self.wrong() };
        Ok(match c {
            '(' => self.group(ignore_case)?,
            '[' => {
                let set = self.class(at, ignore_case)?;
                self.set(set)
            }
            '\\' => self.escape(ignore_case)?,
            '.' => self.set(CharSet::dot()),
            '^' => Node::Assert(Assertion::LineStart),
            '$' => Node::Assert(Assertion::LineEnd),
            '*' | '+' | '?' => return self.wrong(),
            c => {
                let set = CharSet::of_char(c, ignore_case)?;
                self.set(set)
            }
        })
    }

    /// After its parenthesis.
    fn group(&mut self, ignore_case: bool) -> Result<Node> {
        let look = [("?=", true, false), ("?!", true, true), ("?<=", false, false), ("?<!", false, true)];
        let look = look.into_iter().find(|(text, ..)| self.take_text(text));
        let atomic = look.is_none() && self.take_text("?>");
        let mut ignore_case = ignore_case;
        if look.is_none() && !atomic {
            if self.take_text("?i:") {
                ignore_case = true;
            } else if self.take_text("?-i:") {
                ignore_case = false;
            } else if !self.take_text("?:") && self.peek() == Some('?') {
                return self.wrong();
            }
        }
        let node = self.alternatives(ignore_case)?;
        if !self.take(')') {
            return self.wrong();
        }
        Ok(match look {
            Some((_, ahead, negated)) => Node::Look { node: Box::new(node), ahead, negated },
            None if atomic => Node::Atomic(Box::new(node)),
            None => node,
        })
    }

    /// A bracketed class that begins at `at`.
    fn class(&mut self, at: usize, ignore_case: bool) -> Result<CharSet> {
        let mut depth = 1;
        // In Oniguruma only, a bracket right after the opening one, or after its `^`, is literal.
        self.take('^');
        if self.peek() == Some(']') {
            return self.wrong();
        }
        while depth > 0 {
            match self.chars.next() {
                None => return self.wrong(),
                Some((_, '\\')) => drop(self.chars.next()),
                Some((_, '[')) => depth += 1,
                Some((_, ']')) => depth -= 1,
                Some(_) => {}
            }
            if depth > MAX_DEPTH {
                return self.wrong();
            }
        }
        let end = self.source.len() - self.rest().len();
        CharSet::from_oniguruma(&self.source[at..end], ignore_case)
    }

    /// After its backslash.
    fn escape(&mut self, ignore_case: bool) -> Result<Node> {
        let Some((at, c)) = self.chars.next() else { return self.wrong() };
        let assertion = match c {
            'A' => Some(Assertion::TextStart),
            'z' => Some(Assertion::TextEnd),
            'Z' => Some(Assertion::LastLineEnd),
            _ => None,
        };
        if let Some(assertion) = assertion {
            return Ok(Node::Assert(assertion));
        }
        match c {
            's' | 'S' | 'd' | 'D' | 'w' | 'W' | 'n' | 'r' | 't' | 'f' | 'v' | 'a' => {}
            'p' | 'P' if self.take('{') => while !matches!(self.chars.next(), None | Some((_, '}'))) {},
            'x' if self.take('{') => while !matches!(self.chars.next(), None | Some((_, '}'))) {},
            'x' => self.skip(2),
            'u' => self.skip(4),
            c if !c.is_ascii_alphanumeric() => {
                let set = CharSet::of_char(c, false)?;
                return Ok(self.set(set));
            }
            _ => return self.wrong(),
        }
        let end = self.source.len() - self.rest().len();
        let set = CharSet::from_oniguruma(&self.source[at - 1..end], ignore_case)?;
        Ok(self.set(set))
    }

    /// `?`, `*`, `+`, `{n}`, `{n,}`, `{,m}`, `{n,m}` after a part; lazy with `?`, possessive with `+`.
    fn repetition(&mut self, node: Node) -> Result<Node> {
        let (min, max) = match self.peek() {
            Some('?') => (0, Some(1)),
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('{') => match counts(self.rest()) {
                None => return Ok(node),
                Some((min, max, len)) => {
                    self.skip(len - 1);
                    (min, max)
                }
            },
            _ => return Ok(node),
        };
        let counted = self.chars.next().is_some_and(|(_, c)| c == '}');
        let kind = match self.peek() {
            Some('?') if !counted => Repeat::Lazy,
            Some('+') if !counted => Repeat::Possessive,
            _ => Repeat::Greedy,
        };
        if kind != Repeat::Greedy {
            self.chars.next();
        }
        let twice = matches!(self.peek(), Some('?' | '*' | '+')) || counts(self.rest()).is_some();
        if twice || min.max(max.unwrap_or(0)) > MAX_COPIES || max.is_some_and(|max| max < min) {
            return self.wrong();
        }
        Ok(Node::Repeat { node: Box::new(node), min, max, kind })
    }
}

/// The counts and the length of `{n,m}` at the beginning of `text`. Other braces are literal.
fn counts(text: &str) -> Option<(u32, Option<u32>, usize)> {
    let (inside, _) = text.strip_prefix('{')?.split_once('}')?;
    let number =
        |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().unwrap_or(u32::MAX));
    let (min, max) = match inside.split_once(',') {
        None if inside.is_empty() => return None,
        None => (number(inside)?, Some(number(inside)?)),
        Some(("", "")) => return None,
        Some(("", max)) => (0, Some(number(max)?)),
        Some((min, "")) => (number(min)?, None),
        Some((min, max)) => (number(min)?, Some(number(max)?)),
    };
    Some((min, max, inside.len() + 2))
}
