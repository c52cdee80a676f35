//! Text of strangers, made safe to print on a terminal.
//!
//! Names, templates and messages that come out of a file may hold escapes that steer a terminal, characters that
//! reorder what is read, and megabytes. Error texts and tables pass them through [`one_line`]; text that keeps its
//! lines, such as a model's answer, passes through [`lines`].

#[cfg(test)]
mod tests;

use std::borrow::Cow;

/// The longest line that [`one_line`] gives, in characters.
pub const MAX_CHARS: usize = 500;
/// How much of a longer text's end is kept: remedies stand there.
const TAIL: usize = 200;

/// `text` as one printable line of at most [`MAX_CHARS`] characters.
///
/// Runs of ASCII white space become one space. Control characters, line separators and characters that are
/// invisible or change the direction of text are written as `\u{1b}`. A longer text loses its middle, where `…`
/// stands instead. Time and memory do not depend on the length of a text without long runs of white space.
#[must_use]
pub fn one_line(text: &str) -> String {
    let (all, whole) = line(text.chars(), MAX_CHARS);
    if whole {
        return all.concat();
    }
    let (head, _) = line(text.chars(), MAX_CHARS - TAIL - 1);
    let (mut tail, _) = line(text.chars().rev(), TAIL);
    tail.reverse();
    format!("{}…{}", head.concat(), tail.concat())
}

/// `text` with all control characters but line feeds and tabs written as `\u{1b}`.
#[must_use]
pub fn lines(text: &str) -> Cow<'_, str> {
    let steers = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let mut printed = String::with_capacity(text.len());
    for c in text.chars() {
        if steers(c) { printed.extend(c.escape_unicode()) } else { printed.push(c) }
    }
    Cow::Owned(printed)
}

/// The first of `chars` as they are printed, `most` characters together, and whether that is all of them.
fn line(chars: impl Iterator<Item = char>, most: usize) -> (Vec<String>, bool) {
    let (mut pieces, mut length, mut space) = (Vec::new(), 0, false);
    for c in chars {
        if c.is_ascii_whitespace() {
            space = length > 0;
            continue;
        }
        let piece = if misleads(c) { c.escape_unicode().to_string() } else { c.to_string() };
        let added = piece.chars().count() + usize::from(space);
        if length + added > most {
            return (pieces, false);
        }
        pieces.extend(space.then(|| " ".to_owned()));
        pieces.push(piece);
        length += added;
        space = false;
    }
    (pieces, true)
}

/// Whether `c` steers a terminal, breaks the line, hides, or changes the direction of the text around it. The
/// joiners U+200C and U+200D are part of words and are left.
fn misleads(c: char) -> bool {
    let hides_or_turns = matches!(
        c,
        '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'
            | '\u{200e}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    );
    c.is_control() || hides_or_turns
}
