//! Device memory that operations use while they run, shared by all streams in turn.

use crate::present::memory::{Block, Place};
use crate::present::stream::{RawEvent, RawStream};
use crate::{Error, Result};
use djinn_device::Stream;
use std::cell::Cell;

/// Workspace of cuBLASLt; NVIDIA's recommendation for Hopper.
pub(crate) const CUBLAS_BYTES: u64 = 32 << 20;

/// Counters of attention.
const COUNTER_BYTES: u64 = (djinn_cuda_sys::DJINN_ATTENTION_COUNTERS as u64 * 4).next_multiple_of(256);

/// The workspaces. They are claimed before they are used.
pub(crate) struct Scratch {
    block: Block,
    decoded_bytes: u64,
    owner: Cell<Option<Stream>>,
    handover: RawEvent,
}

impl Scratch {
    /// Workspaces with at least `activation_bytes` for activations and `decoded_bytes` for decoded weights, in whole
    /// 2 MiB.
    pub(crate) fn new(activation_bytes: u64, decoded_bytes: u64, free_bytes: u64) -> Result<Self> {
        let rounded = |bytes: u64| bytes.checked_next_multiple_of(2 << 20).unwrap_or(u64::MAX);
        let decoded_bytes = rounded(decoded_bytes);
        let others = rounded(activation_bytes.saturating_add(COUNTER_BYTES));
        let requested_bytes = CUBLAS_BYTES.saturating_add(decoded_bytes).saturating_add(others);
        let block = if requested_bytes > free_bytes { None } else { Block::new(requested_bytes)? };
        let block = block.ok_or(Error::CardFull { requested_bytes, free_bytes })?;
        block.clear(requested_bytes - COUNTER_BYTES, COUNTER_BYTES)?;
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

    /// Has later claims wait for the stream that claimed the workspaces before a capture.
    pub(crate) fn return_to(&self, id: Stream) {
        self.owner.set(Some(id));
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
        self.block.place().slice(before, self.bytes() - COUNTER_BYTES - before)
    }

    /// The counters of attention. Every launch leaves them zero.
    pub(crate) fn counters(&self) -> Place {
        self.block.place().slice(self.bytes() - COUNTER_BYTES, COUNTER_BYTES)
    }
}
