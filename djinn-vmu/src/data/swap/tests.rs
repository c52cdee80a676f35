//! How transfers are cut.

use super::lane::{pieces, runs};
use djinn_pages::PagePair;

fn moves(pairs: &[(u32, u32)]) -> Vec<PagePair> {
    pairs.iter().map(|&(device, host)| PagePair { device, host }).collect()
}

#[test]
fn pieces_hold_as_many_pages_as_fit_and_at_least_one() {
    let moves: Vec<PagePair> = (0..7).map(|i| PagePair { device: i, host: i }).collect();
    let lengths = |page_bytes, most| pieces(&moves, page_bytes, most).map(<[_]>::len).collect::<Vec<_>>();
    assert_eq!(lengths(10, 30), [3, 3, 1]);
    assert_eq!(lengths(10, 39), [3, 3, 1]);
    assert_eq!(lengths(10, 5), [1; 7]);
    assert_eq!(lengths(10, u64::MAX), [7]);
    assert_eq!(pieces(&[], 10, 30).count(), 0);
}

#[test]
fn runs_are_contiguous_on_both_sides() {
    let moves = moves(&[(0, 4), (1, 5), (2, 7), (3, 8), (5, 9), (6, 10)]);
    let found: Vec<_> = runs(&moves).map(|(first, count)| (first.device, first.host, count)).collect();
    assert_eq!(found, [(0, 4, 2), (2, 7, 2), (5, 9, 2)]);
}
