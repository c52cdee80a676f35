//! The data segment: the pages of the KV cache. It maps page numbers to bytes and copies pages; [`djinn_pages::Pages`]
//! knows their holders.

mod layout;
mod staging;
mod swap;
#[cfg(test)]
mod tests;
mod transfer;

pub use layout::KvLayout;
pub use swap::{SWAP_PIECE_BYTES, SwapPace};
pub use transfer::{Direction, Moved, SwapFault, SwapStats, Transfer};

use crate::{Allocations, Result};
use djinn_device::{Buffer, Device, Ops, Space, Span, Stream, args::KvPages};
use djinn_pages::{Duplicate, PageCopies};
use djinn_srg::KvPlace;
use staging::Staging;
use swap::Swap;

/// NaN in every element type: in check mode, the contents of unwritten pages.
const POISON: u8 = 0xFF;

/// The bytes of all KV pages, on the device and in pinned host memory.
#[derive(Debug)]
pub struct DataSegment {
    layout: KvLayout,
    buffer: Buffer,
    table: Buffer,
    /// `None` without host pages.
    swap: Option<Swap>,
    /// `None` until a caller first reads or writes pages.
    staging: Option<Staging>,
}

impl DataSegment {
    /// Allocates the page table, the device's pages and the pinned host pages of `layout`. `held` owns them.
    ///
    /// # Errors
    /// A device out of memory or streams.
    pub fn new<D: Device>(device: &D, layout: KvLayout, held: &mut Allocations) -> Result<Self> {
        let buffer = held.alloc(device, Space::Device, layout.bytes())?;
        let table = held.alloc(device, Space::Device, layout.table_bytes())?;
        let swap = (layout.host_pages > 0).then(|| Swap::new(device, &layout, buffer, held));
        Ok(DataSegment { layout, buffer, table, swap: swap.transpose()?, staging: None })
    }

    /// The layout.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// The page table on the device, u32 `[sequences, table_width]`.
    pub fn table(&self) -> Span {
        self.table.span()
    }

    /// The bytes of a page.
    pub fn page(&self, page: u32) -> Span {
        let bytes = self.layout.page_bytes();
        self.buffer.slice(page as u64 * bytes, bytes)
    }

    /// The keys and values at `place`, as arguments of operations.
    pub fn at(&self, place: KvPlace) -> KvPages {
        let KvLayout { dtype, page_tokens, table_width, .. } = self.layout;
        KvPages {
            pages: self.buffer.span(),
            dtype,
            page_bytes: self.layout.page_bytes(),
            page_tokens,
            offset: place.first_byte(dtype) * u64::from(page_tokens),
            kv_heads: place.kv_heads,
            head_dim: place.head_dim,
            page_table: self.table.span(),
            table_width,
        }
    }

    /// Enqueues zeros on `compute` in pages that get a new tenant, with one fill for each run of neighbours.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn clear<D: Device>(&self, device: &D, compute: Stream, pages: &[u32]) -> Result<()> {
        if pages.is_empty() {
            return Ok(());
        }
        let (bytes, mut pages) = (self.layout.page_bytes(), pages.to_vec());
        pages.sort_unstable();
        for run in pages.chunk_by(|before, next| before + 1 == *next) {
            let span = self.buffer.slice(u64::from(run[0]) * bytes, run.len() as u64 * bytes);
            device.fill(compute, span, 0)?;
        }
        if let Some(swap) = &self.swap {
            swap.grown(device, compute)?;
        }
        Ok(())
    }

    /// Enqueues on `compute` the preparation of pages that will be written: copies of shared ones and, in check mode,
    /// NaN in `fresh` ones.
    ///
    /// # Errors
    /// A failure of the device, or a refused copy.
    pub fn prepare<D: Device>(
        &self,
        device: &D,
        compute: Stream,
        fresh: &[u32],
        duplicates: &[Duplicate],
    ) -> Result<()> {
        if duplicates.is_empty() && (!self.layout.check || fresh.is_empty()) {
            return Ok(());
        }
        for &page in fresh.iter().filter(|_| self.layout.check) {
            device.fill(compute, self.page(page), POISON)?;
        }
        for copy in duplicates {
            device.copy(compute, self.page(copy.from), self.page(copy.to))?;
        }
        if let Some(swap) = &self.swap {
            swap.grown(device, compute)?;
        }
        Ok(())
    }

    /// Begins to copy a session's pages to pinned host memory, behind all work enqueued so far on `compute`, or back.
    /// Computation goes on meanwhile. A [`Transfer`] with the `ticket` reports the end, also if the device refused a
    /// copy. A session has one swap at a time. `held` owns the events.
    ///
    /// # Errors
    /// A failure of the device.
    ///
    /// # Panics
    /// If the layout has no host pages.
    pub fn swap<D: Ops>(
        &mut self,
        device: &D,
        compute: Stream,
        direction: Direction,
        ticket: u64,
        way: &PageCopies,
        held: &mut Allocations,
    ) -> Result<()> {
        let swap = self.swap.as_mut().expect("pages are swapped where the host has some");
        swap.begin(device, compute, direction, ticket, way, held)
    }

    /// Returns the transfers that ended, and enqueues copies that were held back. It takes a few microseconds: call it
    /// between steps, and before giving up for lack of pages.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn poll<D: Ops>(&mut self, device: &D) -> Result<Vec<Transfer>> {
        self.swap.as_mut().map_or(Ok(Vec::new()), |swap| swap.poll(device))
    }

    /// Waits until all copies under way are done, then [`poll`](Self::poll)s.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn settle<D: Ops>(&mut self, device: &D) -> Result<Vec<Transfer>> {
        self.swap.as_mut().map_or(Ok(Vec::new()), |swap| swap.settle(device))
    }

    /// Changes how transfers are cut and paced. Their bytes do not depend on it.
    pub fn set_pace(&mut self, pace: SwapPace) {
        if let Some(swap) = &mut self.swap {
            swap.pace.rule = pace;
        }
    }

    /// Shares the link between swaps and the weights of the next pass, which streams `streamed_bytes` on `weights`. At
    /// most that many swap bytes (or a few pieces) are under way to the device at a time, and this pass's weights wait
    /// for the swaps enqueued before the previous pass. So neither starves, whatever order the device chooses, and the
    /// host need not poll within a pass. Without streaming nothing is held back. [`poll`](Self::poll) enqueues the
    /// rest.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn share_link<D: Ops>(&mut self, device: &D, weights: Stream, streamed_bytes: u64) -> Result<()> {
        self.swap.as_mut().map_or(Ok(()), |swap| swap.share(device, weights, streamed_bytes))
    }

    /// Statistics of the transfers that [`poll`](Self::poll) returned.
    pub fn swap_stats(&self) -> SwapStats {
        self.swap.as_ref().map(|swap| swap.stats).unwrap_or_default()
    }
}
