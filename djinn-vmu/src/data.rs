//! The data segment: KV caches in pages, private to sequences, shared by reference count.

#[cfg(test)]
mod tests;

use crate::Result;
use djinn_device::{Buffer, DType, Device, Space, Span, Stream, args::KvPages};
use djinn_srg::KvShape;

/// How keys and values are laid out: a page holds a run of tokens for *all* layers, contiguous, so that
/// moving a page is one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Shape of one token's keys and values.
    pub shape: KvShape,
    /// Their element type.
    pub dtype: DType,
    /// Tokens of a page.
    pub page_tokens: u32,
    /// Pages of the segment.
    pub pages: u32,
    /// Sequences that a step may touch: rows of the page table.
    pub sequences: u32,
    /// Pages of the longest sequence: columns of the page table.
    pub table_width: u32,
}

impl KvLayout {
    /// Bytes of one page. Saturates instead of overflowing.
    pub fn page_bytes(&self) -> u64 {
        self.shape.bytes_per_token(self.dtype).saturating_mul(self.page_tokens as u64)
    }

    /// Bytes of all pages. Saturates instead of overflowing.
    pub fn bytes(&self) -> u64 {
        self.page_bytes().saturating_mul(self.pages as u64)
    }

    /// Bytes of the page table on the device.
    pub fn table_bytes(&self) -> u64 {
        (self.sequences as u64).saturating_mul(self.table_width as u64).saturating_mul(4)
    }
}

/// The KV cache of one sequence: its pages in order of position.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    pages: Vec<u32>,
    tokens: u64,
}

impl Sequence {
    /// Tokens whose keys and values are, or are about to be, in the pages.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Pages in order of position.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }
}

/// Too few pages are free, or the sequence would be longer than the page table is wide: an outcome, not an
/// error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagesFull {
    /// Pages asked for.
    pub requested: u32,
    /// Pages free.
    pub free: u32,
}

/// All KV pages of a device, and who refers to them.
#[derive(Debug)]
pub struct DataSegment {
    layout: KvLayout,
    buffer: Buffer,
    table: Buffer,
    /// Sequences that refer to each page; 0 means free.
    references: Vec<u32>,
    free: Vec<u32>,
}

impl DataSegment {
    /// Allocates the pages and the page table of `layout`.
    pub fn new<D: Device>(device: &D, layout: KvLayout) -> Result<Self> {
        let buffer = device.alloc(Space::Device, layout.bytes())?;
        let table = match device.alloc(Space::Device, layout.table_bytes()) {
            Ok(table) => table,
            Err(error) => {
                device.free(buffer);
                return Err(error.into());
            }
        };
        let free = (0..layout.pages).rev().collect();
        Ok(DataSegment { layout, buffer, table, references: vec![0; layout.pages as usize], free })
    }

    /// The layout.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Pages that nothing refers to.
    pub fn free_pages(&self) -> u32 {
        self.free.len() as u32
    }

    /// The page table on the device, u32 `[sequences, table_width]`.
    pub fn table(&self) -> Span {
        self.table.span()
    }

    /// The bytes of a page: what a swap moves.
    pub fn page(&self, page: u32) -> Span {
        let bytes = self.layout.page_bytes();
        self.buffer.slice(page as u64 * bytes, bytes)
    }

    /// One layer's keys and values, as operations address them.
    pub fn layer(&self, layer: u32) -> KvPages {
        let KvLayout { shape, dtype, page_tokens, table_width, .. } = self.layout;
        KvPages {
            pages: self.buffer.span(),
            dtype,
            page_bytes: self.layout.page_bytes(),
            page_tokens,
            layer,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            page_table: self.table.span(),
            table_width,
        }
    }

    /// Makes room for `tokens` more tokens of `sequence`, all or nothing. A shared last page that will be
    /// written is copied first, on `stream`.
    pub fn grow<D: Device>(
        &mut self,
        device: &D,
        stream: Stream,
        sequence: &mut Sequence,
        tokens: u64,
    ) -> Result<std::result::Result<(), PagesFull>> {
        if tokens == 0 {
            return Ok(Ok(()));
        }
        let size = self.layout.page_tokens as u64;
        let pages = (sequence.tokens + tokens).div_ceil(size);
        let shared_tail = (!sequence.tokens.is_multiple_of(size))
            .then(|| *sequence.pages.last().expect("a partial page is a page"))
            .filter(|&page| self.references[page as usize] > 1);
        let requested = pages - sequence.pages.len() as u64 + shared_tail.is_some() as u64;
        if pages > self.layout.table_width as u64 || requested > self.free.len() as u64 {
            let requested = requested.min(u32::MAX as u64) as u32;
            return Ok(Err(PagesFull { requested, free: self.free_pages() }));
        }
        if let Some(shared) = shared_tail {
            let own = self.take();
            device.copy(stream, self.page(shared), self.page(own))?;
            *sequence.pages.last_mut().expect("a partial page is a page") = own;
            self.drop_reference(shared);
        }
        while (sequence.pages.len() as u64) < pages {
            let page = self.take();
            sequence.pages.push(page);
        }
        sequence.tokens += tokens;
        Ok(Ok(()))
    }

    /// A second sequence with the same keys and values; no byte is copied until one of them writes.
    pub fn fork(&mut self, sequence: &Sequence) -> Sequence {
        for &page in &sequence.pages {
            self.references[page as usize] += 1;
        }
        Sequence { pages: sequence.pages.clone(), tokens: sequence.tokens }
    }

    /// Shortens a sequence to its first `tokens` tokens and gives the pages beyond back. The caller has
    /// synced all work that uses them.
    ///
    /// # Panics
    /// If the sequence is shorter.
    pub fn truncate(&mut self, sequence: &mut Sequence, tokens: u64) {
        assert!(tokens <= sequence.tokens, "{} tokens cannot become {tokens}", sequence.tokens);
        sequence.tokens = tokens;
        let keep = tokens.div_ceil(self.layout.page_tokens as u64) as usize;
        for page in sequence.pages.split_off(keep) {
            self.drop_reference(page);
        }
    }

    /// Gives a sequence's pages back. The caller has synced all work that uses them.
    pub fn release(&mut self, sequence: Sequence) {
        for page in sequence.pages {
            self.drop_reference(page);
        }
    }

    /// Frees the segment.
    pub fn free<D: Device>(self, device: &D) {
        device.free(self.buffer);
        device.free(self.table);
    }

    fn take(&mut self) -> u32 {
        let page = self.free.pop().expect("the caller counted the free pages");
        self.references[page as usize] = 1;
        page
    }

    fn drop_reference(&mut self, page: u32) {
        let count = &mut self.references[page as usize];
        assert!(*count > 0, "page {page} of {} is released twice", self.layout.pages);
        *count -= 1;
        if *count == 0 {
            self.free.push(page);
        }
    }
}
