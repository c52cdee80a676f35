//! Buffers: device memory, in one arena under a cap or in allocations of the driver, and pinned host memory.
#![allow(unsafe_code, reason = "allocation through the driver, and views of pinned memory")]

mod pinned;

use crate::arena::Arena;
use crate::present::context::failed;
use crate::{Error, Result};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use djinn_device::{Buffer, Space, Span, Usage};
pub(crate) use pinned::Pinned;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

/// Bytes of the arena beyond what may be allocated, since every buffer is rounded up to 256 bytes.
const ROUNDING: u64 = 2 << 20;

/// The driver hands out device memory in units of this.
const UNIT: u64 = 2 << 20;

/// A range of live memory as the device addresses it. Only this module makes one, from a checked [`Span`] or
/// from a [`Block`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    address: u64,
    len: u64,
}

impl Place {
    /// First byte, under unified addressing.
    pub(crate) fn address(self) -> u64 {
        self.address
    }

    /// Bytes.
    pub(crate) fn len(self) -> u64 {
        self.len
    }

    /// As a kernel's input.
    pub(crate) fn input<T>(self) -> *const T {
        self.output::<T>()
    }

    /// As a kernel's output.
    pub(crate) fn output<T>(self) -> *mut T {
        std::ptr::without_provenance_mut(self.address as usize)
    }

    /// As untyped bytes.
    pub(crate) fn bytes(self) -> *mut c_void {
        self.output()
    }

    /// `len` bytes from `offset`.
    ///
    /// # Panics
    /// If they are not within.
    pub(crate) fn slice(self, offset: u64, len: u64) -> Place {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "bytes {offset}+{len} of {}", self.len);
        Place { address: self.address + offset, len }
    }
}

/// A range of pinned memory, with a share of it.
pub(crate) struct HostPlace {
    pinned: Arc<Pinned>,
    offset: usize,
    len: usize,
}

impl HostPlace {
    /// Its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the range lies in `pinned` and is initialised; that nothing writes it meanwhile is the device's contract.
        unsafe { std::slice::from_raw_parts(self.pinned.at(self.offset, self.len), self.len) }
    }

    /// Its bytes, to be written.
    ///
    /// # Safety
    /// Nothing else reads or writes them while the slice lives.
    #[allow(clippy::mut_from_ref, reason = "the caller has exclusive use of them")]
    pub(crate) unsafe fn bytes_mut(&self) -> &mut [u8] {
        // SAFETY: as in `bytes`; the caller has exclusive use of them.
        unsafe { std::slice::from_raw_parts_mut(self.pinned.at(self.offset, self.len), self.len) }
    }
}

/// Device memory of the driver, freed when dropped.
pub(crate) struct Block(Place);

impl Block {
    /// `None` if the card has not as much.
    pub(crate) fn new(len: u64) -> Result<Option<Self>> {
        // SAFETY: the bytes are only ever read by kernels and copies, for which any content is valid.
        match unsafe { result::malloc_sync(len as usize) } {
            Ok(address) => Ok(Some(Block(Place { address, len }))),
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => Ok(None),
            Err(error) => Err(failed("cuMemAlloc")(error)),
        }
    }

    pub(crate) fn place(&self) -> Place {
        self.0
    }

    /// Sets some of its bytes to zero, and waits for it.
    pub(crate) fn clear(&self, offset: u64, len: u64) -> Result<()> {
        let place = self.0.slice(offset, len);
        // SAFETY: the bytes are within the block, and nothing that uses them is enqueued before it is used.
        unsafe { result::memset_d8_sync(place.address, 0, len as usize) }.map_err(failed("cuMemsetD8"))?;
        // The driver may return before the bytes are set.
        result::ctx::synchronize().map_err(failed("cuCtxSynchronize"))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: the address came from `cuMemAlloc` and is freed only here. A failure is that of earlier
        // work, which a sync reports.
        let _ = unsafe { result::free_sync(self.0.address) };
    }
}

/// The buffers of a device.
pub(crate) struct Memory(RefCell<Inner>);

struct Inner {
    next_id: u32,
    live: HashMap<u32, Entry>,
    device: Usage,
    host: Usage,
    /// All of the device memory that may be allocated, under a cap.
    arena: Option<(Block, Arena)>,
    /// Bytes of the card.
    total_bytes: u64,
}

