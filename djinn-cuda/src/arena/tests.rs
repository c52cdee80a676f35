//! The arena against a map of every 256-byte cell.

use super::{ALIGN, Arena};
use proptest::prelude::*;

const CELLS: usize = 64;

/// The oracle: who owns each cell. First fit by scanning.
struct Shadow([Option<u64>; CELLS]);

impl Shadow {
    fn alloc(&mut self, id: u64, len: u64) -> Option<u64> {
        let cells = len.div_ceil(ALIGN) as usize;
        let start = (0..(CELLS + 1).checked_sub(cells)?)
            .find(|&start| self.0[start..start + cells].iter().all(Option::is_none))?;
        self.0[start..start + cells].fill(Some(id));
        Some(start as u64 * ALIGN)
    }

    fn free(&mut self, id: u64) {
        self.0.iter_mut().filter(|cell| **cell == Some(id)).for_each(|cell| *cell = None);
    }

    fn free_ranges(&self) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for (i, _) in self.0.iter().enumerate().filter(|(_, cell)| cell.is_none()) {
            let at = i as u64 * ALIGN;
            match ranges.last_mut() {
                Some((start, len)) if *start + *len == at => *len += ALIGN,
                _ => ranges.push((at, ALIGN)),
            }
        }
        ranges
    }
}

#[derive(Clone, Debug)]
enum Call {
    Alloc(u64),
    /// The n-th live allocation, modulo their number.
    Free(usize),
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let call = prop_oneof![
        3 => (1..=ALIGN * 20).prop_map(Call::Alloc),
        2 => any::<usize>().prop_map(Call::Free),
    ];
    proptest::collection::vec(call, 1..200)
}

proptest! {
    #[test]
    fn agrees_with_the_shadow(calls in calls()) {
        let mut arena = Arena::new(CELLS as u64 * ALIGN + 17);
        let mut shadow = Shadow([None; CELLS]);
        let mut live = Vec::new();
        for (id, call) in calls.into_iter().enumerate() {
            match call {
                Call::Alloc(len) => {
                    let got = arena.alloc(len);
                    prop_assert_eq!(got, shadow.alloc(id as u64, len), "{} bytes", len);
                    live.extend(got.map(|offset| (id as u64, offset)));
                }
                Call::Free(which) if !live.is_empty() => {
                    let (id, offset) = live.swap_remove(which % live.len());
                    arena.free(offset);
                    shadow.free(id);
                }
                Call::Free(_) => {}
            }
            let free: Vec<(u64, u64)> = arena.free.iter().map(|(&start, &len)| (start, len)).collect();
            prop_assert_eq!(free, shadow.free_ranges());
        }
        for (_, offset) in live {
            arena.free(offset);
        }
        prop_assert_eq!(arena.alloc(CELLS as u64 * ALIGN), Some(0), "all of it is free again");
    }
}

#[test]
fn absurd_sizes_are_refused() {
    let mut arena = Arena::new(1 << 40);
    for len in [0, u64::MAX, u64::MAX - 255, (1 << 40) + 1] {
        assert_eq!(arena.alloc(len), None, "{len}");
    }
    assert_eq!(arena.alloc(1 << 40), Some(0));
    assert_eq!(arena.alloc(1), None);
}

#[test]
fn an_empty_block_holds_nothing() {
    assert_eq!(Arena::new(255).alloc(1), None);
    assert_eq!(Arena::new(256).alloc(256), Some(0));
}

#[test]
#[should_panic(expected = "nothing lives at byte 256")]
fn freeing_twice_is_a_bug() {
    let mut arena = Arena::new(1024);
    arena.alloc(256);
    let second = arena.alloc(256).unwrap();
    arena.free(second);
    arena.free(second);
}
