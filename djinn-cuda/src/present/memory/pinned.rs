//! Host memory that the card copies from and to directly: exactly the pages that hold the bytes.

use crate::present::context::failed;
use cudarc::driver::result;
use cudarc::driver::sys;
use djinn_device::{Error, Result};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

/// From this size on, memory is mapped by us and registered; below, the driver's own allocator packs better.
const MAPPED: u64 = 1 << 20;

const PAGE: usize = 4096;

/// A thread touches at least this much.
const PER_THREAD: usize = 16 << 20;

/// Pinned memory, never write-combined: the host reads it. Returned to the system when dropped.
pub(crate) struct Pinned {
    start: NonNull<u8>,
    len: usize,
    /// Bytes of the mapping, if it is one of ours.
    mapped: Option<usize>,
}

// SAFETY: the type is a range of memory without a thread of its own; who may touch it when is the device's
// contract.
unsafe impl Send for Pinned {}

// SAFETY: it only hands out addresses.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// `len` bytes of zeros at a multiple of 256, and their address; `None` if the system has not as much.
    pub(crate) fn new(len: u64) -> Result<Option<(Self, u64)>> {
        let Ok(bytes) = usize::try_from(len) else { return Ok(None) };
        let pinned = if len < MAPPED { Self::small(bytes)? } else { Self::mapped(bytes)? };
        Ok(pinned.map(|pinned| {
            let address = pinned.start.addr().get() as u64;
            (pinned, address)
        }))
    }

    /// The address of `len` bytes from `offset`.
    ///
    /// # Panics
    /// If they are not within.
    pub(crate) fn at(&self, offset: usize, len: usize) -> *mut u8 {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "bytes {offset}+{len} of {}", self.len);
        // SAFETY: just checked to be within the allocation.
        unsafe { self.start.add(offset) }.as_ptr()
    }

    /// A word at `offset`, a multiple of 4, which the card may use as well.
    ///
    /// # Panics
    /// If it is not within.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4), "a word at {offset}");
        // SAFETY: it lies within memory that lives as long as `self`, and callers share words as atomics alone.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }

    fn small(len: usize) -> Result<Option<Self>> {
        // SAFETY: the bytes are set below before anybody reads them.
        let start = match unsafe { result::malloc_host(len, sys::CU_MEMHOSTALLOC_PORTABLE) } {
            Ok(start) => start.cast::<u8>(),
            Err(result::DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => return Ok(None),
            Err(error) => return Err(failed("cuMemHostAlloc")(error).refused("pinned host memory")),
        };
        let start = NonNull::new(start).expect("the driver's success comes with an address");
        assert!(start.addr().get().is_multiple_of(256), "the driver's pinned memory is at {start:?}");
        // SAFETY: the driver just allocated as many bytes there.
        unsafe { start.write_bytes(0, len) };
        Ok(Some(Pinned { start, len, mapped: None }))
    }

    fn mapped(len: usize) -> Result<Option<Self>> {
        let size = len.checked_next_multiple_of(PAGE);
        let Some(size) = size.filter(|&size| available_bytes().is_none_or(|free| size as u64 <= free)) else {
            return Ok(None);
        };
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh anonymous mapping touches nothing that exists.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), size, access, kind, -1, 0) };
        let Some(start) = NonNull::new(start.cast::<u8>()).filter(|_| start != libc::MAP_FAILED) else {
            return Ok(None);
        };
        // SAFETY: the range is the mapping just made. A refusal costs speed alone.
        let _ = unsafe { libc::madvise(start.as_ptr().cast(), size, libc::MADV_HUGEPAGE) };
        // SAFETY: the mapping is `size` readable and writable bytes of zeros that nothing else points to.
        touch(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), size) });
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE;
        // SAFETY: the range is the mapping just made, which outlives its registration (see `drop`).
        let registered = unsafe { sys::cuMemHostRegister_v2(start.as_ptr().cast(), size, flags) }.result();
        if let Err(error) = registered {
            unmap(start, size);
            let reason = failed("cuMemHostRegister")(error);
            return Err(Error::Resource {
                what: "pinned host memory",
                reason: format!("{reason}; {size} bytes: raise the memlock limit (ulimit -l) or lower `ram`"),
            });
        }
        Ok(Some(Pinned { start, len, mapped: Some(size) }))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let start: *mut c_void = self.start.as_ptr().cast();
        let Some(size) = self.mapped else {
            // SAFETY: the address came from `cuMemHostAlloc` and is freed only here.
            let _ = unsafe { result::free_host(start) };
            return;
        };
        // SAFETY: the address was registered and is unregistered only here.
        let _ = unsafe { sys::cuMemHostUnregister(start) };
        unmap(self.start, size);
    }
}

fn unmap(start: NonNull<u8>, size: usize) {
    // SAFETY: `start` and `size` are those of a mapping of this module that is not used again.
    let outcome = unsafe { libc::munmap(start.as_ptr().cast(), size) };
    debug_assert_eq!(outcome, 0, "a whole mapping can be unmapped");
}

/// Has the system provide every page, by several threads, so that registering finds them.
fn touch(bytes: &mut [u8]) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(16);
    let threads = (bytes.len() / PER_THREAD).clamp(1, cores);
    let share = bytes.len().div_ceil(threads).next_multiple_of(PAGE);
    let touch =
        |part: &mut [u8]| part.iter_mut().step_by(PAGE).for_each(|byte| *byte = std::hint::black_box(0));
    std::thread::scope(|scope| {
        let mut parts = bytes.chunks_mut(share);
        let own = parts.next();
        for part in parts {
            // Where the system refuses a thread, registering provides the pages.
            let _ = std::thread::Builder::new().spawn_scoped(scope, || touch(part));
        }
        own.map(touch);
    });
}

/// What the machine can still give, so that a request beyond it is refused and not punished. It does not know a container's
/// limit, for which there is [`CudaConfig::ram`](crate::CudaConfig::ram).
fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}
