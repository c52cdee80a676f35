//! A ring that serves requests as they come and returns bytes in order.

#[cfg(test)]
mod tests;

use alloc::collections::VecDeque;
use core::fmt;
use core::ops::Range;

/// Skip-end FIFO allocation over `[0, capacity)`, in bytes.
///
/// A region goes through three steps: [`reserve`](Ring::reserve); [`retire`](Ring::retire), when its owner
/// will issue no more uses; [`reclaim`](Ring::reclaim), when the uses issued are over (typically an event
/// recorded at retirement is done). Steps may come in any order across regions, but bytes return in the
/// order of reservation: a region reclaimed early waits for the older ones.
///
/// At all times `live() + skipped() + free() == capacity()`. With every region reclaimed the ring is as it
/// was at the start, except that generations go on.
#[derive(Clone, Debug)]
pub struct Ring {
    capacity: u64,
    live: u64,
    skipped: u64,
    retiring: u64,
    /// Regions whose bytes have returned, which is the generation of the oldest entry.
    returned: u64,
    /// From oldest to newest, with consecutive generations.
    entries: VecDeque<Entry>,
}

/// Reserved bytes `[offset, offset + len)`; a handle, valid until it is reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Region {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// How many regions the ring had handed out before: no two regions of a ring share it.
    pub generation: u64,
}

/// There is no room now; an outcome, not an error. All amounts are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Full {
    /// The length asked for. Beyond the capacity, waiting does not help.
    pub requested: u64,
    /// The greatest length that would have been served at this alignment.
    pub largest_contiguous: u64,
    /// Bytes on their way back: [`Ring::retiring`].
    pub retiring: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    region: Region,
    /// Bytes stepped over between the region before and this one; they return with that one.
    skipped: u64,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    Reserved,
    Retired,
    Reclaimed,
}

impl Ring {
    /// An empty ring of `capacity` bytes.
    #[must_use]
    pub const fn new(capacity: u64) -> Self {
        Self { capacity, live: 0, skipped: 0, retiring: 0, returned: 0, entries: VecDeque::new() }
    }

    /// Reserves `len` bytes at a multiple of `align`, right after the newest region or, if that does not
    /// fit before the end, at offset 0.
    ///
    /// # Errors
    /// [`Full`] when neither place is free; the ring is unchanged.
    ///
    /// # Panics
    /// If `len` is zero or `align` is not a power of two.
    pub fn reserve(&mut self, len: u64, align: u64) -> Result<Region, Full> {
        assert!(len > 0, "reserve of 0 bytes in a ring of {} bytes", self.capacity);
        assert!(align.is_power_of_two(), "reserve of {len} bytes at alignment {align}, not a power of two");
        let windows = self.windows(align);
        let bytes = |window: &Range<u64>| window.end.saturating_sub(window.start);
        let Some(window) = windows.iter().find(|window| bytes(window) >= len) else {
            return Err(Full {
                requested: len,
                largest_contiguous: windows.iter().map(bytes).max().unwrap_or(0),
                retiring: self.retiring,
            });
        };
        let (offset, head) = (window.start, self.head());
        let skipped = offset.checked_sub(head).unwrap_or(self.capacity - head);
        let region = Region { offset, len, generation: self.returned + self.entries.len() as u64 };
        self.entries.push_back(Entry { region, skipped, state: State::Reserved });
        self.live += len;
        self.skipped += skipped;
        Ok(region)
    }

    /// Declares that no more uses of `region` will be issued.
    ///
    /// # Panics
    /// If the region is not one of this ring's, or was retired before.
    #[track_caller]
    pub fn retire(&mut self, region: Region) {
        let entry = self.entry_mut("retire", region);
        assert!(entry.state == State::Reserved, "retire of {region}: retired before");
        entry.state = State::Retired;
        self.retiring += region.len;
    }

    /// Gives back `region`, whose issued uses are over. Its bytes become free, and with them any that were
    /// waiting for it, once no older region holds them up.
    ///
    /// # Panics
    /// If the region is not one of this ring's, was not retired, or was reclaimed before.
    #[track_caller]
    pub fn reclaim(&mut self, region: Region) {
        let entry = self.entry_mut("reclaim", region);
        assert!(entry.state != State::Reserved, "reclaim of {region}: not retired");
        assert!(entry.state != State::Reclaimed, "reclaim of {region}: reclaimed before");
        entry.state = State::Reclaimed;
        while self.entries.front().is_some_and(|oldest| oldest.state == State::Reclaimed) {
            let len = self.entries.pop_front().map_or(0, |oldest| oldest.region.len);
            self.live -= len;
            self.retiring -= len;
            self.returned += 1;
            self.skipped -= self.entries.front().map_or(0, |oldest| oldest.skipped);
        }
    }

    /// Whether `region` is this ring's and not yet reclaimed, so that its bytes are still its owner's.
    /// A region of another ring that agrees in every field cannot be told apart.
    #[must_use]
    pub fn holds(&self, region: Region) -> bool {
        self.position(region).is_some_and(|index| self.entries[index].state != State::Reclaimed)
    }

    /// The region that must be reclaimed before any more bytes return.
    #[must_use]
    pub fn oldest(&self) -> Option<Region> {
        self.entries.front().map(|oldest| oldest.region)
    }

    /// Bytes of the ring.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes of all regions that have not returned, whatever their step.
    #[must_use]
    pub fn live(&self) -> u64 {
        self.live
    }

    /// Bytes stepped over between those regions: tails that were too short, and padding for alignment.
    /// They return together with the region before them.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Bytes neither live nor skipped; not all of them need be contiguous.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.capacity - self.live - self.skipped
    }

    /// The part of [`live`](Ring::live) that was retired: it returns without another call to
    /// [`retire`](Ring::retire), except where an older region holds it up.
    #[must_use]
    pub fn retiring(&self) -> u64 {
        self.retiring
    }

    /// End of the newest region.
    fn head(&self) -> u64 {
        self.entries.back().map_or(0, |newest| newest.region.offset + newest.region.len)
    }

    /// The places where the next region may go, best first. An end before its start means no room.
    fn windows(&self, align: u64) -> [Range<u64>; 2] {
        let start = self.head().checked_next_multiple_of(align).unwrap_or(u64::MAX);
        match (self.entries.front(), self.entries.back()) {
            (Some(oldest), Some(newest)) if newest.region.offset < oldest.region.offset => {
                [start..oldest.region.offset, 0..0]
            }
            (oldest, _) => [start..self.capacity, 0..oldest.map_or(0, |oldest| oldest.region.offset)],
        }
    }

    fn position(&self, region: Region) -> Option<usize> {
        let index = usize::try_from(region.generation.checked_sub(self.returned)?).ok()?;
        (self.entries.get(index)?.region == region).then_some(index)
    }

    #[track_caller]
    fn entry_mut(&mut self, step: &str, region: Region) -> &mut Entry {
        let outstanding = self.returned..self.returned + self.entries.len() as u64;
        match self.position(region) {
            Some(index) => &mut self.entries[index],
            None if region.generation < outstanding.start => {
                panic!("{step} of {region}: stale, outstanding are generations {outstanding:?}")
            }
            None => panic!("{step} of {region}: not from this ring of {} bytes", self.capacity),
        }
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "region {} ({} bytes at offset {})", self.generation, self.len, self.offset)
    }
}
