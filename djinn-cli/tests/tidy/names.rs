//! One word, one meaning: public types have names of their own, and comments use plain words.

use super::sources;
use std::collections::BTreeMap;

/// Public names that stand more than once: errors of crates; the CUDA device of builds with and without CUDA; and the
/// values of a graph, of a template and of a GGUF file's metadata, which each field calls so.
const SHARED: &[&str] = &["Error", "Result", "CudaDevice", "Value"];

/// Words that make a reader guess, or calques that no English reader expects.
const RIDDLES: &[&str] = &["so many", "whoever", "in vain", "of which", "as often as"];

/// The name of a type that the line declares as public, with the crate's own visibility left out.
fn public_type(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("pub ")?;
    let name =
        ["struct ", "enum ", "trait ", "type ", "union "].iter().find_map(|kind| rest.strip_prefix(kind))?;
    Some(name.split(|c: char| !c.is_alphanumeric() && c != '_').next().expect("split gives one part"))
}

#[test]
fn public_types_have_names_of_their_own() {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in sources().iter().filter(|(path, _)| path.contains("/src/") && !path.contains("tests"))
    {
        for name in text.lines().filter_map(public_type) {
            found.entry(name.to_owned()).or_default().push(path.clone());
        }
    }
    assert!(found.len() > 200, "{} public types: the search misses some", found.len());
    let twice: Vec<_> =
        found.iter().filter(|(name, at)| at.len() > 1 && !SHARED.contains(&name.as_str())).collect();
    assert!(twice.is_empty(), "names with two meanings: {twice:#?}");
}

#[test]
fn comments_have_no_riddles() {
    for (path, text) in sources().iter().filter(|(path, _)| !path.contains("tests/tidy/")) {
        for (number, line) in text.lines().enumerate() {
            let comment = line.split_once("//").map_or("", |(_, comment)| comment).to_lowercase();
            let riddle = RIDDLES.iter().find(|riddle| comment.contains(*riddle));
            assert!(riddle.is_none(), "{path}:{}: {} is hard to read", number + 1, riddle.unwrap_or(&""));
        }
    }
}
