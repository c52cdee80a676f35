//! Misspelt names.

use super::{last_layer, nearest};

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

#[test]
fn a_layer_beyond_the_last_one_is_told_from_a_wrong_name() {
    let known =
        ["embed.hook_out", "blocks.0.hook_out", "blocks.1.hook_out", "model.layers.0", "model.layers.1"];
    for (name, expected) in [
        ("blocks.2.hook_out", Some(1)),
        ("blocks.33.hook_out", Some(1)),
        ("model.layers.18446744073709551615", Some(1)),
        ("blocks.1.hook_out", None),
        ("blocks.2.hook_in", None),
        ("blocks.-1.hook_out", None),
        ("embed.hook_out", None),
        ("", None),
    ] {
        assert_eq!(last_layer(name, |name| known.contains(&name)), expected, "{name}");
    }
}
