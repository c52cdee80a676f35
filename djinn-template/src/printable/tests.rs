//! Ordinary text stays, and control characters are written out.

use super::*;

#[test]
fn ordinary_text_stays() {
    for text in ["", "a.gguf: no such file", "Grüße, 你好, नमस्ते, 👩\u{200d}👩\u{200d}👧, C:\\models"]
    {
        assert_eq!(one_line(text), text);
    }
    assert_eq!(one_line("\n cannot\r\n\topen  it \n"), "cannot open it");
}

#[test]
fn what_steers_or_deceives_is_written_out() {
    assert_eq!(one_line("\x1b]0;title\x07"), "\\u{1b}]0;title\\u{7}");
    assert_eq!(one_line("a\0b\x7f\u{9b}31m"), "a\\u{0}b\\u{7f}\\u{9b}31m");
    assert_eq!(one_line("gguf\u{202e}exe\u{2066}"), "gguf\\u{202e}exe\\u{2066}");
    assert_eq!(one_line("a\u{2028}b\u{2029}c\u{85}d\u{b}e"), "a\\u{2028}b\\u{2029}c\\u{85}d\\u{b}e");
    let twice = one_line("\x1b[2J");
    assert_eq!(one_line(&twice), twice);
}

#[test]
fn lines_stay_lines() {
    assert_eq!(lines("a\n\tb\u{202e}"), "a\n\tb\u{202e}");
    assert_eq!(lines("a\r\n\x1b[2Jb\u{9b}"), "a\\u{d}\n\\u{1b}[2Jb\\u{9b}");
}

#[test]
fn long_text_keeps_its_start_and_its_remedy() {
    let longest = "é".repeat(MAX_CHARS);
    assert_eq!(one_line(&longest), longest);
    for filling in ["x", "\x1b", "a \n", "\u{202e}é"] {
        let text = format!("model: {}; try another", filling.repeat(1_000_000));
        let line = one_line(&text);
        assert!(line.chars().count() <= MAX_CHARS && line.chars().all(|c| !misleads(c)), "{line}");
        assert!(
            line.starts_with("model: ") && line.contains('…') && line.ends_with("; try another"),
            "{line}"
        );
    }
}
