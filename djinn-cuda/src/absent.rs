//! The device of a build without CUDA: a type without values, so that programs need no conditions.

use crate::{CudaConfig, Error, Probe, Result};
use djinn_device::args::{
    Add, Argmax, Attention, Checksum, Combine, CopyExpert, CopyPages, Embed, ExpertLinear, Gelu, Group,
    HeadNorm, KvWrite, LayerNorm, Linear, RmsNorm, Rope, RopeTable, Route, SelectRows, SiluMul,
};
use djinn_device::{Buffer, Device, DeviceInfo, Event, Ops, Space, Span, Stream, Usage};
use std::convert::Infallible;
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

/// Says that this build has no CUDA support.
///
/// # Errors
/// [`Error::NotBuilt`], always.
pub fn probe(_ordinal: u32) -> Result<Probe> {
    Err(Error::NotBuilt)
}

impl Device for CudaDevice {
    fn info(&self) -> DeviceInfo {
        match self.0 {}
    }

    fn alloc(&self, _: Space, _: u64) -> Outcome<Buffer> {
        match self.0 {}
    }

    fn free(&self, _: Buffer) {
        match self.0 {}
    }

    fn usage(&self, _: Space) -> Usage {
        match self.0 {}
    }

    fn stream(&self) -> Outcome<Stream> {
        match self.0 {}
    }

    fn event(&self) -> Outcome<Event> {
        match self.0 {}
    }

    fn copy(&self, _: Stream, _: Span, _: Span) -> Outcome<()> {
        match self.0 {}
    }

    fn fill(&self, _: Stream, _: Span, _: u8) -> Outcome<()> {
        match self.0 {}
    }

    fn record(&self, _: Stream, _: Event) -> Outcome<()> {
        match self.0 {}
    }

    fn wait(&self, _: Stream, _: Event) -> Outcome<()> {
        match self.0 {}
    }

    fn is_done(&self, _: Event) -> Outcome<bool> {
        match self.0 {}
    }

    fn sync(&self, _: Stream) -> Outcome<()> {
        match self.0 {}
    }

    fn sync_event(&self, _: Event) -> Outcome<()> {
        match self.0 {}
    }

    fn timestamp(&self, _: Event) -> Option<Duration> {
        match self.0 {}
    }

    fn read_host<R>(&self, _: Span, _: impl FnOnce(&[u8]) -> R) -> R {
        match self.0 {}
    }

    fn write_host<R>(&self, _: Span, _: impl FnOnce(&mut [u8]) -> R) -> R {
        match self.0 {}
    }
}

impl Ops for CudaDevice {
    fn embed(&self, _: Stream, _: &Embed) -> Outcome<()> {
        match self.0 {}
    }

    fn rope_table(&self, _: Stream, _: &RopeTable) -> Outcome<()> {
        match self.0 {}
    }

    fn rms_norm(&self, _: Stream, _: &RmsNorm) -> Outcome<()> {
        match self.0 {}
    }

    fn layer_norm(&self, _: Stream, _: &LayerNorm) -> Outcome<()> {
        match self.0 {}
    }

    fn head_norm(&self, _: Stream, _: &HeadNorm) -> Outcome<()> {
        match self.0 {}
    }

    fn linear(&self, _: Stream, _: &Linear) -> Outcome<()> {
        match self.0 {}
    }

    fn rope(&self, _: Stream, _: &Rope) -> Outcome<()> {
        match self.0 {}
    }

    fn kv_write(&self, _: Stream, _: &KvWrite) -> Outcome<()> {
        match self.0 {}
    }

    fn attention(&self, _: Stream, _: &Attention) -> Outcome<()> {
        match self.0 {}
    }

    fn silu_mul(&self, _: Stream, _: &SiluMul) -> Outcome<()> {
        match self.0 {}
    }

    fn gelu(&self, _: Stream, _: &Gelu) -> Outcome<()> {
        match self.0 {}
    }

    fn add(&self, _: Stream, _: &Add) -> Outcome<()> {
        match self.0 {}
    }

    fn select_rows(&self, _: Stream, _: &SelectRows) -> Outcome<()> {
        match self.0 {}
    }

    fn argmax(&self, _: Stream, _: &Argmax) -> Outcome<()> {
        match self.0 {}
    }

    fn copy_pages(&self, _: Stream, _: &CopyPages) -> Outcome<()> {
        match self.0 {}
    }

    fn route(&self, _: Stream, _: &Route) -> Outcome<()> {
        match self.0 {}
    }

    fn group(&self, _: Stream, _: &Group) -> Outcome<()> {
        match self.0 {}
    }

    fn expert_linear(&self, _: Stream, _: &ExpertLinear) -> Outcome<()> {
        match self.0 {}
    }

    fn combine(&self, _: Stream, _: &Combine) -> Outcome<()> {
        match self.0 {}
    }

    fn copy_expert(&self, _: Stream, _: &CopyExpert) -> Outcome<()> {
        match self.0 {}
    }

    fn checksum(&self, _: Stream, _: &Checksum) -> Outcome<()> {
        match self.0 {}
    }
}
