//! The machine against Oniguruma, which the `tokenizers` package uses.

use super::super::words::GPT2;
use super::*;
use proptest::prelude::*;
use tokenizers::utils::SysRegex;

fn found(pattern: &str, text: &str) -> Vec<(usize, usize)> {
    let mut matches = Vec::new();
    let pattern = Pattern::new(pattern).unwrap();
    pattern.find_all(text, &mut Work::new(1 << 20), |range| matches.push((range.start, range.end))).unwrap();
    matches
}

fn agree(pattern: &str, text: &str) {
    let wanted: Vec<_> = SysRegex::new(pattern).unwrap().find_iter(text).collect();
    assert_eq!(found(pattern, text), wanted, "{pattern} on {text:?}");
}

/// Published patterns, and what else the syntax has.
const PATTERNS: [&str; 28] = [
    GPT2,
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    r" ?[^(\s|[.,!?…。，、।۔،])]+",
    r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[\p{P}\$\+<=>\^~\|`]+",
    "[0-9][0-9][0-9]",
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    "a+?b|a{2,3}|(?:ab)*c|",
    "(?<=a)b|(?<!a)c|(?=1)[0-9]+|(?>a*)b",
    r"^a|b$|\Ab|c\z|c\Z|.",
    "(a|ab)(c|bcd)?d*|x{,2}y|z{2}|{|}|a{x",
    r"\x41\u0062\x{63}|\\|\.|\w\W|\d\D",
    r"(?i)straße|[A-Ck]1|(?-i:A)b|K",
    r"[^\S\n]+|[\p{L}&&[^\p{Lu}]]+",
    r"a*",
    r"\s*",
    "a|b*",
    "(?:a|b)??c",
    r"(?:\p{L}\p{M}*)+",
    r"\S+\s?",
    "(?:ab|a)+b?",
    "(?:a+b?){2,4}",
    "(?:aa|a){3}b",
    r"\w+|[^\w\s]+",
    r"[\W\d]+",
];

#[test]
fn published_patterns_match_as_oniguruma_does_in_all_runs() {
    let parts = [
        " ",
        "\n",
        "\r\n",
        "\t",
        "\u{3000}",
        "a",
        "B",
        "é",
        "e\u{301}",
        "狐",
        "7",
        "²",
        "!",
        "'s",
        "'LL",
        "_",
        "👩\u{200d}👧",
    ];
    for pattern in PATTERNS {
        for part in parts {
            for end in ["", "x", " ", "\n", "7"] {
                agree(pattern, &(part.repeat(40) + end));
                agree(pattern, &(part.to_owned() + end + part));
            }
        }
    }
}

proptest! {
    #[test]
    fn any_text_matches_as_oniguruma_does(
        pick in 0..PATTERNS.len(),
        text in r"([ \n\r\tabcdxyzABK0-9'!.{}<|_éß狐\u{301}\u{3000}\u{2019}\u{17f}²]|'s|\PC){0,60}",
    ) {
        agree(PATTERNS[pick], &text);
    }
}

#[test]
fn sets_are_those_of_oniguruma() {
    let sets =
        [r"\p{L}", r"\p{N}", r"\s", r"\d", r"\w", r"\W", r"[\w]", r"[^\W\d]", r"[^\\w]", r"\p{P}", r"\p{M}"];
    let every: String = ('\0'..=char::MAX).filter(|c| u32::from(*c) < 0x3_0000).collect();
    sets.into_iter().for_each(|set| agree(set, &every));
}

#[test]
fn patterns_that_would_not_end_are_refused_in_bounded_work() {
    let long = "a".repeat(100_000);
    for (pattern, text) in [
        ("(a+)+$", format!("{}!", &long[..50])),
        ("(a|aa)+$", format!("{}!", &long[..60])),
        ("(a|b|ab)*(?=c)", long.clone()),
        ("a*b", long.clone()),
        ("(?:a|b)+", "a".repeat(2 << 20)),
        ("(?=.*b)a|c", long.clone()),
    ] {
        let refused = Pattern::new(pattern).unwrap().find_all(&text, &mut Work::new(text.len()), |_| ());
        let message = refused.expect_err(pattern).to_string();
        assert!(message.contains("too long on this text"), "{pattern}: {message}");
    }
}

#[test]
fn patterns_out_of_bounds_are_refused() {
    let deep = format!("{}a{}", "(".repeat(100_000), ")".repeat(100_000));
    let nested = format!("{}a{}", "(?:".repeat(20), "{1000})".repeat(20));
    let empty = format!("{}{}", "(?:".repeat(20), "){1000}".repeat(20));
    let not_this = [
        "(",
        ")",
        "a)",
        "[",
        "[a",
        "[]a]",
        "*",
        "a**",
        "(a*)*",
        "((a*)*)*$",
        r"(a)\1",
        r"\g<0>",
        r"\K",
        r"\p{Nope}",
        r"\",
        r"\p{",
        "(?<=a+)b",
        "a{2,1}",
        "a{5000}",
        "(?x)a",
        "[[:alpha:]]",
        "[a--b]",
        r"\u12",
        r"\xZZ",
        &deep,
        &nested,
        &"a".repeat(20_000),
    ];
    for pattern in not_this {
        let error = Pattern::new(pattern).map(drop).expect_err(pattern).to_string();
        assert!(!error.contains('\n') && error.len() < 300, "{error}");
    }
    assert!(Pattern::new(&empty).is_ok());
}
