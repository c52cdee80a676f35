//! The data segment: KV caches in pages, private to sequences, shared by reference count.
//!
//! `pager` moves sequences to host memory and back, `prefix` finds pages by what they hold.

mod audit;
mod layout;
mod pager;
mod pool;
mod prefix;
mod swap;
#[cfg(test)]
mod tests;
mod transfer;

pub use layout::KvLayout;
pub use pager::{Arriving, HostFull, NotMoved, Parked, Refusal};
pub use swap::{SWAP_PIECE_BYTES, SwapPace};
pub use transfer::{Direction, Moved, SwapStats, Transfer};

use crate::Result;
use djinn_device::{Buffer, Device, Space, Span, Stream, args::KvPages};
use pool::PagePool;
use prefix::PrefixIndex;
use swap::Swap;

/// NaN in every element type: what a page holds before it is written, in check mode.
const POISON: u8 = 0xFF;

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
    /// Pages free, those of the prefix cache included.
    pub free: u32,
    /// Pages that will be free once copies under way are done: [`DataSegment::poll`], then ask again.
    pub leaving: u32,
}

/// All KV pages of a device, and who refers to them.
#[derive(Debug)]
pub struct DataSegment {
    layout: KvLayout,
    buffer: Buffer,
    table: Buffer,
    pages: PagePool,
    prefix: PrefixIndex,
    /// None without host pages.
    swap: Option<Swap>,
    /// Sequences parked so far.
    tickets: u64,
}

impl DataSegment {
    /// Allocates the pages and the page table of `layout`, and its pinned host pages.
    ///
    /// # Errors
    /// A device out of memory or streams; nothing stays allocated then.
    pub fn new<D: Device>(device: &D, layout: KvLayout) -> Result<Self> {
        let mut held = Vec::new();
        let segment = Self::allocate(device, layout, &mut held);
        if segment.is_err() {
            held.into_iter().for_each(|buffer| device.free(buffer));
        }
        segment
    }

    /// Tells `held` every buffer that it allocates.
    fn allocate<D: Device>(device: &D, layout: KvLayout, held: &mut Vec<Buffer>) -> Result<Self> {
        let mut alloc = |space, bytes| -> Result<Buffer> {
            let buffer = device.alloc(space, bytes)?;
            held.push(buffer);
            Ok(buffer)
        };
        let buffer = alloc(Space::Device, layout.bytes())?;
        let table = alloc(Space::Device, layout.table_bytes())?;
        let swap = (layout.host_pages > 0).then(|| Swap::new(device, &layout, buffer, &mut alloc));
        let (swap, pages) = (swap.transpose()?, PagePool::new(layout.pages));
        Ok(DataSegment { layout, buffer, table, pages, prefix: PrefixIndex::default(), swap, tickets: 0 })
    }

    /// The layout.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Pages that can be had: those that hold nothing, and those that only the prefix cache keeps.
    pub fn free_pages(&self) -> u32 {
        self.pages.free() + self.prefix.idle()
    }

    /// Pages that nothing refers to, but that copies under way still touch.
    pub fn leaving_pages(&self) -> u32 {
        self.pages.in_transit()
    }

    /// The page table on the device, u32 `[sequences, table_width]`.
    pub fn table(&self) -> Span {
        self.table.span()
    }

