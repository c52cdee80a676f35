//! Copies of pages between the device and a caller: one pinned buffer, allocated at first use, and one move at a time.
//!
//! Copies are enqueued on the compute stream: after all earlier work on the pages, and before all later work.

use super::DataSegment;
use crate::{Allocations, Result};
use djinn_device::{Buffer, Device, Event, Space, Span, Stream};

/// The most bytes of one move, unless a page has more.
const STAGED_BYTES: u64 = 4 << 20;

/// The pinned buffer, and the event at the end of the move that uses it.
#[derive(Debug)]
pub(super) struct Staging {
    buffer: Buffer,
    done: Event,
}

impl DataSegment {
    /// The most pages that one move takes.
    pub fn staged_pages(&self) -> u32 {
        u32::try_from(STAGED_BYTES / self.layout.page_bytes().max(1)).unwrap_or(u32::MAX).max(1)
    }

    /// Allocates the buffer for pages, unless there is one. `held` owns it.
    ///
    /// # Errors
    /// A device out of memory or events.
    pub fn open_staging<D: Device>(&mut self, device: &D, held: &mut Allocations) -> Result<()> {
        if self.staging.is_none() {
            let bytes = self.layout.page_bytes().saturating_mul(self.staged_pages().into());
            let done = held.event(device)?;
            let buffer =
                held.alloc(device, Space::Host, bytes).inspect_err(|_| held.free_event(device, done))?;
            self.staging = Some(Staging { buffer, done });
        }
        Ok(())
    }

    /// Enqueues copies of pages in `space` into the buffer. The pages must not be in a swap. They are there once the
    /// move [is done](Self::is_staged).
    ///
    /// # Errors
    /// A failure of the device. A refused copy; nothing is under way then.
    ///
    /// # Panics
    /// Without a buffer, or if the pages exceed it.
    pub fn begin_fetch<D: Device>(
        &mut self,
        device: &D,
        compute: Stream,
        space: Space,
        pages: &[u32],
    ) -> Result<()> {
        self.stage(device, compute, space, pages, |page, staged| device.copy(compute, page, staged))
    }

    /// Writes `bytes`, the contents of `pages`, through the buffer to pages of the device.
    ///
    /// # Errors
    /// As [`begin_fetch`](Self::begin_fetch).
    ///
    /// # Panics
    /// As [`begin_fetch`](Self::begin_fetch), or if the number of bytes is not that of the pages.
    pub fn begin_store<D: Device>(
        &mut self,
        device: &D,
        compute: Stream,
        pages: &[u32],
        bytes: &[u8],
    ) -> Result<()> {
        device.write_host(self.staged(pages.len()), |staged| staged.copy_from_slice(bytes));
        self.stage(device, compute, Space::Device, pages, |page, staged| device.copy(compute, staged, page))
    }

    /// Whether the latest move is done.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn is_staged<D: Device>(&self, device: &D) -> Result<bool> {
        Ok(self.staging.as_ref().map_or(Ok(true), |staging| device.is_done(staging.done))?)
    }

    /// The bytes of the pages that were fetched.
    pub fn fetched<D: Device>(&self, device: &D, pages: usize) -> Vec<u8> {
        device.read_host(self.staged(pages), <[u8]>::to_vec)
    }

    fn staged(&self, pages: usize) -> Span {
        let staging = self.staging.as_ref().expect("the buffer is made before it is used");
        staging.buffer.slice(0, pages as u64 * self.layout.page_bytes())
    }

    /// Does `copy` for each page and its place in the buffer. Later swaps into these pages wait for it.
    fn stage<D: Device>(
        &self,
        device: &D,
        compute: Stream,
        space: Space,
        pages: &[u32],
        copy: impl Fn(Span, Span) -> djinn_device::Result<()>,
    ) -> Result<()> {
        let (bytes, staged) = (self.layout.page_bytes(), self.staged(pages.len()));
        let staging = self.staging.as_ref().expect("just used");
        let enqueue = || {
            for (at, &page) in (0..).zip(pages) {
                let page = match (space, &self.swap) {
                    (Space::Host, Some(swap)) => swap.host_page(page),
                    _ => self.page(page),
                };
                copy(page, staged.slice(at * bytes, bytes))?;
            }
            if let Some(swap) = &self.swap {
                swap.grown(device, compute)?;
            }
            device.record(compute, staging.done)
        };
        if let Err(error) = enqueue() {
            // Copies enqueued before the refusal use the buffer.
            device.sync(compute)?;
            return Err(error.into());
        }
        Ok(())
    }
}
