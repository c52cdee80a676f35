//! Properties of [`CyclicLayout`], against a map of every byte.

use std::collections::BTreeSet;
use std::string::ToString;
use std::vec;
use std::vec::Vec;

use proptest::collection::vec as vec_of;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::BlockerPass::{Previous, Same};
use super::{Blocker, CyclicLayout, LayoutError};

const PASSES: usize = 4;

/// Slots through the passes are numbered by time: `pass * slots + index`. The time to wait for, if any.
fn blocker_time(layout: &CyclicLayout, time: usize) -> Option<usize> {
    let (n, Blocker { index, pass }) =
        (layout.slots().len(), layout.slots()[time % layout.slots().len()].blocker);
    let same_pass = time - time % n + index;
    match pass {
        Same => Some(same_pass),
        Previous => same_pass.checked_sub(n),
    }
}

fn times(layout: &CyclicLayout) -> std::ops::Range<usize> {
    0..PASSES * layout.slots().len()
}

/// The ring's bytes, each with the time of the slot last copied there.
struct Bytes(Vec<Option<usize>>);

impl Bytes {
    fn new(layout: &CyclicLayout) -> Self {
        Self(vec![None; layout.capacity() as usize])
    }

    /// The bytes of a slot: modulo the capacity, which only matters where slots may straddle.
    fn slot(&mut self, layout: &CyclicLayout, time: usize) -> impl Iterator<Item = &mut Option<usize>> {
        let slot = layout.slots()[time % layout.slots().len()];
        let capacity = layout.capacity();
        let held = move |byte: u64| (byte + capacity - slot.offset) % capacity < slot.len;
        self.0.iter_mut().zip(0..).filter(move |&(_, byte)| held(byte)).map(|(painted, _)| painted)
    }
}

/// Finds each offset by stepping on from byte to byte; the bytes stepped over are the skipped ones.
fn assert_placed(layout: &CyclicLayout, align: u64) {
    let capacity = layout.capacity();
    let (mut at, mut skipped) = (0_u64, 0);
    for slot in layout.slots() {
        while !(at.is_multiple_of(align) && at + slot.len <= capacity) {
            at = (at + 1) % capacity;
            skipped += 1;
        }
        assert_eq!(slot.offset, at);
        at = (at + slot.len) % capacity;
    }
    let rest = if at == 0 { 0 } else { capacity - at };
    assert_eq!(layout.skipped_bytes(), skipped + rest);
}

/// Each slot starts at the first aligned byte after the one before; the parts are its bytes in order.
fn assert_straddles(layout: &CyclicLayout, align: u64) {
    let capacity = layout.capacity();
    let (mut at, mut skipped) = (0_u64, 0);
    for (index, slot) in layout.slots().iter().enumerate() {
        while !at.is_multiple_of(align) {
            at = (at + 1) % capacity;
            skipped += 1;
        }
        assert_eq!(slot.offset, at);
        let bytes: Vec<u64> = layout.parts(index).into_iter().flatten().collect();
        assert!(bytes.into_iter().eq((at..at + slot.len).map(|byte| byte % capacity)), "{layout:?}");
        at = (at + slot.len) % capacity;
    }
    let rest = if at == 0 { 0 } else { capacity - at };
    assert_eq!(layout.skipped_bytes(), skipped + rest);
}

/// Copies issued as early as the blockers allow leave every slot intact until its use.
fn assert_safe(layout: &CyclicLayout) {
    let mut bytes = Bytes::new(layout);
    let mut copies = times(layout).peekable();
    for now in times(layout) {
        while let Some(copy) =
            copies.next_if(|&copy| blocker_time(layout, copy).is_none_or(|time| time < now))
        {
            bytes.slot(layout, copy).for_each(|byte| *byte = Some(copy));
        }
        assert!(bytes.slot(layout, now).all(|byte| *byte == Some(now)), "{now} was overwritten: {layout:?}");
    }
}

/// A slot's blocker is the latest one whose bytes its copy overwrites, so waiting for less is too early.
fn assert_tight(layout: &CyclicLayout) {
    let mut bytes = Bytes::new(layout);
    for time in times(layout) {
        let latest = bytes.slot(layout, time).map(|byte| *byte).max().flatten();
        assert_eq!(blocker_time(layout, time), latest, "blocker of {time}: {layout:?}");
        bytes.slot(layout, time).for_each(|byte| *byte = Some(time));
    }
}

/// Copying in order as early as allowed, exactly `lookahead` slots are ahead of the one in use.
fn assert_lookahead(layout: &CyclicLayout) {
    let n = layout.slots().len();
    let mut copies = (0..).peekable();
    for now in times(layout) {
        while copies.next_if(|&copy| blocker_time(layout, copy).is_none_or(|time| time < now)).is_some() {}
        if now >= n {
            assert_eq!(copies.peek().unwrap() - now - 1, layout.lookahead(now % n), "at {now}: {layout:?}");
        }
    }
}

