//! Statistics of swaps, by the device's clock.

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
    /// The ticket that the caller gave.
    pub ticket: u64,
    /// The direction.
    pub direction: Direction,
    /// Copied pages. Pages with an unchanged copy on the host are left out.
    pub pages: u32,
    /// Bytes copied.
    pub bytes: u64,
    /// When it was requested; or, if the device noted that later, when the first byte moved.
    pub asked: Option<Duration>,
    /// When the first byte could move.
    pub begin: Option<Duration>,
    /// When the last byte had arrived, and the pages at the other end were free.
    pub end: Option<Duration>,
    /// Why it does not count, if so.
    pub fault: Option<SwapFault>,
}

/// Why the pages at a transfer's end are unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapFault {
    /// The device is sound but refused a call.
    Refused,
    /// In check mode: a page on the device differs from what left for the host.
    Corrupt {
        /// Page of the device.
        page: u32,
        /// Checksum of what left.
        expected: u64,
        /// Checksum of what is there.
        found: u64,
    },
}

impl Transfer {
    pub(super) fn new(ticket: u64, direction: Direction) -> Self {
        Transfer { ticket, direction, pages: 0, bytes: 0, asked: None, begin: None, end: None, fault: None }
    }

    /// From the call to the first byte.
    pub fn first_byte(&self) -> Option<Duration> {
        Some(self.begin?.saturating_sub(self.asked?))
    }

    /// From the first byte to the last.
    pub fn moved(&self) -> Option<Duration> {
        Some(self.end?.saturating_sub(self.begin?))
    }

    /// From the call until the pages at the other end were free.
    pub fn total(&self) -> Option<Duration> {
        Some(self.end?.saturating_sub(self.asked?))
    }
}

/// Ended transfers of one direction.
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

/// Statistics of all swaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapStats {
    /// To host memory.
    pub out: Moved,
    /// Back to the device.
    pub back: Moved,
    /// Pages that left without a copy, since the host had their bytes.
    pub kept: u64,
}

impl SwapStats {
    pub(super) fn add(&mut self, transfer: &Transfer, kept: u32) {
        let moved = match transfer.direction {
            Direction::Out => {
                self.kept += kept as u64;
                &mut self.out
            }
            Direction::In => &mut self.back,
        };
        moved.transfers += 1;
        moved.pages += transfer.pages as u64;
        moved.bytes += transfer.bytes;
        moved.busy += transfer.moved().unwrap_or_default();
    }
}