struct Entry {
    handle: Buffer,
    address: u64,
    home: Home,
}

/// What to do when a buffer is freed.
enum Home {
    /// Give the offset back.
    Arena(u64),
    /// Drop the allocation.
    Driver { _block: Block },
    /// Drop the allocation, once no view of it is left.
    Host(Arc<Pinned>),
}

impl Memory {
    /// Empty memory of a card, with a cap on host bytes.
    pub(crate) fn new(total_bytes: u64, host_limit: Option<u64>) -> Self {
        let usage = |limit: Option<u64>| Usage { limit: limit.unwrap_or(u64::MAX), ..Usage::default() };
        let (device, host) = (usage(None), usage(host_limit));
        let (next_id, live, arena) = (0, HashMap::new(), None);
        Memory(RefCell::new(Inner { next_id, live, device, host, arena, total_bytes }))
    }

    /// Takes all device memory up to `vram` at once, less what is `reserved`; returns the bytes that may be
    /// allocated.
    pub(crate) fn cap(&self, vram: u64, reserved: u64, free_bytes: u64) -> Result<u64> {
        let needed = reserved + ROUNDING;
        let room = vram.checked_sub(needed).map(|room| room - room % UNIT).filter(|&room| room > 0);
        let Some(room) = room else {
            return Err(Error::CapTooSmall { vram_bytes: vram, needed_bytes: needed + UNIT });
        };
        let requested_bytes = room + ROUNDING;
        let block = if requested_bytes > free_bytes { None } else { Block::new(requested_bytes)? };
        let block = block.ok_or(Error::CardFull { requested_bytes, free_bytes })?;
        let mut inner = self.0.borrow_mut();
        assert!(inner.device.in_use == 0, "the cap is set before anything is allocated");
        inner.device = Usage { in_use: 0, peak: 0, limit: room };
        inner.arena = Some((block, Arena::new(requested_bytes)));
        Ok(room)
    }

    /// Forgets the greatest use so far.
    pub(crate) fn reset_peak(&self) {
        let mut inner = self.0.borrow_mut();
        inner.device.peak = inner.device.in_use;
        inner.host.peak = inner.host.in_use;
    }

    /// `len` bytes at a multiple of 256.
    ///
    /// # Panics
    /// If `len` is zero.
    pub(crate) fn alloc(&self, space: Space, len: u64) -> djinn_device::Result<Buffer> {
        assert!(len > 0, "an allocation of 0 bytes");
        let mut inner = self.0.borrow_mut();
        let handle = Buffer::from_raw(inner.next_id, space, len);
        inner.take(handle)?;
        inner.next_id = handle.id().checked_add(1).expect("fewer than 2^32 allocations in a device's life");
        Ok(handle)
    }

    /// Memory for a buffer that was freed, under its handle.
    ///
    /// # Panics
    /// If it is allocated, or was never made here.
    pub(crate) fn restore(&self, buffer: Buffer) -> djinn_device::Result<()> {
        let mut inner = self.0.borrow_mut();
        let was_freed = buffer.id() < inner.next_id && !inner.live.contains_key(&buffer.id());
        assert!(was_freed, "{buffer:?} is not one that was freed");
        inner.take(buffer)
    }

    /// Frees a buffer.
    ///
    /// # Panics
    /// If it is not allocated here.
    pub(crate) fn free(&self, buffer: Buffer) {
        self.resolve(buffer.span());
        let mut inner = self.0.borrow_mut();
        let entry = inner.live.remove(&buffer.id()).expect("it was just found");
        if let (Home::Arena(offset), Some((_, arena))) = (&entry.home, &mut inner.arena) {
            arena.free(*offset);
        }
        inner.usage_mut(buffer.space()).in_use -= buffer.len();
    }

    /// What is allocated in `space`.
    pub(crate) fn usage(&self, space: Space) -> Usage {
        self.0.borrow().usage(space)
    }

    /// Where a span lies.
    ///
    /// # Panics
    /// If its buffer is freed or foreign.
    pub(crate) fn resolve(&self, span: Span) -> Place {
        let inner = self.0.borrow();
        let address = inner.find(span).address + span.offset();
        Place { address, len: span.len() }
    }

