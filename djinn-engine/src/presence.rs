//! Models that leave a device for others, and come back.

use crate::{Engine, Result};
use djinn_device::Ops;
use djinn_vmu::WeightSource;
use std::ops::ControlFlow;

impl<D: Ops> Engine<D> {
    /// Gives all device memory of the model that no other one uses to others. What is in host memory stays: streamed weights,
    /// pages, and copies of resident weights, if the runtime [keeps some](crate::Runtime::in_turns). Keys and values that are
    /// on the device are lost.
    ///
    /// # Panics
    /// If a pass or a copy of pages is under way, or the model is away.
    pub fn evict(&mut self) {
        self.passes.expect_idle();
        self.settle();
        self.parts.evict(&self.runtime);
        self.runtime.moved(&self.parts.plan, true);
    }

    /// Brings the model back, with the weights that it had; it computes what it did before. Weights without a copy in host
    /// memory are read from `source` again. `progress` is told the bytes so far of all bytes, and may end the work.
    ///
    /// # Errors
    /// A device without room, a weight that cannot be read or has changed, or [`Error::Cancelled`](crate::Error::Cancelled):
    /// the model stays away then.
    ///
    /// # Panics
    /// If the model is on the device.
    pub fn restore(
        &mut self,
        source: &dyn WeightSource,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<()> {
        self.parts.restore(&self.runtime, source, progress)?;
        self.runtime.moved(&self.parts.plan, false);
        Ok(())
    }

    /// Whether the model has left the device.
    pub fn is_away(&self) -> bool {
        self.parts.is_away()
    }

    /// Bytes of device memory that the model takes to come back, beside what others hold of its weights; 0 while it is there.
    pub fn missing_bytes(&self) -> u64 {
        self.parts.missing_bytes(&self.runtime)
    }

    /// Bytes of resident weights that are kept in host memory as well; 0 while another model of the runtime is loaded.
    pub fn copy_bytes(&self) -> u64 {
        self.parts.copy_bytes(&self.runtime)
    }

    /// Gives the copies of resident weights in host memory up, and says how many bytes are free by that.
    pub fn drop_copies(&mut self) -> u64 {
        self.parts.drop_copies(&self.runtime)
    }
}
