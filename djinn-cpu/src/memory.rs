//! Host memory behind handles: allocation, accounting to the byte, and checked typed views.
//!
//! The only module of this crate that turns handles into memory. Bytes live from `alloc` to `free`; they start
//! as zeros, so that any view of them is of initialised memory. Large buffers are not touched before they are
//! used.
//!
//! Contract: handles, bounds, alignment and lifetime are checked here. That no two threads use the same
//! bytes at once, one of them writing, is not: it follows from the order that users of
//! [`Device`](djinn_device::Device) give their commands with events, as on a GPU. [`SimDevice`](crate::SimDevice),
//! which runs on one thread, finds a missing order without a race.
#![allow(unsafe_code, reason = "buffers are shared by streams that only events keep apart")]

use bytemuck::Pod;
use djinn_device::{Buffer, Error, Result, Space, Span, Usage};
use memmap2::MmapMut;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

/// Every allocation starts at a multiple of this.
const ALIGN: usize = 256;

/// Allocations of at least this many bytes are mapped, start at a multiple of it and ask for huge pages: weights are read
/// from end to end, and with small pages the CPU waits for translations. Smaller ones come from the heap: whenever
/// the system takes a mapping back, all threads have to forget its translations.
const HUGE_PAGE: usize = 2 << 20;

/// The buffers of one device, in both spaces.
pub(crate) struct Memory {
    /// By the handle's id, which is never used again.
    live: RwLock<Vec<Option<Arc<Allocation>>>>,
    accounts: Mutex<Accounts>,
    /// Held for reading while views are in use; bytes go back to the system only under the write lock.
    in_use: RwLock<()>,
}

struct Accounts {
    device: Usage,
    host: Usage,
}

impl Accounts {
    fn of(&mut self, space: Space) -> &mut Usage {
        match space {
            Space::Device => &mut self.device,
            Space::Host => &mut self.host,
        }
    }

    /// Bytes for a handle, within the cap.
    fn take(&mut self, handle: Buffer) -> Result<Arc<Allocation>> {
        let usage = self.of(handle.space());
        let in_use = usage.in_use.checked_add(handle.len()).filter(|&n| n <= usage.limit);
        let allocation = in_use.and_then(|_| Allocation::new(handle));
        let (Some(in_use), Some(allocation)) = (in_use, allocation) else {
            return Err(out_of_memory(handle.space(), handle.len(), *usage));
        };
        (usage.in_use, usage.peak) = (in_use, usage.peak.max(in_use));
        Ok(Arc::new(allocation))
    }
}

/// Zeroed bytes, given back on drop.
struct Allocation {
    /// The first byte of the buffer.
    start: NonNull<u8>,
    handle: Buffer,
    /// Only freeing the bytes goes through it.
    _owner: Owner,
}

