//! A buffer that every pass writes on the device and the host reads after it.

use crate::Result;
use djinn_device::{Buffer, Device, Space, Stream};

/// The buffer, and where it is copied to.
#[derive(Debug)]
pub(crate) struct Mirror {
    pub(crate) device: Buffer,
    host: Buffer,
}

impl Mirror {
    /// Of `bytes` bytes, in both spaces.
    pub(crate) fn new<D: Device>(device: &D, bytes: u64) -> Result<Self> {
        let buffer = device.alloc(Space::Device, bytes)?;
        match device.alloc(Space::Host, bytes) {
            Ok(host) => Ok(Mirror { device: buffer, host }),
            Err(error) => {
                device.free(buffer);
                Err(error.into())
            }
        }
    }

    /// Enqueues the copy to the host.
    pub(crate) fn enqueue<D: Device>(&self, device: &D, stream: Stream) -> Result<()> {
        Ok(device.copy_promptly(stream, self.device.span(), self.host.span())?)
    }

    /// The host's bytes, once the copy is done.
    pub(crate) fn read<D: Device, T>(&self, device: &D, read: impl FnOnce(&[u8]) -> T) -> T {
        device.read_host(self.host.span(), read)
    }

    pub(crate) fn free<D: Device>(self, device: &D) {
        device.free(self.device);
        device.free(self.host);
    }
}
