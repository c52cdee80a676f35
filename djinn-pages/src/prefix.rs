//! Pages by contents, so that a prompt with a known beginning starts with its keys and values.

use std::collections::HashMap;

/// The name of a full page's contents: a BLAKE3 hash of the salt, of all tokens before the page (through the previous
/// page's name) and of its own tokens. So equal names mean equal keys and values. Pages with an unknown salt cannot be
/// found: salts keep tenants, and sessions with interventions, apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageName([u8; 32]);

impl PageName {
    /// Adds the names of the full pages of `tokens` that `names` lacks.
    ///
    /// Everything else that keys and values depend on must be part of the salt.
    pub fn extend(names: &mut Vec<PageName>, salt: &[u8], tokens: &[u32], page_tokens: u32) {
        /// Separates salts from everything else that is hashed.
        const SALT: &str = "djinn-vmu 2026-11 salt of a KV prefix";
        let mut name = names.last().map_or_else(|| blake3::derive_key(SALT, salt), |name| name.0);
        for page in tokens.chunks_exact(page_tokens as usize).skip(names.len()) {
            let mut hasher = blake3::Hasher::new();
            hasher.update(&name);
            for token in page {
                hasher.update(&token.to_le_bytes());
            }
            name = *hasher.finalize().as_bytes();
            names.push(PageName(name));
        }
    }
}

/// Pages by name, and names by page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PrefixIndex {
    by_name: HashMap<PageName, u32>,
    by_page: HashMap<u32, PageName>,
}

impl PrefixIndex {
    /// Whether the page can be found.
    pub(crate) fn holds(&self, page: u32) -> bool {
        self.by_page.contains_key(&page)
    }

    /// The pages of the longest known run of `names`.
    pub(crate) fn find(&self, names: &[PageName]) -> impl Iterator<Item = u32> {
        names.iter().map_while(|name| self.by_name.get(name).copied())
    }

    /// The page's content will change.
    pub(crate) fn forget(&mut self, page: u32) {
        if let Some(name) = self.by_page.remove(&page) {
            self.by_name.remove(&name);
        }
    }

    /// If the name has a page already, that one stays.
    pub(crate) fn insert(&mut self, name: PageName, page: u32) {
        if !self.by_name.contains_key(&name) && !self.by_page.contains_key(&page) {
            self.by_name.insert(name, page);
            self.by_page.insert(page, name);
        }
    }

    /// # Panics
    /// If the index contradicts itself.
    pub(crate) fn audit(&self) {
        assert_eq!(self.by_name.len(), self.by_page.len(), "each page that is found has one name");
        for (name, page) in &self.by_name {
            assert_eq!(self.by_page.get(page), Some(name), "name of page {page}");
        }
    }
}
