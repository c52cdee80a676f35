//! Density, and work beside a run that swaps nothing.

use super::*;

#[test]
fn the_most_that_holds_is_of_its_policy() {
    let point =
        |policy: &str, agents, holds| Point { policy: policy.into(), agents, holds, ..Point::default() };
    let points =
        vec![point("none", 8, true), point("lru", 8, true), point("lru", 16, true), point("lru", 24, false)];
    let density = Density { points, ..Density::default() };
    assert_eq!(["none", "lru", "ttl"].map(|policy| density.most(policy)), [8, 16, 0]);
    assert_eq!((density.agents(), density.policies()), (vec![8, 16, 24], vec!["none", "lru"]));
}

#[test]
fn work_is_beside_none_and_rates_are_by_the_time_in_which_bytes_moved() {
    let row = |policy: &str, tokens_per_s| Row { policy: policy.into(), tokens_per_s, ..Row::default() };
    let mut rows = [row("lru", 30.0), row("none", 20.0)];
    compare(&mut rows);
    assert_eq!(rows.map(|row| row.ratio), [Some(1.5), Some(1.0)]);
    let mut alone = [row("lru", 30.0)];
    compare(&mut alone);
    assert_eq!(alone[0].ratio, None);
    let swap = |bytes, moved_s| Swap {
        direction: Direction::Out,
        bytes,
        moved_s,
        first_byte_s: 1.0,
        submit_s: Some(2.0),
    };
    let swaps = [swap(3_000_000_000, 0.5), swap(1_000_000_000, 1.5)];
    assert_eq!(gbps(swaps.iter()), Some(2.0));
    assert_eq!(gbps([].iter()), None);
    let first = signals(&Report::default(), &swaps).first_byte_ms.unwrap();
    assert_eq!((first.p50, first.p99), (3000.0, 3000.0));
}
