//! The device: a card's context with its memory, streams and events.

use super::warm_up;
use crate::present::capture::{CAPTURE_BYTES, Captures, Kept};
use crate::present::context::{Context, Share};
use crate::present::event::Events;
use crate::present::launch::{Launch, decoded_dtype, rows_at_once};
use crate::present::matmul::Matmul;
use crate::present::memory::Memory;
use crate::present::on_cpu::{CpuThread, Work};
use crate::present::scratch::Scratch;
use crate::present::stream::RawStream;
use crate::{CudaConfig, Error, mapping_bytes};
use djinn_device::args::Linear;
use djinn_device::{
    Buffer, Capture, CpuOps, DType, Device, DeviceInfo, Event, Handles, Result, Space, Span, Stream, Usage,
};
use std::cell::{Cell, OnceCell, RefCell};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Room for what is loaded late: code of cuBLASLt for shapes that the warm-up did not use, what the driver takes for streams,
/// and captures, up to [`CAPTURE_BYTES`].
const LATE_BYTES: u64 = (16 << 20) + CAPTURE_BYTES;

/// The driver's code for it (`CUDA_ERROR_OUT_OF_MEMORY`).
const OUT_OF_MEMORY: i32 = 2;

/// Held while a device is made, so that what the first one measures is its own.
static MAKING: Mutex<()> = Mutex::new(());

/// A card.
///
/// Calls may come from any thread, one at a time. A failure of enqueued work is sticky: every later call that
/// enqueues or waits returns it. One process may make several devices of a card; a cap counts the context and
/// the code for each of them.
///
/// In attention over long contexts a block may wait for others of its launch, which must then run. So the card's
/// multiprocessors must not be divided between processes, as NVIDIA's MPS does.
pub struct CudaDevice {
    // Dropped in this order: what lives in the context goes before the memory that it uses.
    captures: Captures,
    events: Events,
    streams: RefCell<Handles<RawStream>>,
    pub(crate) matmul: Matmul,
    pub(crate) scratch: Scratch,
    pub(crate) memory: Memory,
    context: Context,
    name: String,
    reserved_bytes: u64,
    lost: OnceCell<djinn_device::Error>,
    /// The CPU, if products may be left to it.
    cpu: Option<CpuThread>,
    /// The activations that a call left in the workspace, if nothing has changed it since, nor what they were rounded from.
    pub(crate) prepared: Cell<Option<Prepared>>,
    /// The stream, order and starts of the latest product of experts, if no slots were grouped since.
    pub(crate) settled: Cell<Option<(Stream, Span, Span)>>,
    /// The most rows for which a product reads the weight once.
    pub(crate) rows_at_once: u32,
    /// Dropped last: it may end the context.
    _share: Share,
}

/// Activations of a product that the workspace holds, rounded to the weight's type.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Prepared {
    pub(crate) stream: Stream,
    x: Span,
    rows: u32,
    dtype: DType,
    /// Their offset in the workspace, in bytes.
    pub(crate) at: u64,
    /// Whether they are stored nowhere else.
    alone: bool,
}

impl Prepared {
    /// The activations of a product that was enqueued.
    pub(crate) fn new(stream: Stream, args: &Linear, at: u64) -> Self {
        Prepared::of(stream, (args.x, args.rows), decoded_dtype(args.weight), at)
    }

    /// The output of another operation.
    pub(crate) fn of(stream: Stream, (x, rows): (Span, u32), dtype: DType, at: u64) -> Self {
        Prepared { stream, x, rows, dtype, at, alone: false }
    }

    /// The same, stored nowhere else if `alone`.
    pub(crate) fn kept_alone(self, alone: bool) -> Self {
        Prepared { alone, ..self }
    }

    /// Whether the product `args` may follow. If the activations are stored nowhere else, it must be the product that
    /// they are for, and read them here (`reads`).
    pub(crate) fn allows(self, args: &Linear, reads: bool) -> bool {
        !self.alone || reads && self.is(args)
    }

    /// Whether they are the activations of the product `args`.
    pub(crate) fn is(self, args: &Linear) -> bool {
        let Prepared { stream, at, alone, .. } = self;
        self == Prepared { alone, ..Prepared::new(stream, args, at) }
    }
}

