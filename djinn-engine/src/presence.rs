//! Models that leave the device for others, and come back.

use crate::{Engine, Result};
use djinn_device::Ops;
use djinn_vmu::WeightSource;
use std::ops::ControlFlow;

impl<D: Ops> Engine<D> {
    /// Frees the model's device memory, except for weights that other models use. Streamed weights and pages in host
    /// memory stay, and so do copies of resident weights if the runtime [keeps some](crate::Runtime::in_turns). Keys
    /// and values on the device are lost.
    ///
    /// # Panics
    /// If a pass or a copy of pages is under way, or the model is away.
    pub fn evict(&mut self) {
        self.passes.expect_idle();
        self.settle();
        self.parts.evict(&self.runtime);
        self.runtime.moved(&self.parts.plan, true);
    }

    /// Brings the model back, with the same weights and results. Weights without a copy in host memory are read from
    /// `source`. `progress` gets the bytes so far and in all, and may cancel.
    ///
    /// # Errors
    /// A device without room, a weight that is unreadable or has changed, or
    /// [`Error::Cancelled`](crate::Error::Cancelled). The model then stays away.
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

    /// Bytes of device memory that the model needs to come back, without weights that others hold; 0 while it is
    /// there.
    pub fn missing_bytes(&self) -> u64 {
        self.parts.missing_bytes(&self.runtime)
    }

    /// Bytes of resident weights that are also kept in host memory; 0 while another model of the runtime is loaded.
    pub fn copy_bytes(&self) -> u64 {
        self.parts.copy_bytes(&self.runtime)
    }

    /// Drops the host copies of resident weights. Returns the bytes that this frees.
    pub fn drop_copies(&mut self) -> u64 {
        self.parts.drop_copies(&self.runtime)
    }
}
