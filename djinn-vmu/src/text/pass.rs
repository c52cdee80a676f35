//! Statistics of streaming in a pass.

use crate::ChunkId;
use std::time::Duration;

/// A wait for a copy counts as a stall if it is longer. Shorter waits are the cost of an event.
pub const STALL: Duration = Duration::from_micros(10);

/// When one streamed chunk was copied and used in a pass, by the device's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkTimes {
    /// The chunk.
    pub chunk: ChunkId,
    /// Bytes copied: the whole chunk, or 0 if the pass did not use it, or used it in host memory.
    pub bytes: u64,
    /// The copy began.
    pub begin: Duration,
    /// The copy was done.
    pub ready: Duration,
    /// The first operation could run, but for the copy.
    pub need: Duration,
    /// The first operation began, or the joining of a chunk's two parts.
    pub go: Duration,
    /// The last operation that uses it was done.
    pub done: Duration,
}

/// Statistics of one pass, by the device's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PassStats {
    /// Bytes copied to the ring for this pass. If the device decides, it reports them.
    pub streamed_bytes: u64,
    /// Bytes of weights that this pass used in host memory.
    pub cpu_bytes: u64,
    /// Time in which the CPU computed with them, where that is not the device.
    pub cpu: Duration,
    /// Time in which those copies ran.
    pub copy: Duration,
    /// Time in which operations waited for a copy.
    pub stall: Duration,
    /// How often they waited for more than 10 µs.
    pub stalls: u32,
}

impl PassStats {
    /// Share of the copy time that computation, sampling or prefetch hid, from 0 to 1. `None` if nothing was copied.
    pub fn hidden(&self) -> Option<f64> {
        let stalled = self.stall.as_secs_f64() / self.copy.as_secs_f64();
        (!self.copy.is_zero()).then(|| (1.0 - stalled).max(0.0))
    }

    /// Adds another pass.
    pub fn add(&mut self, other: &PassStats) {
        self.streamed_bytes += other.streamed_bytes;
        self.cpu_bytes += other.cpu_bytes;
        self.cpu += other.cpu;
        self.copy += other.copy;
        self.stall += other.stall;
        self.stalls += other.stalls;
    }
}
