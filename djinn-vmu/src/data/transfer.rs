//! What the pager's copies did, by the device's clock.

use std::time::Duration;

/// Which way pages move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From device to host memory.
    Out,
    /// From host to device memory.
    In,
}

/// One sequence's pages moved one way, by the device's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Which parking this belongs to.
    pub ticket: u64,
    /// Which way.
    pub direction: Direction,
    /// Pages copied; those that leave for an unchanged copy on the host are not.
    pub pages: u32,
    /// Bytes copied.
    pub bytes: u64,
    /// The call; or, where the device was later to note it than to copy, the first byte.
    pub asked: Option<Duration>,
    /// The first byte could move.
    pub begin: Option<Duration>,
    /// The last byte was there, and all pages at the other end free.
    pub end: Option<Duration>,
}

impl Transfer {
    /// From the call to the first byte.
    pub fn first_byte(&self) -> Option<Duration> {
        Some(self.begin?.saturating_sub(self.asked?))
    }

    /// From the first byte to the last.
    pub fn moved(&self) -> Option<Duration> {
        Some(self.end?.saturating_sub(self.begin?))
    }

    /// From the call until all bytes were free at the other end.
    pub fn total(&self) -> Option<Duration> {
        Some(self.end?.saturating_sub(self.asked?))
    }
}

/// Transfers of one direction that were seen to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// How many.
    pub transfers: u64,
    /// Their pages.
    pub pages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Time in which they moved.
    pub busy: Duration,
}

/// What swapping did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapStats {
    /// To host memory.
    pub out: Moved,
    /// Back to the device.
    pub back: Moved,
    /// Pages that left without a copy: the host had their bytes since they last came back.
    pub kept: u64,
}
