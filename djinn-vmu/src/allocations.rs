//! What a model holds on a device, with one owner.

use crate::Result;
use crate::text::{Hash, TextStore};
use djinn_device::{Buffer, Device, Space, Stream};

/// All that a model's segments allocated, and the streams that work on it: given back at once.
#[derive(Debug, Default)]
#[must_use = "what it holds stays allocated"]
pub struct Allocations {
    buffers: Vec<Buffer>,
    streams: Vec<Stream>,
    /// References to the store's blobs.
    shared: Vec<(Space, Hash)>,
}

impl Allocations {
    /// Allocates `bytes`.
    ///
    /// # Errors
    /// A device out of memory.
    pub fn alloc<D: Device>(&mut self, device: &D, space: Space, bytes: u64) -> Result<Buffer> {
        let buffer = device.alloc(space, bytes)?;
        self.buffers.push(buffer);
        Ok(buffer)
    }

    /// A stream that works on what is held.
    ///
    /// # Errors
    /// A device out of streams.
    pub(crate) fn stream<D: Device>(&mut self, device: &D) -> Result<Stream> {
        let stream = device.stream()?;
        self.streams.push(stream);
        Ok(stream)
    }

    /// Takes a reference to a blob of the store.
    pub(crate) fn share(&mut self, space: Space, hash: Hash) {
        self.shared.push((space, hash));
    }

    /// Frees one buffer, once all work on it is done.
    pub(crate) fn free_buffer<D: Device>(&mut self, device: &D, buffer: Buffer) {
        device.free(buffer);
        self.buffers.retain(|held| *held != buffer);
    }

    /// Waits for the streams, frees the buffers and gives the blobs back to the store. Work on streams of others must be
    /// done. Failures of the device that surface here were or will be returned by its next sync.
    pub fn free<D: Device>(self, device: &D, store: &mut TextStore) {
        for stream in self.streams {
            let _ = device.sync(stream);
        }
        self.buffers.into_iter().for_each(|buffer| device.free(buffer));
        self.shared.iter().for_each(|(space, hash)| store.release(device, *space, hash));
    }
}
