//! Allocation of offsets within one block: first fit over a free list that coalesces. Owns no bytes.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

/// Every allocation starts at a multiple of this.
pub(crate) const ALIGN: u64 = 256;

/// Which ranges of a block are taken.
///
/// Free ranges are kept by offset, never adjacent to one another; together with the live ones they cover the
/// block exactly.
#[derive(Debug)]
pub(crate) struct Arena {
    /// Offset to length, both multiples of [`ALIGN`].
    free: BTreeMap<u64, u64>,
    /// Offset to length.
    live: BTreeMap<u64, u64>,
}

impl Arena {
    /// A block of `len` bytes, rounded down to a multiple of [`ALIGN`].
    pub(crate) fn new(len: u64) -> Self {
        let len = len - len % ALIGN;
        Arena { free: (len > 0).then_some((0, len)).into_iter().collect(), live: BTreeMap::new() }
    }

    /// The offset of `len > 0` bytes: the lowest free range that holds them. `None` if there is none.
    pub(crate) fn alloc(&mut self, len: u64) -> Option<u64> {
        let size = len.checked_next_multiple_of(ALIGN).filter(|&size| size > 0)?;
        let (&offset, &room) = self.free.iter().find(|&(_, &room)| room >= size)?;
        self.free.remove(&offset);
        if room > size {
            self.free.insert(offset + size, room - size);
        }
        self.live.insert(offset, size);
        Some(offset)
    }

    /// Takes an allocation back.
    ///
    /// # Panics
    /// If nothing is allocated at `offset`.
    pub(crate) fn free(&mut self, offset: u64) {
        let size = self.live.remove(&offset);
        let (mut start, mut size) =
            (offset, size.unwrap_or_else(|| panic!("nothing lives at byte {offset}")));
        if let Some(after) = self.free.remove(&(start + size)) {
            size += after;
        }
        if let Some((&before, &len)) = self.free.range(..start).next_back()
            && before + len == start
        {
            start = before;
            size += len;
        }
        self.free.insert(start, size);
    }
}
