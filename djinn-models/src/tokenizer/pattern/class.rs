//! Sets of characters.

use super::parse::unsupported;
use crate::Result;
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, HirKind};

/// Oniguruma's `\w` and `\W` in the other syntax: joiners are not word characters.
const WORD: &str = r"[\w--[\x{200c}\x{200d}]]";
const NO_WORD: &str = r"[\W\x{200c}\x{200d}]";

/// A set of characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::tokenizer) struct CharSet {
    /// One bit for each ASCII character.
    ascii: u128,
    /// First and last of each run, in order.
    runs: Vec<(char, char)>,
}

impl CharSet {
    /// The set of a class in Oniguruma's syntax: `[a-z]`, `\p{L}`, `\s`.
    pub(super) fn from_oniguruma(source: &str, ignore_case: bool) -> Result<Self> {
        // These have another meaning in the other syntax.
        if source.contains("[:") || source.contains("--") || source.contains("~~") {
            return Err(unsupported(source));
        }
        // Outside brackets, superscripts and fractions are word characters, too.
        match source {
            r"\w" => return Self::from_syntax(r"[\w\xb2\xb3\xb9\xbc-\xbe--[\x{200c}\x{200d}]]", false),
            r"\W" => return Self::from_syntax(r"[[\W\x{200c}\x{200d}]--[\xb2\xb3\xb9\xbc-\xbe]]", false),
            _ => {}
        }
        let (mut other, mut escaped) = (String::new(), false);
        for c in source.chars() {
            if escaped && matches!(c, 'w' | 'W') {
                other.pop();
                other.push_str(if c == 'w' { WORD } else { NO_WORD });
            } else {
                other.push(c);
            }
            escaped = c == '\\' && !escaped;
        }
        Self::from_syntax(&other, ignore_case)
    }

    /// The set of a class in the syntax of the `regex` crate.
    pub(in crate::tokenizer) fn from_syntax(source: &str, ignore_case: bool) -> Result<Self> {
        let mut parser = ParserBuilder::new().case_insensitive(ignore_case).build();
        let hir = parser.parse(source).map_err(|_| unsupported(source))?;
        match hir.kind() {
            HirKind::Class(Class::Unicode(class)) => {
                Ok(Self::new(class.iter().map(|range| (range.start(), range.end())).collect()))
            }
            HirKind::Literal(text) => {
                let text = std::str::from_utf8(&text.0).map_err(|_| unsupported(source))?;
                let mut chars = text.chars();
                match (chars.next(), chars.next()) {
                    (Some(c), None) => Ok(Self::new(vec![(c, c)])),
                    _ => Err(unsupported(source)),
                }
            }
            _ => Err(unsupported(source)),
        }
    }

    /// One character, or the characters that differ from it only by case.
    pub(super) fn of_char(c: char, ignore_case: bool) -> Result<Self> {
        match ignore_case && c.is_alphabetic() {
            true => Self::from_syntax(&c.to_string(), true),
            false => Ok(Self::new(vec![(c, c)])),
        }
    }

    /// Every character but the line feed.
    pub(super) fn dot() -> Self {
        Self::new(vec![('\0', '\u{9}'), ('\u{b}', char::MAX)])
    }

    fn new(runs: Vec<(char, char)>) -> Self {
        let mut ascii = 0;
        for (first, last) in &runs {
            for c in (*first..=*last).take_while(char::is_ascii) {
                ascii |= 1 << u32::from(c);
            }
        }
        Self { ascii, runs }
    }

    pub(in crate::tokenizer) fn contains(&self, c: char) -> bool {
        if c.is_ascii() {
            return self.ascii >> u32::from(c) & 1 == 1;
        }
        let after = self.runs.partition_point(|(first, _)| *first <= c);
        after > 0 && c <= self.runs[after - 1].1
    }
}
