//! A ring beside its oracle: the calls to make, what they come to, and what must hold after each.

use core::mem;
use std::vec;
use std::vec::Vec;

use super::shadow::Shadow;
use crate::ring::{Full, Region, Ring};

/// One call; an index counts from the oldest region for which the call is right, modulo their number.
#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    Reserve { len: u64, align: u64 },
    Retire(usize),
    Reclaim(usize),
}

/// What a call came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Branch {
    Start,
    Append,
    Pad,
    Wrap,
    SkipTail,
    Refused,
    RefusedFragmented,
    Retire,
    HeldUp,
    Return,
    ReturnSkipped,
}

pub(super) const ALL_BRANCHES: [Branch; 11] = [
    Branch::Start,
    Branch::Append,
    Branch::Pad,
    Branch::Wrap,
    Branch::SkipTail,
    Branch::Refused,
    Branch::RefusedFragmented,
    Branch::Retire,
    Branch::HeldUp,
    Branch::Return,
    Branch::ReturnSkipped,
];

#[derive(Clone, Copy)]
struct Request {
    len: u64,
    align: u64,
    answer: Result<Region, Full>,
    /// The shadow's offset, or the greatest length that it had room for.
    expected: Result<u64, u64>,
}

/// A ring and its shadow under the same calls.
#[derive(Clone)]
pub(super) struct Pair {
    pub(super) ring: Ring,
    pub(super) shadow: Shadow,
    pub(super) reserved: Vec<Region>,
    pub(super) retired: Vec<Region>,
    newest: u64,
    /// The last call, if it was a request.
    request: Option<Request>,
}

impl Pair {
    pub(super) fn new(capacity: u64) -> Self {
        Self {
            ring: Ring::new(capacity),
            shadow: Shadow::new(capacity),
            reserved: vec![],
            retired: vec![],
            newest: 0,
            request: None,
        }
    }

    /// `None` if there is no region to retire or to reclaim.
    pub(super) fn apply(&mut self, op: Op) -> Option<Branch> {
        let (skipped, free) = (self.ring.skipped(), self.ring.free());
        self.request = None;
        Some(match op {
            Op::Reserve { len, align } => {
                let answer = self.ring.reserve(len, align);
                let expected = self.shadow.reserve(len, align);
                self.request = Some(Request { len, align, answer, expected });
                let Ok(region) = answer else {
                    return Some(if free < len { Branch::Refused } else { Branch::RefusedFragmented });
                };
                self.reserved.push(region);
                let before = mem::replace(&mut self.newest, region.offset);
                match (region.offset < before, self.ring.skipped() > skipped) {
                    _ if free == self.ring.capacity() => Branch::Start,
                    (false, false) => Branch::Append,
                    (false, true) => Branch::Pad,
                    (true, false) => Branch::Wrap,
                    (true, true) => Branch::SkipTail,
                }
            }
            Op::Retire(index) => {
                let index = index.checked_rem(self.reserved.len())?;
                let region = self.reserved.remove(index);
                self.ring.retire(region);
                self.shadow.retire(region.offset);
                self.retired.push(region);
                Branch::Retire
            }
            Op::Reclaim(index) => {
                let index = index.checked_rem(self.retired.len())?;
                let region = self.retired.remove(index);
                self.ring.reclaim(region);
                self.shadow.reclaim(region.offset);
                match (self.ring.free() > free, self.ring.skipped() < skipped) {
                    (false, _) => Branch::HeldUp,
                    (true, false) => Branch::Return,
                    (true, true) => Branch::ReturnSkipped,
                }
            }
        })
    }

    pub(super) fn drain(&mut self) {
        while self.apply(Op::Retire(usize::MAX)).is_some() {}
        while self.apply(Op::Reclaim(usize::MAX)).is_some() {}
    }

    pub(super) fn counts(&self) -> [u64; 4] {
        [self.ring.live(), self.ring.skipped(), self.ring.free(), self.ring.retiring()]
    }

    pub(super) fn assert_disjoint(&self) {
        let mut regions: Vec<_> = self.reserved.iter().chain(&self.retired).collect();
        regions.sort_by_key(|region| region.offset);
        for pair in regions.windows(2) {
            assert!(pair[0].offset + pair[0].len <= pair[1].offset, "{} meets {}", pair[0], pair[1]);
        }
    }

    pub(super) fn assert_inside(&self) {
        for region in &self.reserved {
            assert!(region.offset + region.len <= self.ring.capacity(), "{region} crosses the end");
        }
    }

    pub(super) fn assert_aligned(&self) {
        if let Some(Request { align, answer: Ok(region), .. }) = self.request {
            assert!(region.offset.is_multiple_of(align), "{region} is not aligned to {align}");
        }
    }

    pub(super) fn assert_accounted(&self) {
        assert_eq!(self.ring.live() + self.ring.skipped() + self.ring.free(), self.ring.capacity());
        assert_eq!(self.counts(), self.shadow.counts());
    }

    pub(super) fn assert_answered_like_shadow(&self) {
        let Some(Request { len: requested, answer, expected, .. }) = self.request else { return };
        let retiring = self.ring.retiring();
        let refusal = |largest_contiguous| Full { requested, largest_contiguous, retiring };
        assert_eq!(answer.map(|region| region.offset), expected.map_err(refusal));
    }

    pub(super) fn assert_at_start(&self) {
        let capacity = self.ring.capacity();
        assert_eq!((self.counts(), self.ring.oldest()), ([0, 0, capacity, 0], None));
        let region = self.ring.clone().reserve(capacity, capacity.next_power_of_two());
        assert_eq!(region.map(|region| region.offset), Ok(0), "the whole ring is one free run");
    }
}
