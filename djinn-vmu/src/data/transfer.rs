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
    /// Which swap this is, as it was given.
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
    /// Why it counts for nothing.
    pub fault: Option<SwapFault>,
}

/// Why the pages at a transfer's end are worth nothing.
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
