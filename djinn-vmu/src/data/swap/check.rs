//! Check mode: a checksum of every page before it leaves, compared with one after it is back.

use super::Move;
use crate::data::{Direction, KvLayout};
use crate::{Error, Result};
use djinn_device::args::Checksum;
use djinn_device::{Buffer, Device, Ops, Space, Span, Stream};

/// Bytes of a checksum, aligned.
pub(in crate::data) const SUM_BYTES: u64 = 16;

/// Checksums, by page.
#[derive(Debug)]
pub(super) struct Check {
    /// By device page, on the device: of the page's latest move. A page moves one way after the other.
    device: Buffer,
    /// By host page, in host memory: as it left.
    left: Buffer,
    /// By host page, in host memory: as it came back.
    back: Buffer,
}

impl Check {
    pub(super) fn new(
        layout: &KvLayout,
        alloc: &mut impl FnMut(Space, u64) -> Result<Buffer>,
    ) -> Result<Self> {
        let host_bytes = SUM_BYTES * layout.host_pages as u64;
        Ok(Check {
            device: alloc(Space::Device, SUM_BYTES * layout.pages as u64)?,
            left: alloc(Space::Host, host_bytes)?,
            back: alloc(Space::Host, host_bytes)?,
        })
    }

    /// Enqueues the checksums of device pages, and their way to the host.
    pub(super) fn sum<D: Ops>(
        &self,
        device: &D,
        stream: Stream,
        direction: Direction,
        moves: impl Iterator<Item = Move>,
        page: impl Fn(u32) -> Span,
    ) -> djinn_device::Result<()> {
        let to = match direction {
            Direction::Out => self.left,
            Direction::In => self.back,
        };
        for m in moves {
            let sum = self.device.slice(SUM_BYTES * m.device as u64, SUM_BYTES);
            let args = Checksum { src: page(m.device), out: sum.slice(0, 8) };
            args.check();
            device.checksum(stream, &args)?;
            device.copy(stream, sum, to.slice(SUM_BYTES * m.host as u64, SUM_BYTES))?;
        }
        Ok(())
    }

    /// Compares the checksums of pages that are back.
    pub(super) fn verify<D: Device>(&self, device: &D, sequence: u64, moves: &[Move]) -> Result<()> {
        for m in moves {
            let read = |buffer: Buffer| {
                let span = buffer.slice(SUM_BYTES * m.host as u64, 8);
                device.read_host(span, |sum| u64::from_le_bytes(sum.try_into().expect("eight bytes")))
            };
            let (expected, found) = (read(self.left), read(self.back));
            if expected != found {
                return Err(Error::KvCorrupt { sequence, page: m.device, expected, found });
            }
        }
        Ok(())
    }

    pub(super) fn free<D: Device>(self, device: &D) {
        [self.device, self.left, self.back].into_iter().for_each(|buffer| device.free(buffer));
    }
}
