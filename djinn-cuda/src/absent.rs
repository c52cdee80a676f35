//! The device of a build without CUDA: a type without values, so that programs need no conditions.

use crate::{CudaConfig, Error, Probe, Result};
use djinn_device::{Buffer, CpuOps, Device, DeviceInfo, Event, Ops, Space, Span, Stream, Usage, args};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

type Outcome<T> = djinn_device::Result<T>;

/// Stands for the CUDA device in a build without it; there is none.
#[derive(Debug)]
pub struct CudaDevice(Infallible);

impl CudaDevice {
    /// Says that this build has no CUDA support.
    ///
    /// # Errors
    /// [`Error::NotBuilt`], always.
    pub fn new(_: CudaConfig) -> Result<Self> {
        Err(Error::NotBuilt)
    }
}

impl CudaDevice {
    /// The same device with the CPU.
    ///
    /// # Errors
    /// None: there is no such device.
    pub fn with_cpu(self, _: Arc<dyn CpuOps>) -> Outcome<Self> {
        match self.0 {}
    }
}

/// Says that this build has no CUDA support.
///
/// # Errors
/// [`Error::NotBuilt`], always.
pub fn probe(_ordinal: u32) -> Result<Probe> {
    Err(Error::NotBuilt)
}

/// Methods of a device that does not exist.
macro_rules! methods {
    ($(fn $name:ident($($arg:ty),*) $(-> $out:ty)?;)*) => {
        $(fn $name(&self, $(_: $arg),*) $(-> $out)? {
            match self.0 {}
        })*
    };
}

impl Device for CudaDevice {
    methods! {
        fn info() -> DeviceInfo;
        fn alloc(Space, u64) -> Outcome<Buffer>;
        fn free(Buffer);
        fn restore(Buffer) -> Outcome<()>;
        fn usage(Space) -> Usage;
        fn stream() -> Outcome<Stream>;
        fn free_stream(Stream);
        fn event() -> Outcome<Event>;
        fn free_event(Event);
        fn copy(Stream, Span, Span) -> Outcome<()>;
        fn fill(Stream, Span, u8) -> Outcome<()>;
        fn record(Stream, Event) -> Outcome<()>;
        fn wait(Stream, Event) -> Outcome<()>;
        fn is_done(Event) -> Outcome<bool>;
        fn sync(Stream) -> Outcome<()>;
        fn sync_event(Event) -> Outcome<()>;
        fn timestamp(Event) -> Option<Duration>;
    }

    fn read_host<R>(&self, _: Span, _: impl FnOnce(&[u8]) -> R) -> R {
        match self.0 {}
    }

    fn write_host<R>(&self, _: Span, _: impl FnOnce(&mut [u8]) -> R) -> R {
        match self.0 {}
    }
}

/// Operations of a device that does not exist.
macro_rules! operations {
    ($($op:ident: $Args:ident $uses:tt,)*) => {
        impl Ops for CudaDevice {
            $(fn $op(&self, _: Stream, _: &args::$Args) -> Outcome<()> {
                match self.0 {}
            })*
        }
    };
}

djinn_device::for_each_op!(operations);
