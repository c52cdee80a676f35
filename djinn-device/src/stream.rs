//! The [`Device`] trait: memory, streams, events, copies.

use crate::args::Weight;
use crate::{Buffer, DType, Encoding, Error, Result, Space, Span, Usage};
use std::time::Duration;

/// A handle to a queue of work that runs in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream(pub(crate) u32);

impl Stream {
    /// For devices: the handle of their stream `id`.
    pub const fn from_raw(id: u32) -> Self {
        Stream(id)
    }

    /// The device's name for the stream.
    pub const fn id(self) -> u32 {
        self.0
    }
}

/// A handle to a point in a stream's work, set by [`Device::record`]; may be recorded many times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event(pub(crate) u32);

impl Event {
    /// For devices: the handle of their event `id`.
    pub const fn from_raw(id: u32) -> Self {
        Event(id)
    }

    /// The device's name for the event.
    pub const fn id(self) -> u32 {
        self.0
    }
}

/// A handle to work captured by [`Device::capture`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capture(pub(crate) u32);

impl Capture {
    /// For devices: the handle of their capture `id`.
    pub const fn from_raw(id: u32) -> Self {
        Capture(id)
    }

    /// The device's name for the capture.
    pub const fn id(self) -> u32 {
        self.0
    }
}

/// A device's properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// For display, such as `cpu (2 threads, avx512)`.
    pub name: String,
    /// Whether [`Space::Device`] is the host's own memory.
    pub host_memory: bool,
    /// Bytes of device memory that the device takes under its cap (driver context, code, workspaces). The rest of the
    /// cap can be allocated. 0 on devices without such needs.
    pub reserved_bytes: u64,
    /// Whether work can be captured and replayed.
    pub captures: bool,
    /// `linear` is batch-invariant for up to this many rows: a row's bits do not depend on the rest of the batch.
    pub batch_invariant_rows: u32,
    /// Whether `linear` is batch-invariant for any number of rows if the weight is f16, bf16 or in blocks, with rows of a
    /// multiple of 64 elements.
    pub wide_products: bool,
    /// `attention` is batch-invariant for up to this many adjacent rows of one sequence. A row in a longer run has the same
    /// bits in every longer run.
    pub batch_invariant_run: u32,
    /// Encodings of matrices that the device computes from directly, besides plain elements, in `linear`,
    /// `expert_linear` and `embed`.
    pub encodings: &'static [Encoding],
    /// Whether keys and values may be [`DType::Int8`].
    pub int8_cache: bool,
    /// The most elements of a head for `attention`.
    pub most_head_dim: u32,
    /// Whether products may run where their weights lie in host memory ([`Ops::linear_on_cpu`](crate::Ops::linear_on_cpu)).
    pub cpu_products: bool,
}

impl DeviceInfo {
    /// Whether a product with a weight of rows of `k` elements is one of [`wide_products`](DeviceInfo::wide_products).
    pub fn is_wide(weight: Weight, k: u32) -> bool {
        let is_blocks = matches!(weight.encoding, Encoding::Blocks(_));
        (is_blocks || matches!(weight.dtype, DType::F16 | DType::BF16)) && k.is_multiple_of(64)
    }
}

/// Memory, streams, events and copies, with CUDA's semantics.
///
/// The crate's [contract](crate#contract) says who validates, what is ordered, how long memory lives and how failures
/// are told. Dropping a device drains its streams.
pub trait Device: Send {
    /// The device's properties.
    fn info(&self) -> DeviceInfo;

    /// Allocates `len > 0` bytes, aligned to 256. Contents are undefined (`SimDevice`: NaN).
    fn alloc(&self, space: Space, len: u64) -> Result<Buffer>;

    /// Frees an allocation. No enqueued work may use it, and no capture that is replayed later.
    fn free(&self, buffer: Buffer);

    /// Allocates a freed buffer again under its old handle, so that its references stay valid. Contents are undefined
    /// (`SimDevice`: NaN).
    ///
    /// # Errors
    /// As [`alloc`](Device::alloc). The buffer then stays freed.
    ///
    /// # Panics
    /// If the device never made the buffer, or it is allocated.
    fn restore(&self, buffer: Buffer) -> Result<()>;