/// What owns an allocation's bytes.
enum Owner {
    Heap(#[expect(dead_code, reason = "held for its memory")] Vec<Line>),
    Mapped(#[expect(dead_code, reason = "held for its memory")] MmapMut),
}

/// `ALIGN` bytes.
#[derive(Clone, Copy)]
#[repr(align(256))]
struct Line(#[expect(dead_code, reason = "read and written through pointers")] [u8; ALIGN]);

// SAFETY: `start` points into bytes that this value owns, ordinary memory which any thread may use and free;
// the other fields may be sent.
unsafe impl Send for Allocation {}
// SAFETY: a shared `Allocation` only hands out its address; `Memory`'s unsafe functions, which turn it into
// views, leave it to their callers that no two threads write the same bytes.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// `None` if the system refuses.
    fn new(handle: Buffer) -> Option<Self> {
        let len = usize::try_from(handle.len()).ok()?;
        if len < HUGE_PAGE { Self::on_heap(handle, len) } else { Self::mapped(handle, len) }
    }

    fn on_heap(handle: Buffer, len: usize) -> Option<Self> {
        let lines = len.div_ceil(ALIGN);
        let mut owner = Vec::new();
        owner.try_reserve_exact(lines).ok()?;
        owner.resize(lines, Line([0; ALIGN]));
        let start = NonNull::from(owner.as_mut_slice()).cast();
        Some(Allocation { start, handle, _owner: Owner::Heap(owner) })
    }

    fn mapped(handle: Buffer, len: usize) -> Option<Self> {
        // What lies before the first multiple is never touched and costs nothing.
        let mut map = MmapMut::map_anon(len.checked_add(HUGE_PAGE)?).ok()?;
        // A system without huge pages refuses; that costs speed only.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        let skip = map.as_ptr().align_offset(HUGE_PAGE);
        let start = NonNull::from(&mut map[skip..]).cast();
        Some(Allocation { start, handle, _owner: Owner::Mapped(map) })
    }

    /// The address of `span`, whose bytes are all within the allocation.
    fn address(&self, span: Span) -> NonNull<u8> {
        let buffer = span.buffer();
        let end = span.offset().checked_add(span.len());
        assert!(
            self.handle == buffer && end.is_some_and(|end| end <= self.handle.len()),
            "{span:?} does not fit this device's {:?}",
            self.handle
        );
        // SAFETY: the span was just checked to be within the buffer's `len` bytes, which `start` begins.
        unsafe { self.start.add(span.offset() as usize) }
    }
}

impl Memory {
    /// Empty memory with a cap on each space, in bytes.
    pub(crate) fn new(device_limit: u64, host_limit: u64) -> Self {
        let usage = |limit| Usage { in_use: 0, peak: 0, limit };
        Memory {
            live: RwLock::default(),
            accounts: Mutex::new(Accounts { device: usage(device_limit), host: usage(host_limit) }),
            in_use: RwLock::default(),
        }
    }

    /// `len` bytes of zeros at a multiple of 256.
    ///
    /// # Panics
    /// If `len` is zero.
    pub(crate) fn alloc(&self, space: Space, len: u64) -> Result<Buffer> {
        assert!(len > 0, "an allocation of 0 bytes");
        let mut accounts = self.accounts();
        let id = self.live.read().unwrap_or_else(PoisonError::into_inner).len();
        let id = u32::try_from(id).expect("fewer than 2^32 allocations in a device's life");
        let handle = Buffer::from_raw(id, space, len);
        let allocation = accounts.take(handle)?;
        // The accounts are locked: no other allocation took the id meanwhile.
        self.live.write().unwrap_or_else(PoisonError::into_inner).push(Some(allocation));
        Ok(handle)
    }

    /// Zeros for a buffer that was freed, under its handle.
    ///
    /// # Panics
    /// If it is allocated, or was never made here.
    pub(crate) fn restore(&self, buffer: Buffer) -> Result<()> {
        let mut accounts = self.accounts();
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        match live.get_mut(buffer.id() as usize) {
            Some(freed @ None) => *freed = Some(accounts.take(buffer)?),
            _ => panic!("{buffer:?} is not one that was freed"),
        }
        Ok(())
    }

    /// Returns the buffer's bytes to the system, once no view of any buffer is in use.
    ///
    /// # Panics
    /// If the buffer is not allocated here.
    pub(crate) fn free(&self, buffer: Buffer) {
        self.check(buffer.span());
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        let allocation = live[buffer.id() as usize].take();
        drop(live);
        let allocation = allocation.unwrap_or_else(|| panic!("{buffer:?} is freed twice at once"));
        {
            let _unused = self.in_use.write().unwrap_or_else(PoisonError::into_inner);
            drop(allocation);
        }
        self.accounts().of(buffer.space()).in_use -= buffer.len();
    }

    /// What is allocated in `space`.
    pub(crate) fn usage(&self, space: Space) -> Usage {
        *self.accounts().of(space)
    }

    /// Checks that `span` lies in a live buffer of this device.
    ///
    /// # Panics
    /// If it does not.
    pub(crate) fn check(&self, span: Span) {
        self.find(span.buffer()).address(span);
    }

    /// Keeps every buffer's bytes from going back to the system while the guard lives: [`Self::free`] on
    /// another thread waits for it. A stream's thread holds it around each command; nothing called from
    /// there takes it again.
    pub(crate) fn hold(&self) -> RwLockReadGuard<'_, ()> {
        self.in_use.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The elements of `span`.
    ///
    /// # Panics
    /// If the buffer is freed or foreign, or the span is no aligned whole number of `T`.
    ///
    /// # Safety
    /// Nothing writes the span's bytes while the slice lives, and the buffer is not freed before
    /// ([`Self::hold`] ensures that).
    pub(crate) unsafe fn slice<T: Pod>(&self, span: Span) -> &[T] {
        let (data, len) = self.elements::<T>(span);
        // SAFETY: `elements` checked bounds and alignment; the bytes are initialised (zeroed at first) and
        // valid as any `Pod`; the caller vouches for lifetime and absence of writers.
        unsafe { std::slice::from_raw_parts(data.as_ptr(), len) }
    }

    /// The elements of `span`, to be written.
    ///
    /// # Panics
    /// As [`Self::slice`].
    ///
    /// # Safety
    /// Nothing else reads or writes the span's bytes while the slice lives, and the buffer is not freed
    /// before.
    #[allow(clippy::mut_from_ref, reason = "the caller vouches for exclusive use of the bytes")]
    pub(crate) unsafe fn slice_mut<T: Pod>(&self, span: Span) -> &mut [T] {
        let (data, len) = self.elements::<T>(span);
        // SAFETY: as in `slice`, and the caller vouches for exclusive use.
        unsafe { std::slice::from_raw_parts_mut(data.as_ptr(), len) }
    }

    /// Copies `src` to `dst`. The caller's part is that of [`Self::slice`] and [`Self::slice_mut`].
    ///
    /// # Panics
    /// If a buffer is freed or foreign, lengths differ, or the spans overlap.
    pub(crate) fn copy(&self, src: Span, dst: Span) {
        check_copy(src, dst);
        let from = self.find(src.buffer()).address(src);
        let to = self.find(dst.buffer()).address(dst);
        // SAFETY: both ranges lie in live allocations and were checked not to overlap; that nothing races
        // and nothing is freed meanwhile is the module's contract.
        unsafe { from.copy_to_nonoverlapping(to, src.len() as usize) }
    }

    /// Sets every byte of `dst`. The caller's part is that of [`Self::slice_mut`].
    ///
    /// # Panics
    /// If the buffer is freed or foreign.
    pub(crate) fn fill(&self, dst: Span, byte: u8) {
        let to = self.find(dst.buffer()).address(dst);
        // SAFETY: the range lies in a live allocation; that nothing races and nothing is freed meanwhile is
        // the module's contract.
        unsafe { to.write_bytes(byte, dst.len() as usize) }
    }

    /// The bytes of a host span, to be read.
    ///
    /// # Panics
    /// If the buffer is freed or foreign, or lies on the device.
    pub(crate) fn host_bytes(&self, span: Span) -> HostBytes {
        let allocation = self.host(span);
        HostBytes { start: allocation.address(span), len: span.len() as usize, _allocation: allocation }
    }

    /// Passes the bytes of a host span to `write`, which may itself use the memory.
    ///
    /// # Panics
    /// If the buffer is freed or foreign, or lies on the device.
    pub(crate) fn write_host<R>(&self, span: Span, write: impl FnOnce(&mut [u8]) -> R) -> R {
        let allocation = self.host(span);
        let data = allocation.address(span);
        // SAFETY: as in `HostBytes`, and that nothing else uses the bytes meanwhile is the module's contract.
        write(unsafe { std::slice::from_raw_parts_mut(data.as_ptr(), span.len() as usize) })
    }

    /// The integers of `span`, copied.
    ///
    /// # Panics
    /// As [`Self::slice`].
    pub(crate) fn read_u32(&self, span: Span) -> Vec<u32> {
        // SAFETY: the view is gone with this call; the rest is the module's contract.
        unsafe { self.slice::<u32>(span) }.to_vec()
    }

    /// Replaces each float of `span` by what `change` makes of its place and value.
    ///
    /// # Panics
    /// As [`Self::slice_mut`].
    pub(crate) fn change_floats(&self, span: Span, change: impl Fn(usize, f32) -> f32) {
        // SAFETY: the view is gone with this call; the rest is the module's contract.
        let floats = unsafe { self.slice_mut::<f32>(span) };
        floats.iter_mut().enumerate().for_each(|(at, value)| *value = change(at, *value));
    }

    fn host(&self, span: Span) -> Arc<Allocation> {
        assert!(span.buffer().space() == Space::Host, "the host cannot touch {span:?}");
        self.find(span.buffer())
    }

    /// Address and number of the elements of `span`, checked.
    fn elements<T: Pod>(&self, span: Span) -> (NonNull<T>, usize) {
        let size = size_of::<T>() as u64;
        let data = self.find(span.buffer()).address(span).cast::<T>();
        assert!(data.is_aligned(), "{span:?} is not aligned to {} bytes", align_of::<T>());
        assert!(span.len().is_multiple_of(size), "{span:?} is no whole number of {size}-byte elements");
        (data, (span.len() / size) as usize)
    }

    fn find(&self, buffer: Buffer) -> Arc<Allocation> {
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        match live.get(buffer.id() as usize) {
            Some(Some(allocation)) => Arc::clone(allocation),
            _ => panic!("{buffer:?} is not allocated on this device"),
        }
    }

    fn accounts(&self) -> MutexGuard<'_, Accounts> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of host memory, which are not freed while this lives.
pub(crate) struct HostBytes {
    start: NonNull<u8>,
    len: usize,
    _allocation: Arc<Allocation>,
}

impl Deref for HostBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range was checked to lie in the allocation, which this value owns a share of, and is initialised;
        // that nothing writes it meanwhile is the module's contract.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

/// Checks the spans of a copy against each other.
///
/// # Panics
/// If their lengths differ or they overlap.
pub(crate) fn check_copy(src: Span, dst: Span) {
    assert!(src.len() == dst.len(), "a copy of {src:?} to {dst:?} of another length");
    assert!(!src.overlaps(dst), "a copy of {src:?} to overlapping {dst:?}");
}

/// The refusal of `len` bytes.
pub(crate) fn out_of_memory(space: Space, len: u64, usage: Usage) -> Error {
    Error::OutOfMemory { space, requested_bytes: len, in_use_bytes: usage.in_use, limit_bytes: usage.limit }
}

#[cfg(test)]
mod tests;
