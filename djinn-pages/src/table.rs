//! Block tables: the pages of one session in order of position, and where they are.

use serde::{Deserialize, Serialize};

/// Where a session's pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Residency {
    /// On the device, ready for use.
    Device,
    /// In host memory.
    Host,
    /// Nowhere: not computed yet, or discarded. It is computed from the tokens when it is wanted.
    Gone,
    /// Being copied to host memory; it takes room at both ends.
    Leaving,
    /// Being copied to the device; it takes room at both ends.
    Arriving,
}

/// The pages of one session in order of position, on the device and in host memory. Only [`Pages`](crate::Pages)
/// changes it, and a table that is dropped leaves its pages held: give it to
/// [`release`](crate::Pages::release).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockTable {
    pub(crate) device: Vec<u32>,
    pub(crate) host: Vec<u32>,
    /// With pages at both ends: whether they are copied to the device.
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

/// One page of the device onto another: what a fork needs before it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duplicate {
    /// The shared page.
    pub from: u32,
    /// The session's own.
    pub to: u32,
}

/// A page's place in both memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePair {
    /// Page of the device.
    pub device: u32,
    /// Page of the host.
    pub host: u32,
}

/// What a session's way out or back takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageCopies {
    /// Pages to copy.
    pub copies: Vec<PagePair>,
    /// Pages that are there already: on the way out, the host has their bytes; on the way back, the device has.
    pub kept: Vec<PagePair>,
    /// On the way out: device pages that hold nothing afterwards.
    pub emptied: Vec<u32>,
}