    /// Allocated bytes. `peak` counts from the device's creation.
    fn usage(&self, space: Space) -> Usage;

    /// A new stream.
    fn stream(&self) -> Result<Stream>;

    /// Frees a stream. Its work must be done, and captures of it freed.
    fn free_stream(&self, stream: Stream);

    /// A new event that is done until it is first recorded.
    fn event(&self) -> Result<Event>;

    /// Frees an event. Captures that record it or wait for it must be freed. What it stands for may still be enqueued, and
    /// streams that wait for it go on waiting.
    fn free_event(&self, event: Event);

    /// Enqueues a copy between spans of equal length in any spaces, not overlapping.
    fn copy(&self, stream: Stream, src: Span, dst: Span) -> Result<()>;

    /// [`copy`](Device::copy) for a step's few bytes of inputs and results. It does not queue behind copies of other
    /// streams, as others may.
    fn copy_promptly(&self, stream: Stream, src: Span, dst: Span) -> Result<()> {
        self.copy(stream, src, dst)
    }

    /// Enqueues filling `dst` with `byte`.
    fn fill(&self, stream: Stream, dst: Span, byte: u8) -> Result<()>;

    /// Makes `event` stand for all work enqueued on `stream` so far.
    fn record(&self, stream: Stream, event: Event) -> Result<()>;

    /// Work enqueued on `stream` from now on starts after the work that `event` stands for *at this call*;
    /// no effect if it was never recorded.
    fn wait(&self, stream: Stream, event: Event) -> Result<()>;

    /// Whether the work that `event` stands for is done.
    fn is_done(&self, event: Event) -> Result<bool>;

    /// Blocks the host until all work enqueued on `stream` is done.
    fn sync(&self, stream: Stream) -> Result<()>;

    /// Blocks the host until the work that `event` stands for is done.
    fn sync_event(&self, event: Event) -> Result<()>;

    /// When the event's latest recorded work was done, by the device's clock (virtual time on `SimDevice`); `None`
    /// before that.
    fn timestamp(&self, event: Event) -> Option<Duration>;

    /// How long the CPU has computed for a device of other memory since the last call; zero if it never does.
    fn take_cpu_time(&self) -> Duration {
        Duration::ZERO
    }

    /// Captures the work that `work` enqueues on `streams`, instead of running it. Meanwhile nothing may be enqueued
    /// on other streams or allocated, and the host may ask and wait for nothing. A wait for an event that was not recorded within the
    /// capture is dropped, since a replay starts after everything before it.
    ///
    /// # Errors
    /// Those of `work`, and the device's. Nothing is captured then. [`Error::Resource`] means that the device is sound
    /// but has no room for the capture.
    ///
    /// # Panics
    /// If the device does not capture ([`DeviceInfo::captures`]) or `streams` is empty.
    fn capture<E: From<Error>>(
        &self,
        _streams: &[Stream],
        _work: impl FnOnce() -> Result<(), E>,
    ) -> Result<Capture, E> {
        panic!("{} does not capture work", self.info().name)
    }

    /// Enqueues captured work again. It starts after all earlier work on any of its streams, and later work on any of
    /// them starts after all of it. Within it, only events order the streams. Its events stand for their points in the
    /// latest replay.
    fn replay(&self, _capture: Capture) -> Result<()> {
        panic!("{} does not capture work", self.info().name)
    }

    /// Drops captured work. Its replays must be done.
    fn free_capture(&self, _capture: Capture) {
        panic!("{} does not capture work", self.info().name)
    }

    /// Reads bytes of a [`Space::Host`] buffer.
    ///
    /// # Panics
    /// If the span lies on the device.
    fn read_host<R>(&self, span: Span, read: impl FnOnce(&[u8]) -> R) -> R;

    /// Writes bytes of a [`Space::Host`] buffer.
    ///
    /// # Panics
    /// If the span lies on the device.
    fn write_host<R>(&self, span: Span, write: impl FnOnce(&mut [u8]) -> R) -> R;
}
