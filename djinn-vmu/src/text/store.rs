//! Blobs by content: a chunk that two models (or two layers) share is kept once.

use djinn_device::{Buffer, Device, Space};
use std::collections::HashMap;

/// BLAKE3 of a chunk's bytes.
pub(crate) type Hash = [u8; 32];

#[derive(Debug)]
struct Blob {
    buffer: Buffer,
    references: u32,
    /// References of models on the device. Without any, a device blob has a handle and no bytes.
    present: u32,
}

/// The chunks of all models on one device, by content. Dropping the store frees nothing: models free their chunks with
/// their [`Allocations`](crate::Allocations).
#[derive(Debug, Default)]
pub struct TextStore {
    held: HashMap<(Space, Hash), Blob>,
    /// The bytes of host memory in use up to which resident chunks are copied there.
    copies_up_to: u64,
}

impl TextStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes held in `space`, each blob counted once.
    pub fn bytes(&self, space: Space) -> u64 {
        let there = self.held.iter().filter(|((s, _), blob)| *s == space && blob.present > 0);
        there.map(|(_, blob)| blob.buffer.len()).sum()
    }

    /// The blob with this content, with or without bytes.
    pub(crate) fn find(&self, space: Space, hash: &Hash) -> Option<Buffer> {
        self.held.get(&(space, *hash)).map(|blob| blob.buffer)
    }

    /// Keeps host copies of resident chunks as long as at most `bytes` of host memory are in use. A model that [comes
    /// back](crate::TextSegment::restore) is copied from them.
    pub fn keep_copies(&mut self, bytes: u64) {
        self.copies_up_to = bytes;
    }

    /// Host memory for a copy of `bytes` bytes, if copies are kept and there is room for it beside `spare` bytes.
    pub(crate) fn room_for_copy<D: Device>(&self, device: &D, bytes: u64, spare: u64) -> Option<Buffer> {
        let in_use = device.usage(Space::Host).in_use.saturating_add(spare);
        let fits = in_use.checked_add(bytes).is_some_and(|in_use| in_use <= self.copies_up_to);
        fits.then(|| device.alloc(Space::Host, bytes).ok()).flatten()
    }

    /// Whether host copies of resident chunks are kept.
    pub(crate) fn keeps_copies(&self) -> bool {
        self.copies_up_to > 0
    }

    /// Adds a reference to the blob with this content. Returns the blob, and whether it must be filled, since all
    /// models that have it were off the device.
    ///
    /// # Errors
    /// A device out of memory.
    pub(crate) fn share<D: Device>(
        &mut self,
        device: &D,
        space: Space,
        hash: &Hash,
    ) -> djinn_device::Result<Option<(Buffer, bool)>> {
        let Some(blob) = self.held.get_mut(&(space, *hash)) else { return Ok(None) };
        let is_empty = blob.present == 0;
        if is_empty {
            device.restore(blob.buffer)?;
        }
        blob.references += 1;
        blob.present += 1;
        Ok(Some((blob.buffer, is_empty)))
    }

    /// Adds a new blob with one reference.
    pub(crate) fn insert(&mut self, hash: Hash, buffer: Buffer) {
        let blob = Blob { buffer, references: 1, present: 1 };
        let old = self.held.insert((buffer.space(), hash), blob);
        assert!(old.is_none(), "buffer {} has the content of another", buffer.id());
    }

    /// A model with a reference leaves the device. The blob's bytes go with the last one.
    pub(crate) fn leave<D: Device>(&mut self, device: &D, hash: &Hash) {
        let blob = self.held.get_mut(&(Space::Device, *hash)).expect("a segment leaves what it loaded");
        blob.present -= 1;
        if blob.present == 0 {
            device.free(blob.buffer);
        }
    }

    /// A model with a reference comes back. Returns whether the blob must be filled.
    ///
    /// # Errors
    /// A device out of memory. The model is not back then.
    pub(crate) fn enter<D: Device>(&mut self, device: &D, hash: &Hash) -> djinn_device::Result<bool> {
        let blob =
            self.held.get_mut(&(Space::Device, *hash)).expect("a segment comes back to what it loaded");
        if blob.present == 0 {
            device.restore(blob.buffer)?;
        }
        blob.present += 1;
        Ok(blob.present == 1)
    }

    /// Bytes of these blobs that are not on the device.
    pub(crate) fn missing<'a>(&self, hashes: impl Iterator<Item = &'a Hash>) -> u64 {
        let mut seen = std::collections::HashSet::new();
        let blobs = hashes.filter(|hash| seen.insert(**hash)).map(|hash| &self.held[&(Space::Device, *hash)]);
        blobs.filter(|blob| blob.present == 0).map(|blob| blob.buffer.len()).sum()
    }

    /// Removes the reference of a model, which may be off the device. The last one frees the blob.
    pub(crate) fn release<D: Device>(&mut self, device: &D, space: Space, hash: &Hash, present: bool) {
        let blob = self.held.get_mut(&(space, *hash)).expect("a segment releases what it loaded");
        blob.references -= 1;
        if present {
            blob.present -= 1;
            if blob.present == 0 {
                device.free(blob.buffer);
            }
        }
        if blob.references == 0 {
            self.held.remove(&(space, *hash));
        }
    }
}
