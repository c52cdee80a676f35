//! The CPU device: every stream is a thread of the host, every buffer is host memory under a cap.

use crate::CpuConfig;
use crate::event::{Completion, Events};
use crate::kernels::{self, Kernels};
use crate::memory::{self, Memory};
use crate::stream::{Command, Core, Streams};
use djinn_device::{
    Buffer, Device, DeviceInfo, Encoding, Event, Operation, Result, Space, Span, Stream, Usage,
};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// What CPU devices and the simulator compute from, besides plain elements.
pub const ENCODINGS: &[Encoding] = &Encoding::ENCODED;

/// A device that computes on the host.
///
/// Each stream is a thread that carries out its commands in order. Operations share one pool of
/// [`threads`](CpuConfig::threads). Work that panics loses the device: every later command is skipped, and
/// every later call that can fail says so.
pub struct CpuDevice {
    core: Arc<Core>,
    streams: Streams,
    events: Events,
}

impl CpuDevice {
    /// A device without streams or buffers.
    ///
    /// # Errors
    /// [`Error::Resource`](djinn_device::Error::Resource) if the system refuses threads.
    ///
    /// # Panics
    /// If the CPU has no such instruction set.
    pub fn new(config: CpuConfig) -> Result<Self> {
        Ok(CpuDevice::with(config, kernels::kernels(&config)?))
    }

    fn with(config: CpuConfig, kernels: Kernels) -> Self {
        let unlimited = |cap: Option<u64>| cap.unwrap_or(u64::MAX);
        let core = Core {
            memory: Memory::new(unlimited(config.vram), unlimited(config.ram)),
            kernels,
            lost: OnceLock::new(),
            origin: Instant::now(),
        };
        CpuDevice { core: Arc::new(core), streams: Streams::default(), events: Events::default() }
    }

    fn enqueue(&self, stream: Stream, command: Command) -> Result<()> {
        self.streams.send(stream, command);
        self.core.check()
    }

    fn launch(&self, stream: Stream, operation: Operation) -> Result<()> {
        log::trace!(target: "djinn::op", "{operation:?}");
        operation.each_access(|access| self.core.memory.check(access.span()));
        self.enqueue(stream, Command::Operation(operation))
    }
}

/// Implements `Ops` for a device with a method that queues an [`Operation`], and with other methods of its own.
macro_rules! queue_operations {
    ($Device:ident {$($more:tt)*}: $($op:ident: $Args:ident $uses:tt,)*) => {
        impl djinn_device::Ops for $Device {
            $($more)*

            $(fn $op(&self, stream: Stream, args: &djinn_device::args::$Args) -> Result<()> {
                if cfg!(debug_assertions) {
                    args.check();
                }
                self.launch(stream, Operation::$Args(*args))
            })*
        }
    };
}
pub(crate) use queue_operations;

djinn_device::for_each_op!(queue_operations CpuDevice {}:);

impl Device for CpuDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: format!("cpu ({})", self.core.kernels.name()),
            host_memory: true,
            reserved_bytes: 0,
            captures: false,
            batch_invariant_rows: u32::MAX,
            wide_products: true,
            batch_invariant_run: u32::MAX,
            encodings: ENCODINGS,
            int8_cache: true,
            most_head_dim: u32::MAX,
            cpu_products: true,
        }
    }

    fn alloc(&self, space: Space, len: u64) -> Result<Buffer> {
        self.core.memory.alloc(space, len)
    }

    fn free(&self, buffer: Buffer) {
        self.core.memory.free(buffer);
    }

    fn restore(&self, buffer: Buffer) -> Result<()> {
        self.core.memory.restore(buffer)
    }

    fn usage(&self, space: Space) -> Usage {
        self.core.memory.usage(space)
    }

    fn stream(&self) -> Result<Stream> {
        self.streams.create(&self.core)
    }

    fn free_stream(&self, stream: Stream) {
        self.streams.free(stream);
    }

    fn event(&self) -> Result<Event> {
        Ok(self.events.create())
    }

    fn free_event(&self, event: Event) {
        self.events.free(event);
    }

    fn copy(&self, stream: Stream, src: Span, dst: Span) -> Result<()> {
        memory::check_copy(src, dst);
        self.core.memory.check(src);
        self.core.memory.check(dst);
        self.enqueue(stream, Command::Copy { src, dst })
    }

    fn fill(&self, stream: Stream, dst: Span, byte: u8) -> Result<()> {
        self.core.memory.check(dst);
        self.enqueue(stream, Command::Fill { dst, byte })
    }

    fn record(&self, stream: Stream, event: Event) -> Result<()> {
        let completion = Arc::new(Completion::default());
        self.events.record(event, Arc::clone(&completion));
        self.enqueue(stream, Command::Record(completion))
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<()> {
        match self.events.latest(event) {
            Some(completion) if !completion.is_done() => self.enqueue(stream, Command::Wait(completion)),
            _ => self.core.check(),
        }
    }

    fn is_done(&self, event: Event) -> Result<bool> {
        let done = self.events.latest(event).is_none_or(|completion| completion.is_done());
        self.core.check().map(|()| done)
    }

    fn sync(&self, stream: Stream) -> Result<()> {
        let completion = Arc::new(Completion::default());
        // A lost device still completes what is enqueued, so that no thread waits for ever.
        let sent = self.enqueue(stream, Command::Record(Arc::clone(&completion)));
        completion.block();
        sent.and_then(|()| self.core.check())
    }

    fn sync_event(&self, event: Event) -> Result<()> {
        if let Some(completion) = self.events.latest(event) {
            completion.block();
        }
        self.core.check()
    }

    fn timestamp(&self, event: Event) -> Option<Duration> {
        self.events.latest(event)?.at()
    }

    fn read_host<R>(&self, span: Span, read: impl FnOnce(&[u8]) -> R) -> R {
        read(&self.core.memory.host_bytes(span))
    }

    fn write_host<R>(&self, span: Span, write: impl FnOnce(&mut [u8]) -> R) -> R {
        self.core.memory.write_host(span, write)
    }
}

#[cfg(test)]
mod tests;
