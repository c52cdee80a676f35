//! The oracle of [`Ring`](super::Ring): a map of every byte, searched one offset at a time.

use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

/// A byte's owner counts from the oldest outstanding region, so equal states are equal values.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Byte {
    Free,
    Live(usize),
    /// Stepped over after its owner.
    Skipped(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    Reserved,
    Retired,
    Reclaimed,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Shadow {
    bytes: Vec<Byte>,
    steps: VecDeque<Step>,
    head: usize,
}

impl Shadow {
    pub(super) fn new(capacity: u64) -> Self {
        Self { bytes: vec![Byte::Free; capacity as usize], steps: VecDeque::new(), head: 0 }
    }

    /// The first offset from the head on, going round once over free bytes only, that fits.
    fn find(&self, len: usize, align: usize) -> Option<usize> {
        let capacity = self.bytes.len();
        (0..capacity)
            .map(|step| (self.head + step) % capacity)
            .take_while(|&at| self.bytes[at] == Byte::Free)
            .find(|&at| {
                at.is_multiple_of(align)
                    && at + len <= capacity
                    && self.bytes[at..at + len].iter().all(|&byte| byte == Byte::Free)
            })
    }

    /// The offset served, or the greatest length that would have been.
    pub(super) fn reserve(&mut self, len: u64, align: u64) -> Result<u64, u64> {
        let (len, align, capacity) = (len as usize, align as usize, self.bytes.len());
        let Some(offset) = self.find(len, align) else {
            return Err((1..=capacity).rev().find(|&len| self.find(len, align).is_some()).unwrap_or(0) as u64);
        };
        let mut at = self.head % capacity;
        while at != offset {
            self.bytes[at] = Byte::Skipped(self.steps.len() - 1);
            at = (at + 1) % capacity;
        }
        self.bytes[offset..offset + len].fill(Byte::Live(self.steps.len()));
        self.steps.push_back(Step::Reserved);
        self.head = offset + len;
        Ok(offset as u64)
    }

    pub(super) fn retire(&mut self, offset: u64) {
        *self.step(offset) = Step::Retired;
    }

    pub(super) fn reclaim(&mut self, offset: u64) {
        *self.step(offset) = Step::Reclaimed;
        while self.steps.front() == Some(&Step::Reclaimed) {
            self.steps.pop_front();
            for byte in &mut self.bytes {
                *byte = match *byte {
                    Byte::Free | Byte::Live(0) | Byte::Skipped(0) => Byte::Free,
                    Byte::Live(owner) => Byte::Live(owner - 1),
                    Byte::Skipped(owner) => Byte::Skipped(owner - 1),
                };
            }
        }
        if self.steps.is_empty() {
            self.head = 0;
        }
    }

    fn step(&mut self, offset: u64) -> &mut Step {
        let Byte::Live(owner) = self.bytes[offset as usize] else { panic!("no region at {offset}") };
        &mut self.steps[owner]
    }

    /// Live, skipped, free and retiring bytes.
    pub(super) fn counts(&self) -> [u64; 4] {
        let count =
            |test: &dyn Fn(Byte) -> bool| self.bytes.iter().filter(|&&byte| test(byte)).count() as u64;
        [
            count(&|byte| matches!(byte, Byte::Live(_))),
            count(&|byte| matches!(byte, Byte::Skipped(_))),
            count(&|byte| byte == Byte::Free),
            count(&|byte| matches!(byte, Byte::Live(owner) if self.steps[owner] != Step::Reserved)),
        ]
    }
}
