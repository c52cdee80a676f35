//! Streams and events of the driver, and what is enqueued on them without a kernel.
#![allow(unsafe_code, reason = "calls into the driver on handles that this module owns")]

use crate::Result;
use crate::context::failed;
use crate::memory::Place;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use std::time::Duration;

/// A stream of the driver; does not synchronise with the default stream.
pub(crate) struct RawStream(sys::CUstream);

// SAFETY: the handle may be used from any thread on which its context is current.
unsafe impl Send for RawStream {}

/// An event of the driver, with timing.
pub(crate) struct RawEvent(sys::CUevent);

// SAFETY: as for `RawStream`.
unsafe impl Send for RawEvent {}

impl RawStream {
    pub(crate) fn new() -> Result<Self> {
        let kind = result::stream::StreamKind::NonBlocking;
        result::stream::create(kind).map(RawStream).map_err(failed("cuStreamCreate"))
    }

    /// The driver's handle, for launches and for cuBLASLt.
    pub(crate) fn raw(&self) -> sys::CUstream {
        self.0
    }

    /// Enqueues a copy; the places are of one length.
    pub(crate) fn copy(&self, src: Place, dst: Place) -> Result<()> {
        debug_assert_eq!(src.len(), dst.len());
        if src.len() == 0 {
            return Ok(());
        }
        // SAFETY: a `Place` is a range of live memory under unified addressing, and the device's contract
        // forbids to free it before the copy is done; the stream is alive.
        unsafe { sys::cuMemcpyAsync(dst.address(), src.address(), src.len() as usize, self.0) }
            .result()
            .map_err(failed("cuMemcpyAsync"))
    }

    /// Enqueues a fill.
    pub(crate) fn fill(&self, dst: Place, byte: u8) -> Result<()> {
        if dst.len() == 0 {
            return Ok(());
        }
        // SAFETY: as in `copy`.
        unsafe { result::memset_d8_async(dst.address(), byte, dst.len() as usize, self.0) }
            .map_err(failed("cuMemsetD8Async"))
    }

    /// Makes the event stand for the stream's work so far.
    pub(crate) fn record(&self, event: &RawEvent) -> Result<()> {
        // SAFETY: both handles are alive.
        unsafe { result::event::record(event.0, self.0) }.map_err(failed("cuEventRecord"))
    }

    /// Makes later work wait for what the event stands for now.
    pub(crate) fn wait(&self, event: &RawEvent) -> Result<()> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both handles are alive.
        unsafe { result::stream::wait_event(self.0, event.0, flags) }.map_err(failed("cuStreamWaitEvent"))
    }

    /// Blocks until the stream is idle. Returns failures of its work.
    pub(crate) fn sync(&self) -> Result<()> {
        // SAFETY: the handle is alive.
        unsafe { result::stream::synchronize(self.0) }.map_err(failed("cuStreamSynchronize"))
    }
}

impl Drop for RawStream {
    fn drop(&mut self) {
        // SAFETY: the handle is alive and not used again. What fails here failed before and was reported.
        let _ = unsafe { result::stream::destroy(self.0) };
    }
}

impl RawEvent {
    pub(crate) fn new() -> Result<Self> {
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
        result::event::create(flags).map(RawEvent).map_err(failed("cuEventCreate"))
    }

    /// Whether the work it stands for is done.
    pub(crate) fn is_done(&self) -> Result<bool> {
        // SAFETY: the handle is alive.
        match unsafe { result::event::query(self.0) } {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => Err(failed("cuEventQuery")(error)),
        }
    }

    /// Blocks until the work it stands for is done.
    pub(crate) fn sync(&self) -> Result<()> {
        // SAFETY: the handle is alive.
        unsafe { result::event::synchronize(self.0) }.map_err(failed("cuEventSynchronize"))
    }

    /// Time from the recording of `origin` to this one's; both were recorded. `None` before that is done.
    pub(crate) fn since(&self, origin: &RawEvent) -> Result<Option<Duration>> {
        // SAFETY: both handles are alive.
        match unsafe { result::event::elapsed(origin.0, self.0) } {
            Ok(ms) => Ok(Some(Duration::from_secs_f64(f64::from(ms.max(0.0)) / 1e3))),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(None),
            Err(error) => Err(failed("cuEventElapsedTime")(error)),
        }
    }
}

impl Drop for RawEvent {
    fn drop(&mut self) {
        // SAFETY: the handle is alive and not used again; the driver keeps what pending waits need.
        let _ = unsafe { result::event::destroy(self.0) };
    }
}
