//! Prefix sharing: full pages by what they hold, so that a prompt that begins like an earlier one starts with its
//! keys and values.
//!
//! A page's name is a BLAKE3 hash of the salt, of all tokens before it (through the name of the page before) and of
//! its own tokens. So equal names mean equal keys and values, and one that was never told the salt of another finds
//! nothing of it: salts keep tenants, and sessions with interventions, apart. A page that nothing refers to stays as
//! cache until pages are short; the least recently used goes first, and of one sequence its last page.

#[cfg(test)]
mod tests;

use crate::{DataSegment, Sequence};
use std::collections::{BTreeMap, HashMap};

/// Name of a page's content.
type Hash = [u8; 32];

/// Keeps salts apart from everything else that is hashed.
const SALT: &str = "djinn-vmu 2026-11 salt of a KV prefix";

#[derive(Debug)]
struct Cached {
    hash: Hash,
    /// When it was let go, if nothing refers to it.
    idle: Option<u64>,
}

/// Which pages hold what.
#[derive(Debug, Default)]
pub(super) struct PrefixIndex {
    by_hash: HashMap<Hash, u32>,
    by_page: HashMap<u32, Cached>,
    /// Pages that nothing refers to, the longest idle first.
    idle: BTreeMap<u64, u32>,
    clock: u64,
}

impl PrefixIndex {
    /// Whether the page is found by its content.
    pub(super) fn holds(&self, page: u32) -> bool {
        self.by_page.contains_key(&page)
    }

    /// Pages that may be evicted.
    pub(super) fn idle(&self) -> u32 {
        self.idle.len() as u32
    }

    /// Nothing refers to the page any more; false if it is not cached.
    pub(super) fn make_idle(&mut self, page: u32) -> bool {
        let Some(cached) = self.by_page.get_mut(&page) else { return false };
        assert!(cached.idle.is_none(), "page {page} is idle already");
        cached.idle = Some(self.clock);
        self.idle.insert(self.clock, page);
        self.clock += 1;
        true
    }

    /// The page is referred to again.
    fn make_used(&mut self, page: u32) {
        if let Some(stamp) = self.by_page.get_mut(&page).and_then(|cached| cached.idle.take()) {
            self.idle.remove(&stamp);
        }
    }

    /// The page that was idle for longest, which is found no more.
    pub(super) fn evict(&mut self) -> Option<u32> {
        let (_, page) = self.idle.pop_first()?;
        self.forget(page);
        Some(page)
    }

    /// The page's content will change.
    pub(super) fn forget(&mut self, page: u32) {
        if let Some(cached) = self.by_page.remove(&page) {
            self.by_hash.remove(&cached.hash);
        }
    }

    /// # Panics
    /// If the index contradicts itself, or `is_idle`, which says whether nothing uses a page.
    pub(super) fn audit(&self, is_idle: impl Fn(u32) -> bool) {
        assert_eq!(self.by_hash.len(), self.by_page.len(), "each cached page has one name");
        for (hash, page) in &self.by_hash {
            assert_eq!(self.by_page.get(page).map(|cached| &cached.hash), Some(hash), "name of page {page}");
        }
        for (&page, cached) in &self.by_page {
            assert_eq!(cached.idle.is_some(), is_idle(page), "page {page} is cached, is it idle?");
        }
        let idle = self.by_page.iter().filter_map(|(&page, cached)| Some((cached.idle?, page)));
        assert_eq!(idle.collect::<BTreeMap<u64, u32>>(), self.idle, "idle pages by age");
    }

    fn insert(&mut self, hash: Hash, page: u32) {
        if !self.by_hash.contains_key(&hash) && !self.by_page.contains_key(&page) {
            self.by_hash.insert(hash, page);
            self.by_page.insert(page, Cached { hash, idle: None });
        }
    }
}

/// Names of the full pages of `tokens`, in order.
fn names<'a>(salt: &[u8], tokens: &'a [u32], page_tokens: u32) -> impl Iterator<Item = Hash> + use<'a> {
    let mut name = blake3::derive_key(SALT, salt);
    let mut bytes = Vec::with_capacity(page_tokens as usize * 4);
    tokens.chunks_exact(page_tokens as usize).map(move |page| {
        bytes.clear();
        bytes.extend(page.iter().flat_map(|token| token.to_le_bytes()));
        name = *blake3::Hasher::new().update(&name).update(&bytes).finalize().as_bytes();
        name
    })
}

impl DataSegment {
    /// A sequence that begins with the longest run of full pages that were [`publish`](Self::publish)ed under
    /// `salt` for the first of `tokens`: as long as [`Sequence::tokens`] says, empty if there is none. Leave out the
    /// last token of a prompt, which is run for its logits.
    ///
    /// The pages are read by work on the compute stream, as those who published them wrote them there.
    pub fn lookup(&mut self, salt: &[u8], tokens: &[u32]) -> Sequence {
        let size = self.layout.page_tokens;
        let found = names(salt, tokens, size).map_while(|name| self.prefix.by_hash.get(&name).copied());
        let pages: Vec<u32> = found.take(self.layout.table_width as usize).collect();
        for &page in &pages {
            self.prefix.make_used(page);
            self.pages.refer(page);
        }
        let tokens = pages.len() as u64 * size as u64;
        Sequence { pages, tokens }
    }

    /// Lets later [`lookup`](Self::lookup)s under `salt` find the full pages of `sequence`, which begins with
    /// `tokens`; the work that writes them is enqueued on the compute stream. A run that is cached already stays.
    /// Whatever else enters the keys and values (an intervention, say) must be in the salt.
    ///
    /// # Panics
    /// If the sequence has fewer tokens.
    pub fn publish(&mut self, salt: &[u8], tokens: &[u32], sequence: &Sequence) {
        let count = tokens.len();
        assert!(count as u64 <= sequence.tokens, "{count} tokens of a sequence of {}", sequence.tokens);
        for (name, &page) in names(salt, tokens, self.layout.page_tokens).zip(&sequence.pages) {
            self.prefix.insert(name, page);
        }
    }

    /// Pages that only the cache keeps: they count as free, and go when pages are short.
    pub fn cached_pages(&self) -> u32 {
        self.prefix.idle()
    }
}
