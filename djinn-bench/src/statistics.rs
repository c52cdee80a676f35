//! Medians, and the arithmetic of samples.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median([]), None);
        assert_eq!(median([7.0]), Some(7.0));
        assert_eq!(median([9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([9.0, 1.0, 2.0, 4.0]), Some(3.0));
        assert_eq!(mean(&[1.0, 2.0, 6.0]), Some(3.0));
        assert_eq!(mean(&[]), None);
    }

    #[test]
    fn the_share_of_the_link_is_bytes_over_time() {
        // 5.55 GB in 100 ms is all of 55.5 GB/s.
        let share = link_share(5_550_000_000, 100.0, 55.5).unwrap();
        assert!((share - 1.0).abs() < 1e-12, "{share}");
        assert_eq!(link_share(0, 100.0, 55.5), None);
    }
}
