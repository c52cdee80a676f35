//! Block tables: a session's pages by position.

use serde::{Deserialize, Serialize};

/// Where a session's pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Residency {
    /// On the device, ready for use.
    Device,
    /// In host memory.
    Host,
    /// Nowhere: not computed yet, or discarded. The tokens are computed again when they are wanted.
    Gone,
    /// Being copied to host memory, with pages at both ends.
    Leaving,
    /// Being copied to the device, with pages at both ends.
    Arriving,
}

/// A session's pages by position, on the device and in host memory. Only [`Pages`](crate::Pages) changes it. Dropping
/// a table does not free its pages: [`release`](crate::Pages::release) does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockTable {
    pub(crate) device: Vec<u32>,
    pub(crate) host: Vec<u32>,
    /// If it has pages at both ends: whether they are copied to the device.
    pub(crate) arriving: bool,
}

impl BlockTable {
    /// Where the pages are.
    pub fn residency(&self) -> Residency {
        match (self.device.is_empty(), self.host.is_empty()) {
            (true, true) => Residency::Gone,
            (false, true) => Residency::Device,
            (true, false) => Residency::Host,
            (false, false) if self.arriving => Residency::Arriving,
            (false, false) => Residency::Leaving,
        }
    }

    /// Pages on the device.
    pub fn device(&self) -> &[u32] {
        &self.device
    }

    /// Pages in host memory.
    pub fn host(&self) -> &[u32] {
        &self.host
    }
}

/// A copy of one device page to another, before a write to shared contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duplicate {
    /// The shared page.
    pub from: u32,
    /// The session's own page.
    pub to: u32,
}

/// A pair of pages, one in each memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePair {
    /// Page of the device.
    pub device: u32,
    /// Page of the host.
    pub host: u32,
}

/// The pages of a session's swap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageCopies {
    /// Pages to copy.
    pub copies: Vec<PagePair>,
    /// Pages that need no copy: the other side has their bytes.
    pub kept: Vec<PagePair>,
    /// On the way out: device pages that are empty afterwards.
    pub emptied: Vec<u32>,
}
