//! Handles to memory: buffers, and spans of them.

/// Where a buffer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// The device's own memory, under its cap.
    Device,
    /// Host memory with direct copies to and from the device (pinned, on a GPU).
    Host,
}

/// A handle to an allocation. Copying it copies the handle; the owner frees it with
/// [`Device::free`](crate::Device::free). Using a freed handle is a bug and panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buffer {
    pub(crate) id: u32,
    space: Space,
    len: u64,
}

impl Buffer {
    /// For devices: the handle of their allocation `id` of `len` bytes. No other allocation ever has the id.
    pub const fn from_raw(id: u32, space: Space, len: u64) -> Self {
        Buffer { id, space, len }
    }

    /// The device's name for the allocation.
    pub const fn id(self) -> u32 {
        self.id
    }

    /// Where the buffer lies.
    pub const fn space(self) -> Space {
        self.space
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "an allocation is never empty")]
    pub const fn len(self) -> u64 {
        self.len
    }

    /// The whole buffer.
    pub const fn span(self) -> Span {
        Span { buffer: self, offset: 0, len: self.len }
    }

    /// `len` bytes from `offset`.
    ///
    /// # Panics
    /// If they are not within the buffer.
    pub fn slice(self, offset: u64, len: u64) -> Span {
        self.span().slice(offset, len)
    }
}

/// A range of bytes of a buffer; always within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    buffer: Buffer,
    offset: u64,
    len: u64,
}

impl Span {
    /// The buffer.
    pub const fn buffer(self) -> Buffer {
        self.buffer
    }

    /// First byte in the buffer.
    pub const fn offset(self) -> u64 {
        self.offset
    }

    /// Bytes.
    pub const fn len(self) -> u64 {
        self.len
    }

    /// Whether the span has no bytes.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// `len` bytes from `offset`, counted from the span's start.
    ///
    /// # Panics
    /// If they are not within the span.
    pub fn slice(self, offset: u64, len: u64) -> Span {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.len),
            "bytes {offset}+{len} are outside a span of {} bytes of buffer {}",
            self.len,
            self.buffer.id
        );
        Span { buffer: self.buffer, offset: self.offset + offset, len }
    }

    /// Whether two spans share a byte.
    pub fn overlaps(self, other: Span) -> bool {
        self.buffer.id == other.buffer.id
            && self.offset < other.offset + other.len
            && other.offset < self.offset + self.len
    }
}

/// A device's allocations in one [`Space`], in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Allocated now.
    pub in_use: u64,
    /// The most that was ever allocated at once.
    pub peak: u64,
    /// The cap; `u64::MAX` if there is none.
    pub limit: u64,
}
