//! "Did you mean": the known name that a misspelt one is close to.

#[cfg(test)]
mod tests;

/// The known name with the fewest edits to `word`; `None` if these are more than a third of its letters. Case does not
/// count, and `_` equals `-`.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |text: &str| text.to_lowercase().replace('_', "-");
    let word = plain(word);
    let length = word.chars().count();
    // Comparing takes the product of the lengths.
    let near = known.into_iter().filter(|name| name.len().abs_diff(word.len()) <= 2 + length / 3);
    let edits = near.map(|name| (strsim::damerau_levenshtein(&word, &plain(name)), name));
    edits
        .filter(|(edits, _)| *edits <= (length / 3).max(1))
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, name)| name)
}
