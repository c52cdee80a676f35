//! Misspelt names.

use super::nearest;

#[test]
fn misspelt_names_are_found_and_others_are_not() {
    let known = ["vram", "ram", "max-tokens", "temperature", "top-k", "top-p"];
    for (word, expected) in [
        ("vrma", Some("vram")),
        ("vra", Some("vram")),
        ("max_tokens", Some("max-tokens")),
        ("MAX_TOKEN", Some("max-tokens")),
        ("tempreature", Some("temperature")),
        ("topk", Some("top-k")),
        ("kv", None),
        ("system", None),
        ("", None),
    ] {
        assert_eq!(nearest(word, known), expected, "{word}");
    }
    assert_eq!(nearest(&"v".repeat(1 << 20), known), None);
}
