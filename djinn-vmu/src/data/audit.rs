//! Whether every count of pages agrees with who holds them.

use super::pager::{Arriving, Parked};
use super::pool::PagePool;
use super::{DataSegment, Sequence};

/// By page: references, and copies that touch it.
type Counts = Vec<[u32; 2]>;

impl DataSegment {
    /// Checks every count against the sequences that there are: references, free lists, prefix index, host pages,
    /// clean copies. For tests: it takes time in proportion to all pages.
    ///
    /// # Panics
    /// If a page is lost, free while it is used, held by no one, or counted wrong; the message names it.
    pub fn audit<'a>(
        &self,
        live: impl IntoIterator<Item = &'a Sequence>,
        parked: impl IntoIterator<Item = &'a Parked>,
        arriving: impl IntoIterator<Item = &'a Arriving>,
    ) {
        let mut device: Counts = vec![[0; 2]; self.layout.pages as usize];
        let mut host: Counts = vec![[0; 2]; self.layout.host_pages as usize];
        let arriving = arriving.into_iter().map(|one| (one.pages(), one.tokens()));
        for (pages, tokens) in live.into_iter().map(|one| (one.pages(), one.tokens())).chain(arriving) {
            let needed = tokens.div_ceil(self.layout.page_tokens as u64);
            assert_eq!(pages.len() as u64, needed, "pages of a sequence of {tokens} tokens");
            pages.iter().for_each(|&page| device[page as usize][0] += 1);
        }
        for one in parked {
            one.shared_pages().for_each(|page| device[page as usize][0] += 1);
            one.pages_on_host().for_each(|page| host[page as usize][0] += 1);
        }
        if let Some(swap) = &self.swap {
            for (page, copy) in swap.copies() {
                host[copy as usize][0] += 1;
                let (references, moving, _) = self.pages.state(page);
                assert!(references + moving > 0, "host page {copy} is a copy of page {page}, which is idle");
            }
            for m in swap.moves() {
                device[m.device as usize][1] += 1;
                host[m.host as usize][1] += 1;
            }
            compare("host page", &swap.host_pages, &host, |_| false);
            let held = host.iter().filter(|[references, _]| *references > 0).count();
            let held = held - swap.copies().count();
            let sum = held as u32 + swap.free_host() + swap.leaving_host();
            assert_eq!(sum, self.layout.host_pages, "{held} host pages are held");
        }
        compare("page", &self.pages, &device, |page| self.prefix.holds(page));
        self.prefix.audit(|page| device[page as usize] == [0; 2]);
        let held = device.iter().filter(|[references, _]| *references > 0).count();
        let sum = held as u32 + self.free_pages() + self.leaving_pages();
        assert_eq!(sum, self.layout.pages, "{held} pages are held");
    }
}

/// Pages are free if nothing uses them and they are not `cached`.
fn compare(what: &str, pool: &PagePool, found: &Counts, cached: impl Fn(u32) -> bool) {
    for (page, &[references, moving]) in (0..).zip(found) {
        let free = references == 0 && moving == 0 && !cached(page);
        let state = pool.state(page);
        assert_eq!(state, (references, moving, free), "{what} {page}: references, copies, free");
    }
}
