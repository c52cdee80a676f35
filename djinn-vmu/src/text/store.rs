//! Content-addressed blobs: a chunk that two models (or two layers) share is kept once.

use djinn_device::{Buffer, Device, Space};
use std::collections::HashMap;

/// BLAKE3 of a chunk's bytes.
pub(crate) type Hash = [u8; 32];

#[derive(Debug)]
struct Blob {
    buffer: Buffer,
    references: u32,
}

/// The chunks of all models on one device, by content. Dropping it frees nothing: models give their
/// chunks back with their [`Allocations`](crate::Allocations).
#[derive(Debug, Default)]
pub struct TextStore {
    held: HashMap<(Space, Hash), Blob>,
}

impl TextStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes held in `space`, each blob counted once.
    pub fn bytes(&self, space: Space) -> u64 {
        self.held.iter().filter(|((s, _), _)| *s == space).map(|(_, h)| h.buffer.len()).sum()
    }

    /// The blob with this content, with one more reference to it.
    pub(crate) fn share(&mut self, space: Space, hash: &Hash) -> Option<Buffer> {
        let held = self.held.get_mut(&(space, *hash))?;
        held.references += 1;
        Some(held.buffer)
    }

    /// Takes a new blob in, with one reference.
    pub(crate) fn insert(&mut self, hash: Hash, buffer: Buffer) {
        let old = self.held.insert((buffer.space(), hash), Blob { buffer, references: 1 });
        assert!(old.is_none(), "buffer {} has the content of another", buffer.id());
    }

    /// Gives one reference back; the last one frees the blob.
    pub(crate) fn release<D: Device>(&mut self, device: &D, space: Space, hash: &Hash) {
        let held = self.held.get_mut(&(space, *hash)).expect("a segment releases what it loaded");
        held.references -= 1;
        if held.references == 0 {
            device.free(held.buffer);
            self.held.remove(&(space, *hash));
        }
    }
}
