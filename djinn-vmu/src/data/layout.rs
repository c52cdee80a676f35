//! Sizes of the data segment.

use super::swap::SUM_BYTES;
use djinn_device::DType;

/// The layout of keys and values. A page holds a run of tokens for *all* layers, contiguously, so that moving a page
/// is one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Bytes of one token's keys and values. See [`KvPlan`](djinn_srg::KvPlan).
    pub token_bytes: u64,
    /// Their element type.
    pub dtype: DType,
    /// Tokens of a page.
    pub page_tokens: u32,
    /// Pages of the segment.
    pub pages: u32,
    /// Sequences that a step may touch: rows of the page table.
    pub sequences: u32,
    /// Pages of the longest sequence: columns of the page table.
    pub table_width: u32,
    /// Pinned pages in host memory for swapped sequences; may be 0.
    pub host_pages: u32,
    /// Check mode: checksums of swapped pages, NaN in empty pages.
    pub check: bool,
}

impl KvLayout {
    /// Bytes of one page. Saturates instead of overflowing.
    pub fn page_bytes(&self) -> u64 {
        self.token_bytes.saturating_mul(self.page_tokens as u64)
    }

    /// Bytes of all pages. Saturates instead of overflowing.
    pub fn bytes(&self) -> u64 {
        self.page_bytes().saturating_mul(self.pages as u64)
    }

    /// Bytes of the segment on the device: pages, page table, checksums in check mode. Saturates.
    pub fn device_bytes(&self) -> u64 {
        let sums = if self.checks_swaps() { SUM_BYTES * self.pages as u64 } else { 0 };
        self.bytes().saturating_add(self.table_bytes()).saturating_add(sums)
    }

    /// Pinned bytes of the segment in host memory: pages, checksums in check mode. Saturates.
    pub fn host_bytes(&self) -> u64 {
        let sums = if self.checks_swaps() { SUM_BYTES } else { 0 };
        let bytes = self.page_bytes().saturating_add(sums).saturating_mul(self.host_pages as u64);
        bytes.saturating_add(sums * self.pages as u64)
    }

    fn checks_swaps(&self) -> bool {
        self.check && self.host_pages > 0
    }

    /// Bytes of the page table on the device.
    pub fn table_bytes(&self) -> u64 {
        (self.sequences as u64).saturating_mul(self.table_width as u64).saturating_mul(4)
    }
}