impl CudaDevice {
    /// A device of a card without streams or buffers. With a cap, takes all of it at once.
    ///
    /// # Errors
    /// If driver, cuBLASLt or card are missing or too old, if the cap is less than what context and workspaces
    /// take, or if the card has less free. Or if another device of the process captures work on the same card at that
    /// time: that device is then lost as well.
    pub fn new(config: CudaConfig) -> crate::Result<Self> {
        let _alone = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
        let (context, share) = Context::open(config.ordinal)?;
        let made = Self::in_context(config, context, share);
        if made.as_ref().is_err_and(Error::is_of_context) {
            context.fail();
        }
        made
    }

    fn in_context(config: CudaConfig, context: Context, share: Share) -> crate::Result<Self> {
        let mut device = CudaDevice {
            captures: Captures::default(),
            events: Events::new()?,
            streams: RefCell::default(),
            matmul: Matmul::new()?,
            scratch: Scratch::new(config.activation_bytes, config.decoded_bytes, context.free_bytes()?)?,
            memory: Memory::new(context.total_bytes, config.ram),
            context,
            name: format!("cuda:{} ({})", config.ordinal, context.name()?),
            reserved_bytes: 0,
            lost: OnceCell::new(),
            cpu: None,
            prepared: Cell::new(None),
            settled: Cell::new(None),
            rows_at_once: rows_at_once(),
            _share: share,
        };
        if !context.is_measured() {
            warm_up::run(&device)?;
            device.streams.take();
            device.memory.reset_peak();
        }
        let scratch_bytes = device.scratch.bytes();
        let reserved =
            context.overhead(scratch_bytes) + scratch_bytes + LATE_BYTES + mapping_bytes(config.pinned_bytes);
        device.reserved_bytes = match config.vram {
            Some(vram) => vram - device.memory.cap(vram, reserved, context.free_bytes()?)?,
            None => reserved,
        };
        Ok(device)
    }

    /// The same device with the CPU, for products where weights lie in host memory.
    ///
    /// # Errors
    /// If the system refuses a thread or pinned memory.
    pub fn with_cpu(mut self, cpu: Arc<dyn CpuOps>) -> Result<Self> {
        self.enter()?;
        let cpu = CpuThread::start(cpu)?;
        self.name = format!("{} + cpu ({})", self.name, cpu.name());
        self.cpu = Some(cpu);
        Ok(self)
    }

    /// Requests a work of the CPU.
    ///
    /// # Panics
    /// If the device has none, or a span is no host memory.
    pub(crate) fn request_on_cpu(&self, stream: Stream, work: impl FnOnce(&Memory) -> Work) -> Result<()> {
        let work = work(&self.memory);
        self.on(stream, |raw| match self.captures.is_open() {
            true => self.cpu().capture(raw, work).map(|work| self.captures.keep_on_cpu(work)),
            false => self.cpu().request(raw, work),
        })
    }

    /// Lets a stream wait for the work that it requested last.
    ///
    /// # Panics
    /// If no products can be left to the CPU.
    pub(crate) fn wait_for_cpu(&self, stream: Stream) -> Result<()> {
        self.on(stream, |raw| self.cpu().wait(raw))
    }

    fn cpu(&self) -> &CpuThread {
        self.cpu.as_ref().expect("the caller looked whether the CPU helps")
    }

