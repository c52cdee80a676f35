//! Calls as Python writes them, `f(a=1, b="x")`: their arguments as JSON.

use serde_json::Value;
use std::fmt::Write;
use std::iter::Peekable;
use std::str::Chars;

/// How deep literals may nest; deeper ones are no calls.
const MOST_LEVELS: usize = 64;

/// Finds the end of a call's arguments, which begin after `(`.
#[derive(Clone, Debug, Default)]
pub(super) struct ArgumentsScanner {
    /// Brackets that are open.
    open: usize,
    /// The quote that the string ends with.
    quote: Option<char>,
    escaped: bool,
}

impl ArgumentsScanner {
    /// Whether this character is the closing parenthesis.
    pub(super) fn push(&mut self, c: char) -> bool {
        if let Some(quote) = self.quote {
            if !std::mem::take(&mut self.escaped) {
                match c {
                    '\\' => self.escaped = true,
                    c if c == quote => self.quote = None,
                    _ => {}
                }
            }
            return false;
        }
        match c {
            '"' | '\'' => self.quote = Some(c),
            '(' | '[' | '{' => self.open += 1,
            ')' if self.open == 0 => return true,
            ')' | ']' | '}' => self.open = self.open.saturating_sub(1),
            _ => {}
        }
        false
    }
}

/// The keyword arguments of a call, as a JSON object. `None` if one has no name, or is no literal.
pub(super) fn arguments(text: &str) -> Option<String> {
    let mut literal = Literal { chars: text.chars().peekable(), json: String::with_capacity(text.len()) };
    literal.json.push('{');
    literal.space();
    while literal.chars.peek().is_some() {
        if literal.json.len() > 1 {
            literal.json.push(',');
        }
        let name = literal.word();
        if !is_name(&name) {
            return None;
        }
        literal.quote(&name);
        literal.space();
        literal.expect('=')?;
        literal.json.push(':');
        literal.value(MOST_LEVELS)?;
        literal.space();
        if literal.chars.peek().is_some() {
            literal.expect(',')?;
            literal.space();
        }
    }
    literal.json.push('}');
    Some(literal.json)
}

/// Whether a text can stand before the `=` of an argument.
pub(crate) fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.starts_with(|c: char| c.is_ascii_digit()) && text.chars().all(is_word)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Reads Python literals and writes JSON.
struct Literal<'a> {
    chars: Peekable<Chars<'a>>,
    json: String,
}

impl Literal<'_> {
    fn space(&mut self) {
        while self.chars.next_if(|c| c.is_ascii_whitespace()).is_some() {}
    }

    fn expect(&mut self, c: char) -> Option<()> {
        self.chars.next_if_eq(&c).map(|_| ())
    }

    fn word(&mut self) -> String {
        let mut word = String::new();
        while let Some(c) = self.chars.next_if(|&c| is_word(c)) {
            word.push(c);
        }
        word
    }

    fn quote(&mut self, text: &str) {
        // Writing to a string does not fail.
        let _ = write!(self.json, "{}", Value::from(text));
    }

    fn value(&mut self, levels: usize) -> Option<()> {
        let levels = levels.checked_sub(1)?;
        self.space();
        match *self.chars.peek()? {
            '"' | '\'' => {
                let text = self.string()?;
                self.quote(&text);
            }
            '[' => self.list(']', levels)?,
            '(' => self.list(')', levels)?,
            '{' => self.dictionary(levels)?,
            c if c.is_ascii_digit() || matches!(c, '-' | '+' | '.') => self.number()?,
            _ => {
                let word = match self.word().as_str() {
                    "True" | "true" => "true",
                    "False" | "false" => "false",
                    "None" | "null" => "null",
                    _ => return None,
                };
                self.json.push_str(word);
            }
        }
        Some(())
    }

    fn list(&mut self, end: char, levels: usize) -> Option<()> {
        self.chars.next();
        self.json.push('[');
        self.space();
        let mut first = true;
        while self.chars.next_if_eq(&end).is_none() {
            if !std::mem::take(&mut first) {
                self.json.push(',');
            }
            self.value(levels)?;
            self.separator(end)?;
        }
        self.json.push(']');
        Some(())
    }

    fn dictionary(&mut self, levels: usize) -> Option<()> {
        self.chars.next();
        self.json.push('{');
        self.space();
        let mut first = true;
        while self.chars.next_if_eq(&'}').is_none() {
            if !std::mem::take(&mut first) {
                self.json.push(',');
            }
            let key = self.string()?;
            self.quote(&key);
            self.space();
            self.expect(':')?;
            self.json.push(':');
            self.value(levels)?;
            self.separator('}')?;
        }
        self.json.push('}');
        Some(())
    }

    /// A comma, or the end that comes next.
    fn separator(&mut self, end: char) -> Option<()> {
        self.space();
        if self.chars.peek() != Some(&end) {
            self.expect(',')?;
            self.space();
        }
        Some(())
    }

    fn number(&mut self) -> Option<()> {
        let mut text = String::new();
        while let Some(c) = self.chars.next_if(|&c| c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.'))
        {
            text.push(c);
        }
        // Python writes some numbers that JSON does not have.
        let text = text.strip_prefix('+').unwrap_or(&text);
        if serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() {
            self.json.push_str(text);
            return Some(());
        }
        let decimal = text.chars().all(|c| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E'));
        let number: f64 = text.parse().ok().filter(|number: &f64| decimal && number.is_finite())?;
        let _ = write!(self.json, "{}", Value::from(number));
        Some(())
    }

    fn string(&mut self) -> Option<String> {
        let quote = self.chars.next_if(|c| matches!(c, '"' | '\''))?;
        let mut text = String::new();
        loop {
            match self.chars.next()? {
                c if c == quote => return Some(text),
                '\\' => self.escape(&mut text)?,
                c => text.push(c),
            }
        }
    }

    fn escape(&mut self, text: &mut String) -> Option<()> {
        let c = self.chars.next()?;
        let plain = match c {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            '0' => '\0',
            '\\' | '\'' | '"' => c,
            '\n' => return Some(()),
            'x' => char::from_u32(self.code(2)?)?,
            'u' => self.unit()?,
            'U' => char::from_u32(self.code(8)?)?,
            // As Python does, with a warning.
            _ => {
                text.push('\\');
                c
            }
        };
        text.push(plain);
        Some(())
    }

    /// The character of `\u`. Models also write JSON's pairs of surrogates.
    fn unit(&mut self) -> Option<char> {
        let first = self.code(4)? as u16;
        if !(0xd800..0xdc00).contains(&first) {
            return char::from_u32(first.into());
        }
        self.expect('\\')?;
        self.expect('u')?;
        char::decode_utf16([first, self.code(4)? as u16]).next()?.ok()
    }

    /// The number that comes next, in hexadecimal digits.
    fn code(&mut self, digits: u32) -> Option<u32> {
        let mut code = 0;
        for _ in 0..digits {
            code = code * 16 + self.chars.next()?.to_digit(16)?;
        }
        Some(code)
    }
}
