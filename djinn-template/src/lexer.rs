//! Source to tokens, with white space trimmed as transformers has Jinja trim it: the line end after a block,
//! the indentation before one, and what `-` and `+` ask for.

use crate::error::{Error, Result};
use crate::printable::one_line;
use crate::text::is_space;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    /// Text between the tags.
    Data(String),
    /// `{%`, `%}`, `{{`, `}}`, operators and brackets.
    Sign(&'static str),
    Name(String),
    Text(String),
    Integer(i128),
    Float(f64),
    End,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) line: u32,
}

/// Operators, longer ones before those that they begin with.
const OPERATORS: [&str; 27] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<",
    "=", ".", ":", "|", ",", ";", "!",
];

/// The tokens of a source, `End` at its end.
pub(crate) fn tokens(source: &str) -> Result<Vec<Token>> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = source.strip_suffix('\n').unwrap_or(&source);
    let mut lexer = Lexer { source, at: 0, line: 1, counted: 0, tokens: Vec::new() };
    while lexer.at < source.len() {
        lexer.data()?;
    }
    lexer.push(Kind::End);
    Ok(lexer.tokens)
}

struct Lexer<'s> {
    source: &'s str,
    /// Position in the source, and how far lines were counted.
    at: usize,
    line: u32,
    counted: usize,
    tokens: Vec<Token>,
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    fn line(&mut self) -> u32 {
        let passed = &self.source.as_bytes()[self.counted..self.at];
        self.line += passed.iter().filter(|&&byte| byte == b'\n').count() as u32;
        self.counted = self.at;
        self.line
    }

    fn push(&mut self, kind: Kind) {
        let line = self.line();
        self.tokens.push(Token { kind, line });
    }

    fn error<T>(&mut self, detail: impl Into<String>) -> Result<T> {
        Err(Error::Syntax { line: self.line(), detail: detail.into() })
    }

    /// Text up to the next tag, and the tag.
    fn data(&mut self) -> Result<()> {
        // At the start, or behind a tag that took its line's end.
        let line_start = self.source[..self.at].is_empty() || self.source[..self.at].ends_with('\n');
        let rest = self.rest();
        let opens = |at: &usize| rest[at + 1..].starts_with(['{', '%', '#']);
        let Some(open) = rest.match_indices('{').map(|(at, _)| at).find(opens) else {
            self.text(rest);
            self.at = self.source.len();
            return Ok(());
        };
        let (text, begin, tag) = (&rest[..open], &rest[open..open + 2], &rest[open + 2..]);
        let sign = sign_of(tag);
        self.text(trimmed(text, sign, begin != "{{", line_start));
        self.at += open + 2 + sign.map_or(0, char::len_utf8);
        match begin {
            "{#" => {
                let Some(close) = self.rest().find("#}") else {
                    return self.error("a comment is not closed");
                };
                self.at += close;
                // One sign may both open and close a comment.
                let comment = &tag[..sign.map_or(0, char::len_utf8) + close];
                self.after_tag("#}", comment.ends_with('-'), !comment.ends_with('+'));
                Ok(())
            }
            "{%" => match self.raw_tag("raw") {
                Some((end, dash)) => self.raw(end, dash),
                None => self.tag("{%", "%}"),
            },
            _ => self.tag("{{", "}}"),
        }
    }

    fn text(&mut self, text: &str) {
        if !text.is_empty() {
            self.push(Kind::Data(text.to_owned()));
        }
    }

    /// Steps over a closing bracket, and what it trims: all white space, or one end of a line.
    fn after_tag(&mut self, close: &str, trims_all: bool, trims_line: bool) {
        self.at += close.len();
        if trims_all {
            let rest = self.rest();
            self.at += rest.len() - rest.trim_start_matches(is_space).len();
        } else if trims_line && self.rest().starts_with('\n') {
            self.at += 1;
        }
    }

    /// Whether a tag of one word begins here, behind its bracket: where it closes, and the sign there.
    fn raw_tag(&self, word: &str) -> Option<(usize, Option<char>)> {
        let rest = self.rest().trim_start_matches(is_space).strip_prefix(word)?.trim_start_matches(is_space);
        let sign = sign_of(rest);
        let rest = &rest[sign.map_or(0, char::len_utf8)..];
        rest.starts_with("%}").then(|| (self.source.len() - rest.len(), sign))
    }

    /// Text up to `{% endraw %}`, as it is.
    fn raw(&mut self, close: usize, sign: Option<char>) -> Result<()> {
        self.at = close;
        self.after_tag("%}", sign == Some('-'), false);
        let start = self.at;
        let line_start = self.source[..start].ends_with('\n');
        loop {
            let Some(open) = self.rest().find("{%") else { return self.error("`raw` is not closed") };
            let before = self.at + open;
            self.at = before + 2;
            let sign = sign_of(self.rest());
            self.at += sign.map_or(0, char::len_utf8);
            if let Some((close, end)) = self.raw_tag("endraw") {
                self.text(trimmed(&self.source[start..before], sign, true, line_start));
                self.at = close;
                self.after_tag("%}", end == Some('-'), end.is_none());
                return Ok(());
            }
        }
    }

    /// The tokens of a tag.
    fn tag(&mut self, open: &'static str, close: &'static str) -> Result<()> {
        self.push(Kind::Sign(open));
        let mut brackets = Vec::new();
        loop {
            let rest = self.rest();
            let Some(c) = rest.chars().next() else { return self.error(format!("`{open}` is not closed")) };
            if brackets.is_empty() {
                let bare = rest.strip_prefix(['-', '+']).unwrap_or(rest);
                // `+` only closes blocks.
                if bare.starts_with(close) && !(c == '+' && close == "}}") {
                    self.push(Kind::Sign(close));
                    self.at += rest.len() - bare.len();
                    self.after_tag(close, c == '-', close == "%}" && c != '+');
                    return Ok(());
                }
            }
            match c {
                _ if is_space(c) => self.at += c.len_utf8(),
                '0'..='9' => self.number()?,
                '\'' | '"' => self.string(c)?,
                _ if c.is_alphanumeric() || c == '_' => {
                    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                    self.push(Kind::Name(rest[..end].to_owned()));
                    self.at += end;
                }
                _ => self.operator(&mut brackets)?,
            }
        }
    }

    fn operator(&mut self, brackets: &mut Vec<&'static str>) -> Result<()> {
        let Some(&found) = OPERATORS.iter().find(|o| self.rest().starts_with(**o)) else {
            let c: String = self.rest().chars().take(1).collect();
            return self.error(format!("unexpected character '{}'", one_line(&c)));
        };
        match found {
            "(" => brackets.push(")"),
            "[" => brackets.push("]"),
            "{" => brackets.push("}"),
            ")" | "]" | "}" if brackets.pop() != Some(found) => {
                return self.error(format!("unexpected '{found}'"));
            }
            _ => {}
        }
        self.push(Kind::Sign(found));
        self.at += found.len();
        Ok(())
    }

    fn number(&mut self) -> Result<()> {
        let rest = self.rest();
        let (start, radix) = match rest.get(..2) {
            Some("0x" | "0X") => (2, 16),
            Some("0o" | "0O") => (2, 8),
            Some("0b" | "0B") => (2, 2),
            _ => (0, 10),
        };
        let digits = |from: usize| {
            let length = rest[from..].find(|c: char| c != '_' && !c.is_digit(radix));
            length.map_or(rest.len(), |length| from + length)
        };
        let is_digit = |at: usize| rest.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
        let mut end = digits(start);
        let mut float = false;
        // `a.0.1` has no float in it.
        if radix == 10 && !self.source[..self.at].ends_with('.') {
            if rest[end..].starts_with('.') && is_digit(end + 1) {
                (end, float) = (digits(end + 1), true);
            }
            let signed = usize::from(matches!(rest.as_bytes().get(end + 1), Some(b'+' | b'-')));
            if rest[end..].starts_with(['e', 'E']) && is_digit(end + 1 + signed) {
                (end, float) = (digits(end + 1 + signed), true);
            }
        }
        let shown = rest[start..end].replace('_', "");
        let kind = match float {
            true => shown.parse().ok().map(Kind::Float),
            false => i128::from_str_radix(&shown, radix).ok().map(Kind::Integer),
        };
        let Some(kind) = kind else { return self.error("a number is malformed or too large") };
        self.push(kind);
        self.at += end;
        Ok(())
    }

    /// A string, escapes resolved.
    fn string(&mut self, quote: char) -> Result<()> {
        let mut out = String::new();
        let mut rest = &self.rest()[1..];
        loop {
            let Some(length) = rest.find([quote, '\\']) else { return self.error("a string is not closed") };
            out.push_str(&rest[..length]);
            let closed = rest[length..].starts_with(quote);
            rest = &rest[length + 1..];
            if closed {
                break;
            }
            let Some(length) = unescape(rest, &mut out) else {
                return self.error("a string has an escape that is no character");
            };
            rest = &rest[length..];
        }
        self.push(Kind::Text(out));
        self.at = self.source.len() - rest.len();
        Ok(())
    }
}

