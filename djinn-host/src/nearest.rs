//! "Did you mean": the known name that a misspelt one is close to, and layers that a model does not have.

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

/// The last layer that has a hook of this name, if hooks of this name begin with layer 0 and the name's own layer lies beyond
/// the last one: for `blocks.99.hook_out` of a model with 30 layers, 29.
pub fn last_layer(name: &str, is_known: impl Fn(&str) -> bool) -> Option<u64> {
    let parts: Vec<&str> = name.split('.').collect();
    let (at, layer) =
        parts.iter().enumerate().find_map(|(at, part)| Some((at, part.parse::<u64>().ok()?)))?;
    let of = |layer: u64| {
        let layer = layer.to_string();
        let name: Vec<&str> =
            parts.iter().enumerate().map(|(own, part)| if own == at { &*layer } else { part }).collect();
        is_known(&name.join("."))
    };
    let last = (0..layer).take_while(|&layer| of(layer)).last()?;
    (!of(layer)).then_some(last)
}
