//! Runs of attention: adjacent rows of one sequence. A GPU relies on what it is told of them, and computes long ones in
//! another way.

/// Whether each row is in a run of more than `most` rows.
///
/// # Panics
/// If there is such a run though all are `short`, or its positions do not ascend by one.
pub(super) fn long_runs(short: bool, most: u32, sequences: &[u32], positions: &[u32]) -> Vec<bool> {
    let (mut rest, mut long) = (positions, Vec::new());
    for run in sequences.chunk_by(|a, b| a == b) {
        let (of_run, others) = rest.split_at(run.len());
        rest = others;
        let rows = run.len();
        if rows as u64 <= most.into() {
            long.resize(long.len() + rows, false);
            continue;
        }
        assert!(!short, "attention is told of short runs, but {rows} rows of a sequence are adjacent");
        let ascend = of_run.windows(2).all(|two| two[0].checked_add(1) == Some(two[1]));
        assert!(
            ascend,
            "the positions of {rows} adjacent rows of a sequence do not ascend by one: {of_run:?}"
        );
        long.resize(long.len() + rows, true);
    }
    long
}

#[cfg(test)]
mod tests {
    use super::long_runs;
    use std::panic::catch_unwind;

    #[test]
    fn long_runs_are_told_of_and_ascend() {
        let sequences = [0, 0, 0, 1, 1, 0];
        let fails = |short, most, positions: [u32; 6]| {
            catch_unwind(|| long_runs(short, most, &sequences, &positions)).is_err()
        };
        assert!(!fails(true, 3, [9, 2, 5, 1, 1, 0]), "runs of up to 3 rows may have any positions");
        assert!(!fails(false, 2, [7, 8, 9, 1, 1, 0]));
        assert!(fails(true, 2, [7, 8, 9, 1, 1, 0]));
        assert!(fails(false, 2, [7, 9, 8, 1, 1, 0]));
        assert!(fails(false, 2, [7, 8, 8, 1, 1, 0]));
        assert!(fails(false, 1, [7, 8, 9, 1, 1, 0]));
        let long = long_runs(false, 2, &sequences, &[7, 8, 9, 1, 1, 0]);
        assert_eq!(long, [true, true, true, false, false, false]);
    }
}
