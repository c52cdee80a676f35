//! How rows are cut into tasks.

use super::{Rows, cut};

#[test]
fn runs_end_at_sequences_gaps_and_the_limit() {
    let row_seq = [0, 0, 0, 0, 1, 1, 2, 2];
    let positions = [5, 6, 7, 8, 0, 1, 3, 9];
    let rows = |first, count, sequence, position| Rows { first, count, sequence, position };
    let want = [rows(0, 3, 0, 5), rows(3, 1, 0, 8), rows(4, 2, 1, 0), rows(6, 1, 2, 3), rows(7, 1, 2, 9)];
    assert_eq!(cut(&row_seq, &positions, 3), want);
    assert_eq!(cut(&[], &[], 3), []);
}