/// The ways in which slots follow and block one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Branch {
    Append,
    Pad,
    Wrap,
    SkipTail,
    BySelf,
    ByPrevious,
    BySame,
    /// By a slot of an earlier lap than the last: the last one skipped those bytes.
    ByOlderLap,
}

const ALL_BRANCHES: [Branch; 8] = [
    Branch::Append,
    Branch::Pad,
    Branch::Wrap,
    Branch::SkipTail,
    Branch::BySelf,
    Branch::ByPrevious,
    Branch::BySame,
    Branch::ByOlderLap,
];

fn branches(layout: &CyclicLayout) -> BTreeSet<Branch> {
    let slots = layout.slots();
    let follow = slots.windows(2).map(|pair| {
        let end = pair[0].offset + pair[0].len;
        match pair[1].offset {
            offset if offset == end => Branch::Append,
            offset if offset > end => Branch::Pad,
            _ if end == layout.capacity() => Branch::Wrap,
            _ => Branch::SkipTail,
        }
    });
    let block = slots.iter().enumerate().map(|(index, slot)| match slot.blocker {
        Blocker { index: by, pass: Previous } if by == index => Branch::BySelf,
        Blocker { pass: Previous, .. } => Branch::ByPrevious,
        Blocker { index: by, pass: Same }
            if slots[by + 1..=index].iter().filter(|slot| slot.offset == 0).count() > 1 =>
        {
            Branch::ByOlderLap
        }
        Blocker { pass: Same, .. } => Branch::BySame,
    });
    follow.chain(block).collect()
}

type Place = fn(u64, u64, &[u64]) -> Result<CyclicLayout, LayoutError>;

/// A ring with some large slots and some small ones, and none too large.
fn case_of(place: Place) -> impl Strategy<Value = (CyclicLayout, u64)> {
    (1..=64_u64, 0..4_u32).prop_flat_map(move |(capacity, align)| {
        let len = prop_oneof![1..=capacity, 1..=capacity.div_ceil(8)];
        let align = 1 << align;
        let layout = move |lens: Vec<u64>| (place(capacity, align, &lens).unwrap(), align);
        vec_of(len, 0..40).prop_map(layout)
    })
}

fn case() -> impl Strategy<Value = (CyclicLayout, u64)> {
    case_of(CyclicLayout::new)
}

proptest! {
    #[test]
    fn slots_skip_the_end((layout, align) in case()) {
        assert_placed(&layout, align);
    }

    #[test]
    fn copies_after_their_blocker_overwrite_nothing_in_use((layout, _) in case()) {
        assert_safe(&layout);
    }

    #[test]
    fn blockers_are_no_later_than_needed((layout, _) in case()) {
        assert_tight(&layout);
    }

    #[test]
    fn lookahead_is_what_the_blockers_allow((layout, _) in case()) {
        assert_lookahead(&layout);
    }

    #[test]
    fn skipped_bytes_fill_up_whole_laps((layout, _) in case()) {
        let used: u64 = layout.slots().iter().map(|slot| slot.len).sum();
        prop_assert_eq!((used + layout.skipped_bytes()) % layout.capacity(), 0);
    }

    #[test]
    fn straddling_slots_follow_one_another((layout, align) in case_of(CyclicLayout::straddling)) {
        assert_straddles(&layout, align);
        assert_safe(&layout);
        assert_tight(&layout);
        assert_lookahead(&layout);
    }

    #[test]
    fn skip_end_slots_are_of_one_part((layout, _) in case()) {
        for (index, slot) in layout.slots().iter().enumerate() {
            prop_assert_eq!(layout.parts(index), [slot.offset..slot.offset + slot.len, 0..0]);
        }
    }
}

#[test]
fn the_random_layouts_reach_every_branch() {
    let mut runner = TestRunner::deterministic();
    let layout = |_| case().new_tree(&mut runner).expect("a layout").current().0;
    let reached: BTreeSet<_> = (0..64).map(layout).flat_map(|layout| branches(&layout)).collect();
    assert!(reached.into_iter().eq(ALL_BRANCHES));
}

#[test]
fn every_short_pass_in_tiny_rings() {
    let (mut reached, mut straddled) = (BTreeSet::new(), false);
    for capacity in 1..=5 {
        let mut passes = vec![vec![]];
        while let Some(lens) = passes.pop() {
            for align in [1, 2, 4] {
                let layout = CyclicLayout::new(capacity, align, &lens).unwrap();
                assert_placed(&layout, align);
                assert_safe(&layout);
                assert_tight(&layout);
                assert_lookahead(&layout);
                reached.append(&mut branches(&layout));
                let layout = CyclicLayout::straddling(capacity, align, &lens).unwrap();
                assert_straddles(&layout, align);
                assert_safe(&layout);
                assert_tight(&layout);
                assert_lookahead(&layout);
                straddled |= (0..lens.len()).any(|index| !layout.parts(index)[1].is_empty());
            }
            if lens.len() < 5 {
                passes.extend((1..=capacity).map(|len| [&lens[..], &[len]].concat()));
            }
        }
    }
    assert!(reached.into_iter().eq(ALL_BRANCHES) && straddled);
}

