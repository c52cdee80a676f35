//! Streams and events of the driver, and what is enqueued on them without a kernel.
#![allow(unsafe_code, reason = "calls into the driver on handles that this module owns")]

use crate::Result;
use crate::present::context::failed;
use crate::present::memory::Place;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

/// A graph of the driver: captured work.
pub(crate) struct RawCapture(sys::CUgraph);

/// The same, to be launched again and again.
pub(crate) struct RawGraph(sys::CUgraphExec);

// SAFETY: the handle may be used from any thread on which its context is current, one at a time.
unsafe impl Send for RawGraph {}

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

    /// Enqueues a write of a word, after all that the stream has written before.
    ///
    /// # Safety
    /// `address` is that of an aligned word of pinned memory, which lives until the stream's work is done.
    pub(crate) unsafe fn write_word(&self, address: u64, value: u32) -> Result<()> {
        let flags = sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
        // SAFETY: the stream is alive, and so is the word.
        unsafe { sys::cuStreamWriteValue32_v2(self.0, address, value, flags) }
            .result()
            .map_err(failed("cuStreamWriteValue32"))
    }

    /// Makes later work wait until a word has a value.
    ///
    /// # Safety
    /// As [`write_word`](Self::write_word)'s.
    pub(crate) unsafe fn await_word(&self, address: u64, value: u32) -> Result<()> {
        let flags = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_EQ as u32;
        // SAFETY: the stream is alive, and so is the word.
        unsafe { sys::cuStreamWaitValue32_v2(self.0, address, value, flags) }
            .result()
            .map_err(failed("cuStreamWaitValue32"))
    }

    /// Makes the event stand for the stream's work so far.
    pub(crate) fn record(&self, event: &RawEvent) -> Result<()> {
        // SAFETY: both handles are alive.
        unsafe { result::event::record(event.0, self.0) }.map_err(failed("cuEventRecord"))
    }

    /// While captured: makes every replay record the event, so that its time can be told and waited for.
    pub(crate) fn record_in_replay(&self, event: &RawEvent) -> Result<()> {
        let flags = sys::CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL as u32;
        // SAFETY: both handles are alive.
        unsafe { sys::cuEventRecordWithFlags(event.0, self.0, flags) }
            .result()
            .map_err(failed("cuEventRecordWithFlags"))
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

impl RawStream {
    /// Captures what is enqueued on this stream, and on those that wait for its captured events.
    pub(crate) fn begin_capture(&self) -> Result<()> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the handle is alive.
        unsafe { result::stream::begin_capture(self.0, mode) }.map_err(failed("cuStreamBeginCapture"))
    }

    /// Ends the capture. All streams in it have been joined to this one.
    pub(crate) fn end_capture(&self) -> Result<RawCapture> {
        // SAFETY: the handle is alive.
        let graph = unsafe { result::stream::end_capture(self.0) }.map_err(failed("cuStreamEndCapture"))?;
        if graph.is_null() {
            return Err(failed("cuStreamEndCapture")(DriverError(
                sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
            )));
        }
        Ok(RawCapture(graph))
    }

    /// Enqueues a graph.
    pub(crate) fn launch(&self, graph: &RawGraph) -> Result<()> {
        // SAFETY: both handles are alive.
        unsafe { sys::cuGraphLaunch(graph.0, self.0) }.result().map_err(failed("cuGraphLaunch"))
    }
}

impl RawCapture {
    /// Its number of kernels.
    pub(crate) fn kernels(&self) -> Result<u64> {
        let get_nodes = |nodes: *mut sys::CUgraphNode, count: &mut usize| {
            // SAFETY: the graph is alive; `nodes` is null, or has room for `count` nodes.
            unsafe { sys::cuGraphGetNodes(self.0, nodes, count) }.result().map_err(failed("cuGraphGetNodes"))
        };
        let mut count = 0;
        get_nodes(std::ptr::null_mut(), &mut count)?;
        let mut nodes = vec![std::ptr::null_mut(); count];
        get_nodes(nodes.as_mut_ptr(), &mut count)?;
        let mut kernels = 0;
        for node in nodes {
            let mut kind = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
            // SAFETY: the node belongs to a graph that is alive, and `kind` is ours.
            unsafe { sys::cuGraphNodeGetType(node, &mut kind) }
                .result()
                .map_err(failed("cuGraphNodeGetType"))?;
            kernels += u64::from(kind == sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL);
        }
        Ok(kernels)
    }

    /// Makes it ready to be launched, on the card as well.
    pub(crate) fn instantiate(&self, stream: &RawStream) -> Result<RawGraph> {
        let mut exec = std::ptr::null_mut();
        // SAFETY: the graph is alive, and `exec` is ours.
        unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, self.0, 0) }
            .result()
            .map_err(failed("cuGraphInstantiate"))?;
        let graph = RawGraph(exec);
        // SAFETY: both handles are alive.
        unsafe { sys::cuGraphUpload(graph.0, stream.0) }.result().map_err(failed("cuGraphUpload"))?;
        Ok(graph)
    }
}

impl Drop for RawCapture {
    fn drop(&mut self) {
        // SAFETY: the handle is alive and not used again; what was instantiated does not need it.
        let _ = unsafe { sys::cuGraphDestroy(self.0) };
    }
}

impl Drop for RawGraph {
    fn drop(&mut self) {
        // SAFETY: the handle is alive and not used again; the driver lets a launch under way finish.
        let _ = unsafe { sys::cuGraphExecDestroy(self.0) };
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

    /// Milliseconds from the recording of `origin` to this one's, which may be the earlier; both were recorded.
    /// `None` before that is done. As exact as an f32.
    pub(crate) fn since(&self, origin: &RawEvent) -> Result<Option<f32>> {
        // SAFETY: both handles are alive.
        match unsafe { result::event::elapsed(origin.0, self.0) } {
            Ok(ms) => Ok(Some(ms)),
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
