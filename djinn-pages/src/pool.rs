//! The pages of one memory: reference counts, empty pages, and free pages with contents.

use std::collections::{BTreeMap, BTreeSet};

/// Reference counts. A page without references is *empty*, or *idle*: its contents stay until pages are short, and the
/// longest idle one is reused first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pool {
    references: Vec<u32>,
    /// The lowest is taken first, so that pages taken together are neighbours.
    empty: BTreeSet<u32>,
    /// By age.
    idle: BTreeMap<u64, u32>,
    /// Each idle page's key in `idle`.
    ages: Vec<u64>,
    clock: u64,
}

impl Pool {
    pub(crate) fn new(pages: u32) -> Self {
        let count = pages as usize;
        let (empty, idle) = ((0..pages).collect(), BTreeMap::new());
        Pool { references: vec![0; count], empty, idle, ages: vec![0; count], clock: 0 }
    }

    /// Pages without references.
    pub(crate) fn free(&self) -> u32 {
        (self.empty.len() + self.idle.len()) as u32
    }

    /// Pages without references, but with contents.
    pub(crate) fn idle(&self) -> u32 {
        self.idle.len() as u32
    }

    pub(crate) fn references(&self, page: u32) -> u32 {
        self.references[page as usize]
    }

    pub(crate) fn is_empty(&self, page: u32) -> bool {
        self.empty.contains(&page)
    }

    /// The page that is taken next, and whether its contents are lost then.
    pub(crate) fn next(&self) -> Option<(u32, bool)> {
        let empty = self.empty.first().map(|&page| (page, false));
        empty.or_else(|| self.idle.values().next().map(|&page| (page, true)))
    }

    /// Adds a reference to a page, which may have none.
    pub(crate) fn refer(&mut self, page: u32) {
        let count = &mut self.references[page as usize];
        if *count == 0 && !self.empty.remove(&page) {
            self.idle.remove(&self.ages[page as usize]);
        }
        *count += 1;
    }

    /// Removes a reference. `keeps` says whether the contents stay if it was the last.
    pub(crate) fn release(&mut self, page: u32, keeps: bool) {
        let pages = self.references.len();
        let count = &mut self.references[page as usize];
        assert!(*count > 0, "page {page} of {pages} is released twice");
        *count -= 1;
        match (*count, keeps) {
            (0, true) => {
                self.ages[page as usize] = self.clock;
                self.idle.insert(self.clock, page);
                self.clock += 1;
            }
            (0, false) => {
                self.empty.insert(page);
            }
            _ => {}
        }
    }

    pub(crate) fn forget(&mut self, page: u32) {
        if self.references(page) == 0 && self.idle.remove(&self.ages[page as usize]).is_some() {
            self.empty.insert(page);
        }
    }

    /// # Panics
    /// If the counts are not `held`, or a page without references is neither empty nor kept, as `keeps` says.
    pub(crate) fn audit(&self, what: &str, held: &[u32], keeps: impl Fn(u32) -> bool) {
        let idle: BTreeSet<u32> = self.idle.values().copied().collect();
        assert_eq!(idle.len(), self.idle.len(), "{what} pages are idle twice");
        for (page, &held) in (0..).zip(held) {
            let found = (self.references(page), self.is_empty(page), idle.contains(&page));
            let expected = (held, held == 0 && !keeps(page), held == 0 && keeps(page));
            assert_eq!(found, expected, "{what} page {page}: references, empty, idle");
        }
    }
}