    /// The bytes of a page.
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
    /// written is copied first, on `stream`: the compute stream, which all work on sequences runs on.
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
        let pages = (sequence.tokens + tokens).div_ceil(self.layout.page_tokens as u64);
        let (written, shared) = self.tail(sequence);
        let requested = pages - sequence.pages.len() as u64 + shared.is_some() as u64;
        if pages > self.layout.table_width as u64 || requested > self.free_pages() as u64 {
            return Ok(Err(self.full(requested.min(u32::MAX as u64) as u32)));
        }
        let mut fresh = self.take(requested as u32);
        let copy = shared.zip(fresh.first().copied());
        if let Err(error) = self.prepare(device, stream, &fresh, copy) {
            fresh.into_iter().for_each(|page| self.drop_reference(page));
            return Err(error.into());
        }
        if let Some((from, to)) = copy {
            *sequence.pages.last_mut().expect("a partial page is a page") = to;
            self.drop_reference(from);
            fresh.remove(0);
        } else if let Some(page) = written {
            self.prefix.forget(page);
            if let Some(swap) = &mut self.swap {
                swap.forget_copy(page);
            }
        }
        sequence.pages.append(&mut fresh);
        sequence.tokens += tokens;
        Ok(Ok(()))
    }

    /// The last page if it has room for tokens, and the same if others read it: sequences, lookups to come that find
    /// a content which is still being copied out.
    fn tail(&self, sequence: &Sequence) -> (Option<u32>, Option<u32>) {
        if sequence.tokens.is_multiple_of(self.layout.page_tokens as u64) {
            return (None, None);
        }
        let page = *sequence.pages.last().expect("a partial page is a page");
        let copied_out = self.prefix.holds(page) && self.pages.is_moving(page);
        (Some(page), (self.pages.references(page) > 1 || copied_out).then_some(page))
    }

    /// Enqueues what new pages need before they are written: poison in check mode, the content of a shared one.
    fn prepare<D: Device>(
        &self,
        device: &D,
        stream: Stream,
        fresh: &[u32],
        copy: Option<(u32, u32)>,
    ) -> djinn_device::Result<()> {
        if !self.layout.check && copy.is_none() {
            return Ok(());
        }
        let enqueued = (|| {
            for &page in fresh.iter().filter(|_| self.layout.check) {
                device.fill(stream, self.page(page), POISON)?;
            }
            copy.map_or(Ok(()), |(from, to)| device.copy(stream, self.page(from), self.page(to)))
        })();
        if let Some(swap) = &self.swap {
            swap.grown(device, stream)?;
        }
        enqueued
    }

    /// A second sequence with the same keys and values; no byte is copied until one of them writes.
    pub fn fork(&mut self, sequence: &Sequence) -> Sequence {
        for &page in &sequence.pages {
            self.pages.refer(page);
        }
        Sequence { pages: sequence.pages.clone(), tokens: sequence.tokens }
    }

    /// Shortens a sequence to its first `tokens` tokens and gives the pages beyond back. The caller has
    /// synced all work that it enqueued on them.
    ///
    /// # Panics
    /// If the sequence is shorter.
    pub fn truncate(&mut self, sequence: &mut Sequence, tokens: u64) {
        assert!(tokens <= sequence.tokens, "{} tokens cannot become {tokens}", sequence.tokens);
        sequence.tokens = tokens;
        let keep = tokens.div_ceil(self.layout.page_tokens as u64) as usize;
        self.drop_references(sequence.pages.split_off(keep));
    }

    /// Gives a sequence's pages back. The caller has synced all work that it enqueued on them; copies of the pager
    /// may still run.
    pub fn release(&mut self, sequence: Sequence) {
        self.drop_references(sequence.pages);
    }

    /// Frees the segment.
    pub fn free<D: Device>(self, device: &D) {
        if let Some(swap) = self.swap {
            swap.free(device);
        }
        device.free(self.buffer);
        device.free(self.table);
    }

    fn full(&self, requested: u32) -> PagesFull {
        PagesFull { requested, free: self.free_pages(), leaving: self.leaving_pages() }
    }

    /// Pages with one reference each, which the caller knows to be there.
    fn take(&mut self, count: u32) -> Vec<u32> {
        let mut one = || {
            if let Some(page) = self.pages.take() {
                return page;
            }
            let page = self.prefix.evict().expect("the caller counted the free pages");
            self.pages.refer(page);
            page
        };
        (0..count).map(|_| one()).collect()
    }

    /// Last pages first: a cached page is of no use without those before it.
    fn drop_references(&mut self, pages: Vec<u32>) {
        pages.into_iter().rev().for_each(|page| self.drop_reference(page));
    }

    fn drop_reference(&mut self, page: u32) {
        if self.pages.drop_reference(page) {
            self.idle(page);
        }
    }

    /// Nothing uses the page any more.
    fn idle(&mut self, page: u32) {
        if let Some(swap) = &mut self.swap {
            swap.forget_copy(page);
        }
        if !self.prefix.make_idle(page) {
            self.pages.give(page);
        }
    }
}
