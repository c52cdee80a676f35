//! Why memory cannot be planned, loaded or streamed.

use crate::SourceError;
use crate::size::human;

/// A plan that does not fit, or a failure while loading or streaming.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each message says what its fields are")]
pub enum Error {
    /// The budget is too small for any plan.
    #[error(
        "a device budget of {} is too small: this model, context and batch need at least {} ({least_bytes} bytes: \
         {reason}); {remedy}",
        human(*vram_bytes), human(*least_bytes)
    )]
    BudgetTooSmall { vram_bytes: u64, least_bytes: u64, reason: String, remedy: &'static str },
    /// The weights that stay on the host, and the pages for swapped sequences, exceed the host budget.
    #[error(
        "a host budget of {} is too small: {} of weights{} stay on the host ({needed_bytes} bytes); {remedy}",
        human(*ram_bytes),
        human(needed_bytes - kv_bytes),
        if *kv_bytes > 0 { format!(" and {} of KV pages", human(*kv_bytes)) } else { String::new() }
    )]
    HostBudgetTooSmall {
        ram_bytes: u64,
        /// Host bytes of the plan.
        needed_bytes: u64,
        kv_bytes: u64,
        remedy: &'static str,
    },
    /// Chunks cannot be smaller than the model's largest tile.
    #[error(
        "`chunk` of {} is smaller than the model's largest tile; use at least {} ({least_bytes} bytes)",
        human(*chunk_bytes), human(*least_bytes)
    )]
    ChunkTooSmall { chunk_bytes: u64, least_bytes: u64 },
    /// The ring cannot hold the largest streamed chunk.
    #[error(
        "`ring` of {} is smaller than the largest streamed chunk; use at least {} ({least_bytes} bytes)",
        human(*ring_bytes), human(*least_bytes)
    )]
    RingTooSmall { ring_bytes: u64, least_bytes: u64 },
    /// A fraction outside 0 to 1.
    #[error("`{0}` {1} is not between 0 and 1")]
    Fraction(&'static str, f64),
    /// Sizes overflow 64 bits.
    #[error("the plan's sizes overflow: {0}")]
    Overflow(&'static str),
    /// A weight cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A model that comes back to the device was read again and has changed.
    #[error("the model's files changed since it was loaded (chunk {chunk}); load it again")]
    SourceChanged { chunk: u32 },
    /// The progress callback cancelled the load.
    #[error("cancelled")]
    Cancelled,
    /// The device failed.
    #[error(transparent)]
    Device(#[from] djinn_device::Error),
    /// The stream check found a chunk in the ring that differs from the loaded one.
    #[error(
        "stream check: chunk {chunk} differs from its host copy in pass {pass}: expected {expected:#018x}, found {found:#018x}"
    )]
    StreamCorrupt {
        chunk: u32,
        /// The pass, counted from 0.
        pass: u64,
        expected: u64,
        found: u64,
    },
}

/// This crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;
