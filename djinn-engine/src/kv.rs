//! KV pages of a scheduler's sessions, and of sequences without a scheduler.

use crate::{Engine, Error, Result, Runtime, Sequence};
use djinn_device::{Ops, Space};
use djinn_pages::{Duplicate, PageCopies, Pages};
use djinn_srg::KvPlace;
use djinn_vmu::{DataSegment, Direction, SwapStats, Transfer};

impl<D: Ops> Engine<D> {
    /// Shortens a sequence to its first `tokens` tokens, if it has more.
    ///
    /// # Panics
    /// If its pages are being copied.
    pub fn truncate(&self, pages: &mut Pages, sequence: &mut Sequence, tokens: u64) {
        sequence.truncate(pages, tokens, u64::from(self.plan().kv.page_tokens));
    }

    /// Begins to swap a sequence to pinned host memory or back, behind all work enqueued so far. Its [`Transfer`] has
    /// the `ticket`; pass it to [`Sequence::end_swap`]. Returns false if there is no room.
    ///
    /// # Errors
    /// A failure of the device, after which the engine runs no further step.
    ///
    /// # Panics
    /// If the sequence has no tokens, or is not where the swap begins.
    pub fn begin_swap(
        &mut self,
        pages: &mut Pages,
        direction: Direction,
        ticket: u64,
        sequence: &mut Sequence,
    ) -> Result<bool> {
        let held = sequence.tokens.div_ceil(u64::from(self.plan().kv.page_tokens)) as u32;
        let table = &mut sequence.table;
        let way = match direction {
            Direction::Out if pages.host_need(table, held) > pages.host_free() => return Ok(false),
            Direction::In if held > pages.device_free() => return Ok(false),
            Direction::Out => pages.swap_out(table, held),
            Direction::In => pages.swap_in(table, held),
        };
        self.swap(direction, ticket, &way)?;
        Ok(true)
    }

    /// Enqueues the preparation of pages that will be written. See [`DataSegment::prepare`].
    ///
    /// # Errors
    /// A failure of the device, after which the engine runs no further step.
    pub fn prepare(&mut self, fresh: &[u32], duplicates: &[Duplicate]) -> Result<()> {
        let compute = self.runtime.compute;
        self.on_data(|data, device| data.prepare(device, compute, fresh, duplicates))
    }

    /// Enqueues zeros in pages that get a new tenant. See [`DataSegment::clear`].
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub fn clear(&mut self, pages: &[u32]) -> Result<()> {
        let compute = self.runtime.compute;
        self.on_data(|data, device| data.clear(device, compute, pages))
    }

    /// Begins to swap a session's pages to pinned host memory or back. See [`DataSegment::swap`].
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub fn swap(&mut self, direction: Direction, ticket: u64, way: &PageCopies) -> Result<()> {
        let outcome = self.parts.swap(&self.runtime, direction, ticket, way).map_err(Error::from);
        self.stop_on(outcome)
    }

    /// Returns the transfers that ended, and enqueues copies that were held back. It takes a few microseconds; call it
    /// between steps.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub fn poll_swaps(&mut self) -> Result<Vec<Transfer>> {
        self.on_data(|data, device| data.poll(device))
    }

    /// Waits for all copies, then does what [`poll_swaps`](Self::poll_swaps) does.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub fn settle_swaps(&mut self) -> Result<Vec<Transfer>> {
        self.on_data(|data, device| data.settle(device))
    }

    /// The most pages that [`begin_fetch`](Self::begin_fetch) and [`begin_store`](Self::begin_store) take.
    pub(crate) fn staged_pages(&self) -> u32 {
        self.parts.data.staged_pages()
    }

    /// Begins to read pages of one memory. See [`DataSegment::begin_fetch`]. The inner error is a refusal, after which the
    /// engine goes on.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub(crate) fn begin_fetch(&mut self, space: Space, pages: &[u32]) -> Result<Result<()>> {
        let compute = self.runtime.compute;
        self.stage(|data, device| data.begin_fetch(device, compute, space, pages))
    }

    /// Begins to write pages of the device. See [`DataSegment::begin_store`].
    ///
    /// # Errors
    /// As [`begin_fetch`](Self::begin_fetch).
    pub(crate) fn begin_store(&mut self, pages: &[u32], bytes: &[u8]) -> Result<Result<()>> {
        let compute = self.runtime.compute;
        self.stage(|data, device| data.begin_store(device, compute, pages, bytes))
    }

    fn stage(
        &mut self,
        work: impl FnOnce(&mut DataSegment, &D) -> djinn_vmu::Result<()>,
    ) -> Result<Result<()>> {
        use djinn_device::Error::{OutOfMemory, Resource};
        let staged = self
            .parts
            .open_staging(&self.runtime.device)
            .and_then(|()| work(&mut self.parts.data, &self.runtime.device));
        match staged {
            Err(djinn_vmu::Error::Device(error @ (OutOfMemory { .. } | Resource { .. }))) => {
                Ok(Err(error.into()))
            }
            staged => self.stop_on(staged.map_err(Error::from)).map(Ok),
        }
    }

    /// Whether the latest of these copies is done.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub(crate) fn is_staged(&mut self) -> Result<bool> {
        self.on_data(|data, device| data.is_staged(device))
    }

    /// The bytes of the pages that were read.
    pub(crate) fn fetched(&self, pages: usize) -> Vec<u8> {
        self.parts.data.fetched(&self.runtime.device, pages)
    }

    /// Works on the pages' bytes. After a failure no step runs any more.
    fn on_data<T>(&mut self, work: impl FnOnce(&mut DataSegment, &D) -> djinn_vmu::Result<T>) -> Result<T> {
        let outcome = work(&mut self.parts.data, &self.runtime.device).map_err(Error::from);
        self.stop_on(outcome)
    }

    /// A sequence's keys and values, page by page `[value][k|v][kv head][token][head dim]` in the cache's element type. If
    /// the type has scales, those of a head's tokens follow them. Positions beyond the sequence's tokens are left out.
    ///
    /// # Errors
    /// A device that is out of memory or has failed.
    pub fn kv_bytes(&self, sequence: &Sequence) -> Result<Vec<u8>> {
        let data = &self.parts.data;
        let layout = data.layout();
        let slots = layout.page_tokens as usize;
        let page_bytes = layout.page_bytes();
        let Runtime { device, compute, .. } = &*self.runtime;
        let host = device.alloc(Space::Host, page_bytes)?;
        let mut bytes = Vec::new();
        let mut left = sequence.tokens() as usize;
        let read = (|| {
            for &page in sequence.pages() {
                device.copy(*compute, data.page(page), host.span())?;
                device.sync(*compute)?;
                let used = left.min(slots);
                device.read_host(host.span(), |mut page| {
                    for KvPlace { kv_heads, head_dim, .. } in self.parts.plan.kv_places.places() {
                        let row = head_dim as usize * layout.dtype.bytes() as usize;
                        let scale = layout.dtype.scale_bytes() as usize;
                        let (value, rest) = page.split_at(2 * kv_heads as usize * slots * (row + scale));
                        for plane in value.chunks_exact(slots * (row + scale)) {
                            let (elements, scales) = plane.split_at(slots * row);
                            bytes.extend_from_slice(&elements[..used * row]);
                            bytes.extend_from_slice(&scales[..used * scale]);
                        }
                        page = rest;
                    }
                });
                left -= used;
            }
            Ok(())
        })();
        device.free(host);
        read.map(|()| bytes)
    }

    /// Statistics of the swaps that ended.
    pub fn swap_stats(&self) -> SwapStats {
        self.parts.data.swap_stats()
    }
}
