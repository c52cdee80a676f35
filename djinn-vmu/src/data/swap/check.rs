//! Check mode: a checksum of every page before it leaves. It is compared with one of the device's page later: after
//! the page is back, or when it leaves again without a copy.

use crate::data::{KvLayout, SwapFault};
use crate::{Allocations, Result};
use djinn_device::args::Checksum;
use djinn_device::{Buffer, Device, Ops, Space, Span, Stream};
use djinn_pages::PagePair;

/// Bytes of a checksum, aligned.
pub(in crate::data) const SUM_BYTES: u64 = 16;

/// Checksums, by page.
#[derive(Debug)]
pub(super) struct Check {
    /// By device page, on the device: the latest checksum.
    device: Buffer,
    /// By host page, in host memory: the checksum of what left.
    left: Buffer,
    /// By device page, in host memory: the checksum of what is on the device.
    here: Buffer,
}

impl Check {
    pub(super) fn new<D: Device>(device: &D, layout: &KvLayout, held: &mut Allocations) -> Result<Self> {
        let [pages, host_pages] = [layout.pages, layout.host_pages].map(|pages| SUM_BYTES * pages as u64);
        let mut alloc = |space, bytes| held.alloc(device, space, bytes);
        Ok(Check {
            device: alloc(Space::Device, pages)?,
            left: alloc(Space::Host, host_pages)?,
            here: alloc(Space::Host, pages)?,
        })
    }

    /// Enqueues the checksums of pages that are about to be copied to the host.
    pub(super) fn sum_leaving<D: Ops>(
        &self,
        device: &D,
        stream: Stream,
        pairs: &[PagePair],
        page: impl Fn(u32) -> Span,
    ) -> djinn_device::Result<()> {
        let to = |pair: &PagePair| sum_of(self.left, pair.host);
        pairs.iter().try_for_each(|pair| self.sum(device, stream, pair.device, page(pair.device), to(pair)))
    }

    /// Enqueues the checksums of pages as they are on the device.
    pub(super) fn sum_on_device<D: Ops>(
        &self,
        device: &D,
        stream: Stream,
        pairs: &[PagePair],
        page: impl Fn(u32) -> Span,
    ) -> djinn_device::Result<()> {
        let to = |pair: &PagePair| sum_of(self.here, pair.device);
        pairs.iter().try_for_each(|pair| self.sum(device, stream, pair.device, page(pair.device), to(pair)))
    }

    fn sum<D: Ops>(
        &self,
        device: &D,
        stream: Stream,
        page: u32,
        src: Span,
        to: Span,
    ) -> djinn_device::Result<()> {
        let sum = sum_of(self.device, page);
        let args = Checksum { src, out: sum.slice(0, 8) };
        args.check();
        device.checksum(stream, &args)?;
        device.copy(stream, sum, to)
    }

    /// Compares the checksums of pages on the device with those of what left.
    pub(super) fn compare<D: Device>(&self, device: &D, pairs: &[PagePair]) -> Option<SwapFault> {
        let read = |span: Span| {
            device.read_host(span.slice(0, 8), |sum| u64::from_le_bytes(sum.try_into().expect("eight bytes")))
        };
        pairs.iter().find_map(|pair| {
            let expected = read(sum_of(self.left, pair.host));
            let found = read(sum_of(self.here, pair.device));
            (expected != found).then_some(SwapFault::Corrupt { page: pair.device, expected, found })
        })
    }
}

fn sum_of(sums: Buffer, page: u32) -> Span {
    sums.slice(SUM_BYTES * page as u64, SUM_BYTES)
}
