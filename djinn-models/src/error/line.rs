//! Messages for a terminal: one line, no control characters, no more than a screen.

/// Longest message in characters.
const MAX: usize = 500;

/// Characters of a message that is too long which are kept from its end, where the remedy is.
const KEPT_END: usize = 150;

/// `text` as one line that is safe to show on a terminal: line breaks and tabs become a space, other control
/// characters and those that reorder or hide text are escaped (`\u{1b}`), and the middle of what is longer
/// than 500 characters becomes `…`.
pub fn one_line(text: &str) -> String {
    let mut line = String::new();
    let mut broken = false;
    for c in text.chars() {
        if matches!(c, '\t'..='\r' | '\u{85}' | '\u{2028}' | '\u{2029}') {
            broken = true;
            continue;
        }
        if broken && c == ' ' {
            continue;
        }
        if std::mem::take(&mut broken) && !line.is_empty() && !line.ends_with(' ') {
            line.push(' ');
        }
        if is_unsafe(c) { line.extend(c.escape_unicode()) } else { line.push(c) }
    }
    shortened(line)
}

/// Whether a terminal would act on the character, or show nothing for it: control characters, and format
/// characters that reorder, join or hide text.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

fn shortened(line: String) -> String {
    let count = line.chars().count();
    if count <= MAX {
        return line;
    }
    let start = line.chars().take(MAX - KEPT_END - 1);
    start.chain(['…']).chain(line.chars().skip(count - KEPT_END)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_joined_and_what_a_terminal_obeys_is_escaped() {
        assert_eq!(one_line(" a\r\n\t b  c\u{2028}d\n"), " a b  c d");
        assert_eq!(one_line("\u{1b}]0;x\u{7}\u{9b}2J"), r"\u{1b}]0;x\u{7}\u{9b}2J");
        assert_eq!(one_line("gpj\u{202e}.exe\u{200b}\u{e0041}"), r"gpj\u{202e}.exe\u{200b}\u{e0041}");
        assert_eq!(one_line("naïve 狐 हिन्दी \\ \"a\""), "naïve 狐 हिन्दी \\ \"a\"");
    }

    #[test]
    fn long_messages_keep_their_beginning_and_end() {
        let line = one_line(&format!("file: {}; do this", "狐".repeat(10_000)));
        assert_eq!(line.chars().count(), 500);
        assert!(line.starts_with("file: 狐") && line.ends_with("狐; do this") && line.contains('…'));
        let just = "x".repeat(500);
        assert_eq!(one_line(&just), just);
        assert_eq!(one_line(&"\u{1}".repeat(1000)).chars().count(), 500);
    }
}
