//! A line of the debugger, word by word.

use std::collections::VecDeque;
use std::str::FromStr;

/// The remaining words of a line. Quotes hold a word with spaces together.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Words(VecDeque<String>);

impl Words {
    /// Splits a line. A `#` at a word's beginning begins a comment. Within double quotes, `\n`, `\t`, `\"` and `\\`
    /// have their usual meanings.
    ///
    /// # Errors
    /// An open quote, or an unknown escape.
    pub(super) fn split(line: &str) -> Result<Self, String> {
        let (mut words, mut word) = (VecDeque::new(), None::<String>);
        let mut rest = line.chars();
        while let Some(next) = rest.next() {
            match next {
                '#' if word.is_none() => break,
                '"' => quoted(&mut rest, word.get_or_insert_default())?,
                next if next.is_whitespace() => words.extend(word.take()),
                next => word.get_or_insert_default().push(next),
            }
        }
        words.extend(word);
        Ok(Words(words))
    }

    /// The next word, if there is one.
    pub(super) fn next(&mut self) -> Option<String> {
        self.0.pop_front()
    }

    /// The next word, which must exist.
    pub(super) fn need(&mut self, what: &str) -> Result<String, String> {
        self.next().ok_or_else(|| format!("{what} is missing"))
    }

    /// The next word as a number.
    pub(super) fn number<T: FromStr>(&mut self, what: &str) -> Result<T, String> {
        let word = self.need(what)?;
        word.parse().map_err(|_| format!("{what} cannot be {word:?}"))
    }

    /// The next word as a finite number.
    pub(super) fn finite(&mut self, what: &str) -> Result<f32, String> {
        let number: f32 = self.number(what)?;
        number.is_finite().then_some(number).ok_or_else(|| format!("{what} cannot be {number}"))
    }

    /// Takes the next word if it is this one.
    pub(super) fn eat(&mut self, word: &str) -> bool {
        let is_next = self.0.front().is_some_and(|next| next == word);
        if is_next {
            self.0.pop_front();
        }
        is_next
    }

    /// Whether the next word begins with a digit.
    pub(super) fn is_at_number(&self) -> bool {
        self.0.front().is_some_and(|next| next.starts_with(|first: char| first.is_ascii_digit()))
    }

    /// Refuses remaining words.
    pub(super) fn end(&mut self) -> Result<(), String> {
        self.next().map_or(Ok(()), |word| Err(format!("{word:?} has no meaning there")))
    }
}

/// The text after a quote, up to the next one.
fn quoted(rest: &mut std::str::Chars<'_>, word: &mut String) -> Result<(), String> {
    loop {
        match rest.next().ok_or("a quote is not closed")? {
            '"' => return Ok(()),
            '\\' => word.push(match rest.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some(same @ ('"' | '\\')) => same,
                _ => return Err("a backslash within quotes stands before n, t, \" or \\".to_owned()),
            }),
            next => word.push(next),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_split_at_spaces_outside_of_quotes() {
        for (line, expected) in [
            ("", Ok(&[][..])),
            ("  # all of it", Ok(&[])),
            ("a  b#c\td # e", Ok(&["a", "b#c", "d"])),
            (r##"if token " Paris" x"# y"z"##, Ok(&["if", "token", " Paris", "x# yz"])),
            (r#""" "\"\\\n""#, Ok(&["", "\"\\\n"])),
            (r#"a "b"#, Err("a quote is not closed")),
            (r#""\x""#, Err("a backslash within quotes stands before n, t, \" or \\")),
        ] {
            let words = Words::split(line).map(|words| Vec::from(words.0));
            let expected = expected.map(|words| words.iter().map(|&word| word.to_owned()).collect());
            assert_eq!(words, expected.map_err(str::to_owned), "{line:?}");
        }
    }
}
