//! Device memory that operations use while they run, shared by all streams in turn.

use crate::present::memory::{Block, Place};
use crate::present::stream::{RawEvent, RawStream};
use crate::{Error, Result};
use djinn_device::Stream;
use std::cell::Cell;

/// Workspace of cuBLASLt; NVIDIA's recommendation for Hopper.
pub(crate) const CUBLAS_BYTES: u64 = 32 << 20;

/// The workspaces. They are claimed before they are used.
pub(crate) struct Scratch {
    block: Block,
    decoded_bytes: u64,
    owner: Cell<Option<Stream>>,
    handover: RawEvent,
}

impl Scratch {
    /// Workspaces with `activation_bytes` for activations and `decoded_bytes` for decoded weights, both rounded up to
    /// whole 2 MiB.
    pub(crate) fn new(activation_bytes: u64, decoded_bytes: u64, free_bytes: u64) -> Result<Self> {
        let rounded = |bytes: u64| bytes.checked_next_multiple_of(2 << 20).unwrap_or(u64::MAX);
        let decoded_bytes = rounded(decoded_bytes);
        let requested_bytes =
            CUBLAS_BYTES.saturating_add(decoded_bytes).saturating_add(rounded(activation_bytes));
        let block = if requested_bytes > free_bytes { None } else { Block::new(requested_bytes)? };
        let block = block.ok_or(Error::CardFull { requested_bytes, free_bytes })?;
        Ok(Scratch { block, decoded_bytes, owner: Cell::new(None), handover: RawEvent::new()? })
    }

    /// Bytes of device memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.block.place().len()
    }

    /// Orders later work of stream `id` after all work of the stream that used the workspaces before, which
    /// `previous` finds. Costs nothing while one stream computes.
    pub(crate) fn claim(
        &self,
        (id, stream): (Stream, &RawStream),
        previous: impl FnOnce(Stream, &dyn Fn(&RawStream) -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        match self.owner.replace(Some(id)) {
            Some(owner) if owner != id => {
                previous(owner, &|before| before.record(&self.handover))?;
                stream.wait(&self.handover)
            }
            _ => Ok(()),
        }
    }

    /// For cuBLASLt.
    pub(crate) fn cublas(&self) -> Place {
        self.block.place().slice(0, CUBLAS_BYTES)
    }

    /// For decoded weights.
    pub(crate) fn decoded(&self) -> Place {
        self.block.place().slice(CUBLAS_BYTES, self.decoded_bytes)
    }

    /// For rounded activations, or partial results of attention.
    pub(crate) fn activations(&self) -> Place {
        let before = CUBLAS_BYTES + self.decoded_bytes;
        self.block.place().slice(before, self.bytes() - before)
    }
}