/// Offset, blocker and lookahead of each slot; then the skipped bytes.
fn summary(capacity: u64, lens: &[u64]) -> (Vec<(u64, usize, super::BlockerPass, usize)>, u64) {
    let layout = CyclicLayout::new(capacity, 1, lens).unwrap();
    let slot = |(index, slot): (usize, &super::Slot)| {
        (slot.offset, slot.blocker.index, slot.blocker.pass, layout.lookahead(index))
    };
    (layout.slots().iter().enumerate().map(slot).collect(), layout.skipped_bytes())
}

#[test]
fn worked_examples() {
    // No slots; one slot; one as large as the ring; a pass that the ring holds whole.
    assert_eq!(summary(0, &[]), (vec![], 0));
    assert_eq!(summary(10, &[4]), (vec![(0, 0, Previous, 0)], 6));
    assert_eq!(summary(10, &[10]), (vec![(0, 0, Previous, 0)], 0));
    assert_eq!(summary(10, &[4, 4]), (vec![(0, 0, Previous, 1), (4, 1, Previous, 1)], 2));
    // Room for three slots of four: the last wraps, and the next pass starts on top of it.
    assert_eq!(
        summary(10, &[3, 3, 3, 3]),
        (vec![(0, 3, Previous, 2), (3, 1, Previous, 2), (6, 2, Previous, 1), (0, 0, Same, 0)], 8),
    );
    // Two laps pass over the last slot's bytes without using them: its blocker is in the first lap.
    assert_eq!(
        summary(10, &[5, 5, 6, 6, 4]),
        (
            vec![(0, 3, Previous, 1), (5, 4, Previous, 0), (0, 1, Same, 0), (0, 2, Same, 1), (6, 1, Same, 1)],
            4,
        ),
    );
}

#[test]
fn a_straddling_slot_waits_for_both_ends() {
    // The third runs over the end onto the first; the fourth then follows it, across the first's end.
    let layout = CyclicLayout::straddling(10, 1, &[4, 4, 4, 4]).unwrap();
    assert_eq!(layout.slots().iter().map(|slot| slot.offset).collect::<Vec<_>>(), [0, 4, 8, 2]);
    assert_eq!(layout.parts(2), [8..10, 0..2]);
    let blockers: Vec<_> =
        layout.slots().iter().map(|slot| (slot.blocker.index, slot.blocker.pass)).collect();
    assert_eq!(blockers, [(3, Previous), (3, Previous), (0, Same), (1, Same)]);
    assert_eq!(layout.skipped_bytes(), 4);
    let huge = CyclicLayout::straddling(u64::MAX, 1, &[u64::MAX - 1, u64::MAX]);
    assert_eq!(huge, Err(LayoutError::Overflow { laps: 2, capacity_bytes: u64::MAX }));
}

#[test]
fn refused_arguments() {
    let refused = |capacity, align, lens: &[u64]| CyclicLayout::new(capacity, align, lens).unwrap_err();
    assert_eq!(refused(8, 0, &[]), LayoutError::BadAlign { align_bytes: 0 });
    assert_eq!(refused(8, 12, &[1]), LayoutError::BadAlign { align_bytes: 12 });
    assert_eq!(refused(8, 1, &[1, 0]), LayoutError::ZeroLength { index: 1 });
    let too_long = LayoutError::TooLong { index: 1, len_bytes: 9, capacity_bytes: 8 };
    assert_eq!(refused(8, 1, &[8, 9]), too_long);
    assert_eq!(too_long.to_string(), "length 1 is 9 bytes, more than the ring's 8");
}

#[test]
fn greatest_capacity() {
    let layout = CyclicLayout::new(u64::MAX, 1 << 63, &[1, 1]).unwrap();
    assert_eq!((layout.slots()[1].offset, layout.skipped_bytes()), (1 << 63, u64::MAX - 2));
    // A third slot's next multiple is 2^64, so it wraps; two laps are too many bytes to count.
    let overflow = LayoutError::Overflow { laps: 2, capacity_bytes: u64::MAX };
    assert_eq!(CyclicLayout::new(u64::MAX, 1 << 63, &[1, 1, 1]), Err(overflow));
}

/// Many laps that skip the tail and then many slots in it: quadratic for a search back lap by lap.
#[test]
fn a_hundred_thousand_slots() {
    let lens: Vec<u64> = [vec![1 << 20; 50_000], vec![1; 50_000]].concat();
    let layout = CyclicLayout::new((2 << 20) - 1, 1, &lens).unwrap();
    assert_eq!(layout.slots()[49_999].blocker, Blocker { index: 49_998, pass: Same });
    assert_eq!(layout.slots()[99_999].blocker, Blocker { index: 99_999, pass: Previous });
}
