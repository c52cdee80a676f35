//! Medians, and the arithmetic of samples.

#[cfg(test)]
mod tests;

/// The median: the mean of the middle two of an even number; `None` of nothing. Values are finite.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// The mean; `None` of nothing.
pub(crate) fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// What share of the link's bytes a pass moved: `streamed` bytes in `ms`, of `gbps` (1e9 bytes/s). `None`
/// where nothing streamed.
pub(crate) fn link_share(streamed: u64, ms: f64, gbps: f64) -> Option<f64> {
    (streamed > 0 && ms > 0.0 && gbps > 0.0).then(|| streamed as f64 / (ms * 1e-3 * gbps * 1e9))
}
