//! The data segment: KV caches in pages. It maps numbers of pages to bytes and copies them; who holds which page is
//! [`djinn_pages::Pages`]' business.

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

/// NaN in every element type: what a page holds before it is written, in check mode.
const POISON: u8 = 0xFF;

/// The bytes of all KV pages, on the device and in pinned host memory.
#[derive(Debug)]
pub struct DataSegment {
    layout: KvLayout,
    buffer: Buffer,
    table: Buffer,
    /// None without host pages.
    swap: Option<Swap>,
    /// None until pages are first given to a caller.
    staging: Option<Staging>,
}

impl DataSegment {
    /// Allocates the pages and the page table of `layout`, and its pinned host pages; all of it is `held`.
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

    /// The keys and values at `place`, as operations address them.
    pub fn at(&self, place: KvPlace) -> KvPages {
        let KvLayout { dtype, page_tokens, table_width, .. } = self.layout;
        KvPages {
            pages: self.buffer.span(),
            dtype,
            page_bytes: self.layout.page_bytes(),
            page_tokens,
            offset: place.first * u64::from(page_tokens) * dtype.bytes(),
            kv_heads: place.kv_heads,
            head_dim: place.head_dim,
            page_table: self.table.span(),
            table_width,
        }
    }

    /// Enqueues zeros on `compute` in pages that are about to be written by another than before: one fill for each run of
    /// neighbours.
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

    /// Enqueues on `compute` what pages need before they are written: the content of shared ones and, in check mode,
    /// NaN in `fresh` ones.
    ///
    /// # Errors
    /// A failure of the device, or a copy that it refused.
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

    /// Begins the way of a session's pages to pinned host memory, after all work enqueued so far on `compute`, or back
    /// from there; computation goes on beside it. `ticket` names it in its [`Transfer`], which tells its end, also
    /// where the device refused a copy. A session has one way at a time.
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
    ) -> Result<()> {
        let swap = self.swap.as_mut().expect("pages are swapped where the host has some");
        swap.begin(device, compute, direction, ticket, way)
    }

    /// Takes in which copies are done, enqueues what was held back, and gives the transfers that ended. A few
    /// microseconds; call it between steps, and before giving up for lack of pages.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn poll<D: Ops>(&mut self, device: &D) -> Result<Vec<Transfer>> {
        self.swap.as_mut().map_or(Ok(Vec::new()), |swap| swap.poll(device))
    }

    /// Blocks the host until all copies under way are done, then [`poll`](Self::poll)s: for a host with nothing else
    /// to do.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn settle<D: Ops>(&mut self, device: &D) -> Result<Vec<Transfer>> {
        self.swap.as_mut().map_or(Ok(Vec::new()), |swap| swap.settle(device))
    }

    /// Cuts and paces transfers in another way from now on; bytes do not depend on it.
    pub fn set_pace(&mut self, pace: SwapPace) {
        if let Some(swap) = &mut self.swap {
            swap.pace.rule = pace;
        }
    }

    /// Shares the link between swaps and the weights of a pass that is about to be enqueued, and that streams
    /// `streamed_bytes` of them on `weights`: no more than that is under way to the device at a time (some pieces at
    /// least), and what was enqueued before the pass before comes before this pass's weights. So neither starves,
    /// whatever order the device chooses, and the host need not look within a pass. Without streaming nothing is held
    /// back. [`poll`](Self::poll) enqueues the rest as room appears.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn share_link<D: Ops>(&mut self, device: &D, weights: Stream, streamed_bytes: u64) -> Result<()> {
        self.swap.as_mut().map_or(Ok(()), |swap| swap.share(device, weights, streamed_bytes))
    }

    /// What swapping did so far, of transfers that [`poll`](Self::poll) saw end.
    pub fn swap_stats(&self) -> SwapStats {
        self.swap.as_ref().map(|swap| swap.stats).unwrap_or_default()
    }
}