    /// Bytes that are free on the card now.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn free_bytes(&self) -> Result<u64> {
        self.enter()?;
        self.context.free_bytes().map_err(|error| error.lost())
    }

    /// Launches on a stream.
    pub(crate) fn launch(
        &self,
        stream: Stream,
        work: impl FnOnce(Launch<'_>) -> crate::Result<()>,
    ) -> Result<()> {
        self.on(stream, |raw| work(Launch { memory: &self.memory, stream: raw, rounded: None }))
    }

    /// Forgets what is known of the contents of `dst`.
    fn overwrites(&self, dst: Span) {
        if self.prepared.get().is_some_and(|prepared| prepared.x.overlaps(dst)) {
            self.prepared.set(None);
        }
        if self.settled.get().is_some_and(|(_, order, starts)| order.overlaps(dst) || starts.overlaps(dst)) {
            self.settled.set(None);
        }
    }

    /// Forgets what is known of any contents.
    fn forgets(&self) {
        self.prepared.set(None);
        self.settled.set(None);
    }

    /// Claims the workspaces for a stream, before it uses them.
    pub(crate) fn claim_scratch(&self, stream: Stream) -> Result<()> {
        self.on(stream, |raw| {
            self.scratch.claim((stream, raw), |owner, then| {
                let streams = self.streams.borrow();
                // The work of a freed stream is done.
                streams.get(owner.id()).map_or(Ok(()), then)
            })
        })
    }

    /// Calls into the driver about a stream, unless the device is lost. What the workspace holds may change.
    fn on<T>(&self, stream: Stream, work: impl FnOnce(&RawStream) -> crate::Result<T>) -> Result<T> {
        self.prepared.set(None);
        self.beside(stream, work)
    }

    /// The same for calls that leave the workspace as it is, and what was rounded to it: where weights stream, they come
    /// between the tiles of a product.
    fn beside<T>(&self, stream: Stream, work: impl FnOnce(&RawStream) -> crate::Result<T>) -> Result<T> {
        let streams = self.streams.borrow();
        let raw = self.raw(&streams, stream);
        self.enter()?;
        self.sticky(work(raw))
    }

    /// # Panics
    /// If the stream is foreign or was freed.
    fn raw<'a>(&self, all: &'a Handles<RawStream>, stream: Stream) -> &'a RawStream {
        all.get(stream.id()).unwrap_or_else(|| foreign(stream))
    }

    /// Refuses if the device is lost; else makes its context current on the calling thread. Operations that ask kernels what
    /// they serve call it first: the answer is that of the current card.
    pub(crate) fn enter(&self) -> Result<()> {
        match self.lost.get() {
            Some(lost) => Err(lost.clone()),
            None => self.sticky(self.context.make_current()),
        }
    }

    /// Remembers the first failure, that of the CPU too.
    fn sticky<T>(&self, outcome: Result<T, Error>) -> Result<T> {
        let done = outcome.map_err(|error| self.lose(&error))?;
        match self.cpu.as_ref().and_then(CpuThread::failure) {
            Some(panic) => {
                let reason = format!("a product on the CPU panicked: {panic}");
                Err(self.lost.get_or_init(|| djinn_device::Error::DeviceLost { reason }).clone())
            }
            None => Ok(done),
        }
    }

    fn lose(&self, error: &Error) -> djinn_device::Error {
        self.context.fail();
        self.lost.get_or_init(|| error.lost()).clone()
    }
}

// A plan knows it without the kernels.
const _: () = assert!(crate::MOST_HEAD_DIM == djinn_cuda_sys::DJINN_MOST_HEAD_DIM);

