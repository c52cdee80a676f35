//! Properties of [`Ring`], over random operations and over all of them in tiny rings.

mod pair;
mod shadow;

use std::collections::{BTreeSet, HashSet};
use std::format;
use std::vec;
use std::vec::Vec;

use proptest::collection::vec as vec_of;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::{Full, Region, Ring};
use pair::{ALL_BRANCHES, Op, Pair};

fn op() -> impl Strategy<Value = Op> {
    let len = prop_oneof![4 => 1..=24_u64, 1 => 1..=100_u64];
    prop_oneof![
        4 => (len, 0..5_u32).prop_map(|(len, align)| Op::Reserve { len, align: 1 << align }),
        3 => (0..4_usize).prop_map(Op::Retire),
        3 => (0..4_usize).prop_map(Op::Reclaim),
    ]
}

/// A capacity and calls on a ring of it.
fn script() -> impl Strategy<Value = (u64, Vec<Op>)> {
    (1..=96_u64, vec_of(op(), 0..150))
}

/// The pair after each call.
fn replay((capacity, ops): (u64, Vec<Op>), check: impl Fn(&Pair)) -> Pair {
    let mut pair = Pair::new(capacity);
    for op in ops {
        pair.apply(op);
        check(&pair);
    }
    pair
}

proptest! {
    #[test]
    fn regions_are_disjoint(script in script()) {
        replay(script, Pair::assert_disjoint);
    }

    #[test]
    fn no_region_crosses_the_end(script in script()) {
        replay(script, Pair::assert_inside);
    }

    #[test]
    fn regions_are_aligned(script in script()) {
        replay(script, Pair::assert_aligned);
    }

    #[test]
    fn every_byte_is_live_skipped_or_free(script in script()) {
        replay(script, Pair::assert_accounted);
    }

    #[test]
    fn refuses_only_when_the_shadow_refuses(script in script()) {
        replay(script, Pair::assert_answered_like_shadow);
    }

    #[test]
    fn reclaiming_everything_restores_the_start(script in script()) {
        let mut pair = replay(script, |_| ());
        pair.drain();
        pair.assert_at_start();
    }

    #[test]
    fn the_same_calls_give_the_same_ring(script in script()) {
        let [one, other] = [script.clone(), script].map(|script| replay(script, |_| ()));
        prop_assert_eq!(format!("{:?}", one.ring), format!("{:?}", other.ring));
    }

    #[test]
    fn a_region_is_held_until_it_is_reclaimed(script in script()) {
        let mut pair = replay(script, |pair| {
            assert!(pair.reserved.iter().chain(&pair.retired).all(|&region| pair.ring.holds(region)));
        });
        let held = [pair.reserved.clone(), pair.retired.clone()].concat();
        pair.drain();
        prop_assert!(held.iter().all(|&region| !pair.ring.holds(region)));
    }
}

#[test]
fn the_random_scripts_reach_every_branch() {
    let mut runner = TestRunner::deterministic();
    let mut reached = BTreeSet::new();
    for _ in 0..64 {
        let (capacity, ops) = script().new_tree(&mut runner).expect("a script").current();
        let mut pair = Pair::new(capacity);
        reached.extend(ops.into_iter().filter_map(|op| pair.apply(op)));
    }
    assert!(reached.into_iter().eq(ALL_BRANCHES));
}

/// Walks all states that any sequence of calls can reach, and makes every call in each.
#[test]
fn every_sequence_of_calls_in_tiny_rings() {
    let mut reached = BTreeSet::new();
    for capacity in 1..=6 {
        let mut seen = HashSet::new();
        let mut frontier = vec![Pair::new(capacity)];
        while let Some(pair) = frontier.pop() {
            let entries = pair.ring.entries.iter();
            let entries: Vec<_> = entries
                .map(|entry| (entry.region.offset, entry.region.len, entry.skipped, entry.state))
                .collect();
            if !seen.insert((entries, pair.shadow.clone())) {
                continue;
            }
            let mut drained = pair.clone();
            drained.drain();
            drained.assert_at_start();

            let reserves =
                (1..=capacity + 1).flat_map(|len| [1, 2, 4].map(|align| Op::Reserve { len, align }));
            let retires = (0..pair.reserved.len()).map(Op::Retire);
            let reclaims = (0..pair.retired.len()).map(Op::Reclaim);
            for op in reserves.chain(retires).chain(reclaims) {
                let mut next = pair.clone();
                reached.extend(next.apply(op));
                next.assert_disjoint();
                next.assert_inside();
                next.assert_aligned();
                next.assert_accounted();
                next.assert_answered_like_shadow();
                frontier.push(next);
            }
        }
    }
    assert!(reached.into_iter().eq(ALL_BRANCHES));
}

fn two_regions() -> (Ring, Region, Region) {
    let mut ring = Ring::new(100);
    let regions = [60, 30].map(|len| ring.reserve(len, 1).unwrap());
    (ring, regions[0], regions[1])
}

#[test]
#[should_panic(expected = "retire of region 1 (30 bytes at offset 60): retired before")]
fn retiring_twice_panics() {
    let (mut ring, _, second) = two_regions();
    ring.retire(second);
    ring.retire(second);
}

#[test]
#[should_panic(expected = "reclaim of region 0 (60 bytes at offset 0): not retired")]
fn reclaiming_before_retiring_panics() {
    let (mut ring, first, _) = two_regions();
    ring.reclaim(first);
}

#[test]
#[should_panic(expected = "reclaim of region 1 (30 bytes at offset 60): reclaimed before")]
fn reclaiming_twice_panics() {
    let (mut ring, _, second) = two_regions();
    ring.retire(second);
    ring.reclaim(second);
    ring.reclaim(second);
}

#[test]
#[should_panic(
    expected = "retire of region 0 (60 bytes at offset 0): stale, outstanding are generations 1..2"
)]
fn a_stale_region_panics() {
    let (mut ring, first, _) = two_regions();
    ring.retire(first);
    ring.reclaim(first);
    ring.retire(first);
}

#[test]
#[should_panic(expected = "retire of region 1 (30 bytes at offset 60): not from this ring of 50 bytes")]
fn a_foreign_region_panics() {
    let (_, _, second) = two_regions();
    Ring::new(50).retire(second);
}

#[test]
#[should_panic(expected = "reserve of 0 bytes in a ring of 100 bytes")]
fn reserving_nothing_panics() {
    let _ = two_regions().0.reserve(0, 1);
}

#[test]
#[should_panic(expected = "reserve of 1 bytes at alignment 3, not a power of two")]
fn a_bad_alignment_panics() {
    let _ = two_regions().0.reserve(1, 3);
}

#[test]
fn extreme_capacities() {
    let full = |requested, largest_contiguous| Err(Full { requested, largest_contiguous, retiring: 0 });
    assert_eq!(Ring::new(0).reserve(1, 1), full(1, 0));

    let mut ring = Ring::new(u64::MAX);
    assert_eq!(ring.reserve(u64::MAX, 1 << 63).map(|region| region.offset), Ok(0));
    assert_eq!(ring.reserve(1, 1), full(1, 0));

    let mut ring = Ring::new(u64::MAX);
    assert_eq!(ring.reserve(1, 1).map(|region| region.offset), Ok(0));
    assert_eq!(ring.reserve(1, 1 << 63).map(|region| region.offset), Ok(1 << 63));
    // The next multiple of the alignment is 2^64.
    assert_eq!(ring.reserve(1, 1 << 63), full(1, 0));
    assert_eq!((ring.live(), ring.skipped(), ring.free()), (2, (1 << 63) - 1, (1 << 63) - 2));
}