/// The sign of a tag beside its bracket.
fn sign_of(text: &str) -> Option<char> {
    text.chars().next().filter(|c| matches!(c, '-' | '+'))
}

/// Text before a tag: without white space at its end by `-`, without its last line's if only that is there.
fn trimmed(text: &str, sign: Option<char>, is_block: bool, line_start: bool) -> &str {
    match sign {
        Some('-') => text.trim_end_matches(is_space),
        None if is_block => {
            let line = text.rfind('\n').map_or(0, |at| at + 1);
            if (line > 0 || line_start) && text[line..].chars().all(is_space) { &text[..line] } else { text }
        }
        _ => text,
    }
}

/// Appends what stands for an escape behind its backslash; how many bytes of source it has. `None` for what
/// is no character.
fn unescape(escaped: &str, out: &mut String) -> Option<usize> {
    let first = escaped.chars().next()?;
    let c = match first {
        '\n' => return Some(1),
        '\\' | '\'' | '"' => first,
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'a' => '\u{7}',
        'b' => '\u{8}',
        'f' => '\u{c}',
        'v' => '\u{b}',
        'x' | 'u' | 'U' | '0'..='7' => {
            let octal = escaped.bytes().take(3).take_while(|byte| (b'0'..=b'7').contains(byte)).count();
            let (digits, radix) = match first {
                'x' => (1..3, 16),
                'u' => (1..5, 16),
                'U' => (1..9, 16),
                _ => (0..octal, 8),
            };
            let length = digits.end;
            let shown = escaped.get(digits).filter(|shown| shown.bytes().all(|b| b.is_ascii_hexdigit()))?;
            out.push(char::from_u32(u32::from_str_radix(shown, radix).ok()?)?);
            return Some(length);
        }
        // By the names of Unicode.
        'N' => return None,
        other => {
            out.push('\\');
            other
        }
    };
    out.push(c);
    Some(first.len_utf8())
}