impl Device for CudaDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.name.clone(),
            host_memory: false,
            reserved_bytes: self.reserved_bytes,
            captures: true,
            batch_invariant_rows: self.batch_invariant_rows(),
            wide_products: self.rows_at_once == djinn_cuda_sys::DJINN_LINEAR_ROWS,
            batch_invariant_run: djinn_cuda_sys::DJINN_PREFILL_RUN,
            encodings: if self.scratch.decoded().len() > 0 { crate::ENCODINGS } else { &[] },
            int8_cache: true,
            most_head_dim: crate::MOST_HEAD_DIM,
            cpu_products: self.cpu.is_some(),
        }
    }

    fn alloc(&self, space: Space, len: u64) -> Result<Buffer> {
        self.enter()?;
        self.memory.alloc(space, len)
    }

    fn free(&self, buffer: Buffer) {
        // On a lost device the driver refuses to free; the context's end does.
        let _ = self.context.make_current();
        self.memory.free(buffer);
    }

    fn restore(&self, buffer: Buffer) -> Result<()> {
        self.enter()?;
        self.memory.restore(buffer)
    }

    fn usage(&self, space: Space) -> Usage {
        self.memory.usage(space)
    }

    fn stream(&self) -> Result<Stream> {
        self.enter()?;
        let raw = RawStream::new().map_err(|error| error.refused("a stream"))?;
        Ok(Stream::from_raw(self.streams.borrow_mut().insert(raw)))
    }

    fn free_stream(&self, stream: Stream) {
        let _ = self.context.make_current();
        self.streams.borrow_mut().remove(stream.id()).unwrap_or_else(|| foreign(stream));
    }

    fn event(&self) -> Result<Event> {
        self.enter()?;
        self.events.create().map_err(|error| error.refused("an event"))
    }

    fn free_event(&self, event: Event) {
        let _ = self.context.make_current();
        self.events.free(event);
    }

    fn copy(&self, stream: Stream, src: Span, dst: Span) -> Result<()> {
        assert!(src.len() == dst.len(), "a copy of {src:?} to {dst:?} of another length");
        assert!(!src.overlaps(dst), "a copy of {src:?} to overlapping {dst:?}");
        self.overwrites(dst);
        let (src, dst) = (self.memory.resolve(src), self.memory.resolve(dst));
        self.beside(stream, |raw| raw.copy(src, dst))
    }

    fn copy_promptly(&self, stream: Stream, src: Span, dst: Span) -> Result<()> {
        assert!(src.len() == dst.len(), "a copy of {src:?} to {dst:?} of another length");
        assert!(!src.overlaps(dst), "a copy of {src:?} to overlapping {dst:?}");
        if src.is_empty() {
            return Ok(());
        }
        self.overwrites(dst);
        let (src, dst) = (self.memory.resolve(src), self.memory.resolve(dst));
        self.launch(stream, |launch| launch.copy(src, dst))
    }

    fn fill(&self, stream: Stream, dst: Span, byte: u8) -> Result<()> {
        self.overwrites(dst);
        let dst = self.memory.resolve(dst);
        self.on(stream, |raw| raw.fill(dst, byte))
    }

    fn record(&self, stream: Stream, event: Event) -> Result<()> {
        self.beside(stream, |raw| match self.captures.is_open() {
            true => self.events.capture_record(raw, event),
            false => self.events.record(raw, event),
        })
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<()> {
        self.beside(stream, |raw| match self.captures.is_open() {
            true => self.events.capture_wait(raw, event),
            false => self.events.wait(raw, event),
        })
    }

    fn is_done(&self, event: Event) -> Result<bool> {
        self.enter()?;
        self.sticky(self.events.is_done(event))
    }

    fn sync(&self, stream: Stream) -> Result<()> {
        self.on(stream, RawStream::sync)
    }

    fn sync_event(&self, event: Event) -> Result<()> {
        self.enter()?;
        self.sticky(self.events.sync(event))
    }

    fn timestamp(&self, event: Event) -> Option<Duration> {
        self.enter().ok()?;
        self.sticky(self.events.timestamp(event)).ok()?
    }

    fn take_cpu_time(&self) -> Duration {
        self.cpu.as_ref().map_or(Duration::ZERO, CpuThread::take_time)
    }

    fn capture<E: From<djinn_device::Error>>(
        &self,
        streams: &[Stream],
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<Capture, E> {
        self.enter()?;
        if let [first, ..] = streams {
            self.claim_scratch(*first)?;
        }
        let all = self.streams.borrow();
        let raw = streams.iter().map(|&stream| self.raw(&all, stream)).collect::<Vec<_>>();
        // A graph needs a little memory of the card; without it the device is as sound as before.
        let failed = |error: Error| match error {
            Error::Driver { code: OUT_OF_MEMORY, .. } | Error::CaptureTooLarge { .. } => {
                error.refused("a captured pass")
            }
            error => self.lose(&error),
        };
        self.forgets();
        let captured =
            self.captures.capture(self.context, (streams, &raw), work, || self.events.end_capture(), failed);
        self.forgets();
        // What a captured stream claimed runs when the first one replays it.
        self.scratch.return_to(streams[0]);
        captured
    }

    fn replay(&self, capture: Capture) -> Result<()> {
        self.enter()?;
        self.forgets();
        let all = self.streams.borrow();
        self.captures.with(capture, |kept: &Kept| {
            self.claim_scratch(kept.streams[0])?;
            let raw = kept.streams.iter().map(|&stream| self.raw(&all, stream)).collect::<Vec<_>>();
            if let Some(cpu) = &self.cpu {
                cpu.announce(kept.on_cpu.len());
            }
            self.sticky(kept.replay(&raw))?;
            self.events.replayed(&kept.events);
            Ok(())
        })
    }

    fn free_capture(&self, capture: Capture) {
        let _ = self.context.make_current();
        self.captures.free(self.context, capture);
    }

    fn read_host<R>(&self, span: Span, read: impl FnOnce(&[u8]) -> R) -> R {
        self.memory.read_host(span, read)
    }

    fn write_host<R>(&self, span: Span, write: impl FnOnce(&mut [u8]) -> R) -> R {
        self.forgets();
        self.memory.write_host(span, write)
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // Drains the streams. Failures cannot be returned any more; a caller that cares syncs before.
        let _ = self.context.make_current();
        for (_, stream) in self.streams.borrow().iter() {
            let _ = stream.sync();
        }
    }
}

fn foreign(stream: Stream) -> ! {
    panic!("{stream:?} is not a stream of this device, or was freed")
}
