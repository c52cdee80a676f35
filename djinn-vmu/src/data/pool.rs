//! The pages of one memory: who refers to each, how many copies touch it, which are free.

use std::collections::BTreeSet;

/// Reference counts of pages, and copies under way. A page is *idle* once nothing refers to it and no copy reads
/// or writes it; only then may it be given back, whoever let go of it last.
#[derive(Debug)]
pub(super) struct PagePool {
    references: Vec<u32>,
    moving: Vec<u32>,
    /// The lowest goes first, so that pages taken together lie together.
    free: BTreeSet<u32>,
}

impl PagePool {
    /// `pages` pages, all free.
    pub(super) fn new(pages: u32) -> Self {
        let none = vec![0; pages as usize];
        PagePool { references: none.clone(), moving: none, free: (0..pages).collect() }
    }

    /// Free pages.
    pub(super) fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Pages that nothing refers to, but that copies still touch.
    pub(super) fn in_transit(&self) -> u32 {
        let both = self.references.iter().zip(&self.moving);
        both.filter(|&(&references, &moving)| references == 0 && moving > 0).count() as u32
    }

    /// A free page, with one reference.
    pub(super) fn take(&mut self) -> Option<u32> {
        let page = self.free.pop_first()?;
        self.references[page as usize] = 1;
        Some(page)
    }

    /// One more reference to a page that is not free.
    pub(super) fn refer(&mut self, page: u32) {
        assert!(!self.free.contains(&page), "page {page} is referred to but free");
        self.references[page as usize] += 1;
    }

    /// References to the page.
    pub(super) fn references(&self, page: u32) -> u32 {
        self.references[page as usize]
    }

    /// Whether a copy touches the page.
    pub(super) fn is_moving(&self, page: u32) -> bool {
        self.moving[page as usize] > 0
    }

    /// One reference less; whether the page is idle now.
    #[must_use]
    pub(super) fn drop_reference(&mut self, page: u32) -> bool {
        let pages = self.references.len();
        let count = &mut self.references[page as usize];
        assert!(*count > 0, "page {page} of {pages} is released twice");
        *count -= 1;
        *count == 0 && !self.is_moving(page)
    }

    /// References to the page, copies that touch it, and whether it is free.
    pub(super) fn state(&self, page: u32) -> (u32, u32, bool) {
        (self.references[page as usize], self.moving[page as usize], self.free.contains(&page))
    }

    /// One more copy touches the page.
    pub(super) fn begin_move(&mut self, page: u32) {
        self.moving[page as usize] += 1;
    }

    /// One copy less; whether the page is idle now.
    #[must_use]
    pub(super) fn end_move(&mut self, page: u32) -> bool {
        let count = &mut self.moving[page as usize];
        assert!(*count > 0, "page {page} has no copy that could end");
        *count -= 1;
        *count == 0 && self.references[page as usize] == 0
    }

    /// Gives an idle page back.
    pub(super) fn give(&mut self, page: u32) {
        let idle = self.references[page as usize] == 0 && self.moving[page as usize] == 0;
        assert!(idle && self.free.insert(page), "page {page} is given back in use, or twice");
    }
}