    /// Passes the bytes of a host span to `read`, which may itself use the memory.
    ///
    /// # Panics
    /// If the buffer is freed or foreign, or lies on the device.
    pub(crate) fn read_host<R>(&self, span: Span, read: impl FnOnce(&[u8]) -> R) -> R {
        let pinned = self.pinned(span);
        let start = pinned.at(span.offset() as usize, span.len() as usize);
        // SAFETY: the range lies in `pinned`, which this function holds a share of, and is initialised; that
        // nothing writes it meanwhile is the device's contract.
        read(unsafe { std::slice::from_raw_parts(start, span.len() as usize) })
    }

    /// Passes the bytes of a host span to `write`, which may itself use the memory.
    ///
    /// # Panics
    /// As [`read_host`](Self::read_host).
    pub(crate) fn write_host<R>(&self, span: Span, write: impl FnOnce(&mut [u8]) -> R) -> R {
        let pinned = self.pinned(span);
        let start = pinned.at(span.offset() as usize, span.len() as usize);
        // SAFETY: as in `read_host`, and that nothing else uses the bytes meanwhile is the device's contract.
        write(unsafe { std::slice::from_raw_parts_mut(start, span.len() as usize) })
    }

    /// A range of host memory that stays allocated as long as what this returns.
    ///
    /// # Panics
    /// As [`read_host`](Self::read_host).
    pub(crate) fn host(&self, span: Span) -> HostPlace {
        let pinned = self.pinned(span);
        let (offset, len) = (span.offset() as usize, span.len() as usize);
        pinned.at(offset, len);
        HostPlace { pinned, offset, len }
    }

    fn pinned(&self, span: Span) -> Arc<Pinned> {
        match &self.0.borrow().find(span).home {
            Home::Host(pinned) => Arc::clone(pinned),
            _ => panic!("the host cannot touch {span:?}"),
        }
    }
}

impl Inner {
    fn find(&self, span: Span) -> &Entry {
        let buffer = span.buffer();
        match self.live.get(&buffer.id()) {
            // A span never exceeds its handle, so that equal handles mean that it fits.
            Some(entry) if entry.handle == buffer => entry,
            _ => panic!("{buffer:?} is not allocated on this device"),
        }
    }

    /// Memory for a handle, within the cap.
    fn take(&mut self, handle: Buffer) -> djinn_device::Result<()> {
        let (space, len) = (handle.space(), handle.len());
        let usage = self.usage(space);
        let in_use = usage.in_use.checked_add(len).filter(|&in_use| in_use <= usage.limit);
        let home = match space {
            _ if in_use.is_none() => None,
            Space::Device => self.device_home(len)?,
            Space::Host => Pinned::new(len)?.map(|(pinned, address)| (Home::Host(Arc::new(pinned)), address)),
        };
        let (Some(in_use), Some((home, address))) = (in_use, home) else {
            let (in_use_bytes, limit_bytes) = (usage.in_use, usage.limit);
            return Err(djinn_device::Error::OutOfMemory {
                space,
                requested_bytes: len,
                in_use_bytes,
                limit_bytes,
            });
        };
        self.live.insert(handle.id(), Entry { handle, address, home });
        *self.usage_mut(space) = Usage { in_use, peak: usage.peak.max(in_use), ..usage };
        Ok(())
    }

    fn device_home(&mut self, len: u64) -> djinn_device::Result<Option<(Home, u64)>> {
        if let Some((block, arena)) = &mut self.arena {
            return Ok(arena.alloc(len).map(|offset| (Home::Arena(offset), block.place().address + offset)));
        }
        if len > self.total_bytes {
            return Ok(None);
        }
        let block = Block::new(len).map_err(|error| error.refused("device memory"))?;
        Ok(block.map(|block| {
            let address = block.place().address;
            (Home::Driver { _block: block }, address)
        }))
    }

    fn usage(&self, space: Space) -> Usage {
        match space {
            Space::Device => self.device,
            Space::Host => self.host,
        }
    }

    fn usage_mut(&mut self, space: Space) -> &mut Usage {
        match space {
            Space::Device => &mut self.device,
            Space::Host => &mut self.host,
        }
    }
}
