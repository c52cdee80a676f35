//! Device memory that every pass writes, with a host copy that is read after it.

use crate::{Allocations, Result};
use djinn_device::{Device, Space, Span, Stream};

/// The device's bytes, and the host's copy.
#[derive(Debug)]
pub(crate) struct Mirror {
    pub(crate) device: Span,
    host: Span,
}

impl Mirror {
    /// `bytes` bytes in both spaces.
    pub(crate) fn new<D: Device>(device: &D, held: &mut Allocations, bytes: u64) -> Result<Self> {
        let mut alloc = |space| held.alloc(device, space, bytes);
        Ok(Mirror { device: alloc(Space::Device)?.span(), host: alloc(Space::Host)?.span() })
    }

    /// Enqueues the copy to the host.
    pub(crate) fn enqueue<D: Device>(&self, device: &D, stream: Stream) -> Result<()> {
        Ok(device.copy_promptly(stream, self.device, self.host)?)
    }

    /// The host's bytes, once the copy is done.
    pub(crate) fn read<D: Device, T>(&self, device: &D, read: impl FnOnce(&[u8]) -> T) -> T {
        device.read_host(self.host, read)
    }
}
