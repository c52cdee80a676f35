//! Medians, and the share of a link.

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
