//! The layout of one pass over a ring, computed once and repeated for ever.

mod error;
#[cfg(test)]
mod tests;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;

pub use error::LayoutError;

/// Where each of a fixed list of regions lies in a ring that they cycle through.
///
/// A *pass* copies and uses every slot once, in order; passes follow one another without end. Every pass
/// uses the same offsets and starts at offset 0, so one pass can be recorded and replayed.
///
/// A copy into a slot overwrites what lay there, so it must wait for its [`Blocker`]. The caller that issues
/// copies in order, each once its blocker's uses are done, never overwrites bytes that are still needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CyclicLayout {
    capacity: u64,
    skipped: u64,
    slots: Vec<Slot>,
    lookahead: Vec<usize>,
}

/// One region of a [`CyclicLayout`], in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    /// First byte, a multiple of the layout's alignment.
    pub offset: u64,
    /// Bytes. `offset + len` is at most the capacity, except in a [straddling](CyclicLayout::straddling)
    /// layout: there the bytes from the capacity on lie at offset 0.
    pub len: u64,
    /// The slot to wait for before overwriting this one.
    pub blocker: Blocker,
}

/// The latest slot before this one, in cyclic order, that shares a byte with it.
///
/// Slots are used in order, so once the blocker's last use is done, so are those of every earlier slot
/// that overlaps. A slot that shares its bytes with no other is blocked by itself in the previous pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Blocker {
    /// Index of the blocking slot.
    pub index: usize,
    /// The pass whose use of that slot blocks.
    pub pass: BlockerPass,
}

/// The pass that a [`Blocker`] belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockerPass {
    /// The pass of the blocked slot; the blocker's index is smaller.
    Same,
    /// The pass before; there is none in the first pass, so nothing to wait for.
    Previous,
}

impl CyclicLayout {
    /// Lays out one pass of regions of `lens` bytes, in order of use, in a ring of `capacity` bytes; each
    /// starts at a multiple of `align`. No lengths give an empty layout. Takes O(n log n) time.
    ///
    /// # Errors
    /// See [`LayoutError`]: an alignment that is no power of two, a length that is zero or exceeds the
    /// capacity, or a pass that sweeps over more bytes than a `u64` counts.
    pub fn new(capacity: u64, align: u64, lens: &[u64]) -> Result<Self, LayoutError> {
        Self::place(capacity, align, lens, false)
    }

    /// As [`new`](Self::new), but nothing is skipped at the end of the ring: a region that does not fit
    /// before it goes on at offset 0, in two [parts](Self::parts). For comparison with skip-end: a region in
    /// two parts takes two copies, and a user of contiguous bytes must join them elsewhere.
    ///
    /// # Errors
    /// As `new`.
    pub fn straddling(capacity: u64, align: u64, lens: &[u64]) -> Result<Self, LayoutError> {
        Self::place(capacity, align, lens, true)
    }

    fn place(capacity: u64, align: u64, lens: &[u64], straddle: bool) -> Result<Self, LayoutError> {
        let (offsets, laps) = place(capacity, align, lens, straddle)?;
        let swept =
            laps.checked_mul(capacity).ok_or(LayoutError::Overflow { laps, capacity_bytes: capacity })?;
        let regions: Vec<_> = offsets.iter().zip(lens).map(|(&at, &len)| parts(capacity, at, len)).collect();
        let times = blocker_times(&regions);
        let blocker = |time: usize| match time.checked_sub(lens.len()) {
            Some(index) => Blocker { index, pass: BlockerPass::Same },
            None => Blocker { index: time, pass: BlockerPass::Previous },
        };
        let slots = offsets.iter().zip(lens).zip(&times);
        Ok(Self {
            capacity,
            skipped: swept - lens.iter().sum::<u64>(),
            slots: slots
                .map(|((&offset, &len), &time)| Slot { offset, len, blocker: blocker(time) })
                .collect(),
            lookahead: lookahead(&times),
        })
    }

    /// The slots of one pass, in order of use.
    #[must_use]
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Bytes of the ring.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The bytes of slot `index`: from its offset on, and what lies at offset 0 after the wrap, which is
    /// empty unless the slot straddles it.
    ///
    /// # Panics
    /// If there is no such slot.
    #[must_use]
    pub fn parts(&self, index: usize) -> [Range<u64>; 2] {
        parts(self.capacity, self.slots[index].offset, self.slots[index].len)
    }

    /// Bytes that one pass steps over without using them: tails that were too short, the rest of the last
    /// lap, and padding for alignment. With the slots' bytes they make up a whole number of laps.
    #[must_use]
    pub fn skipped_bytes(&self) -> u64 {
        self.skipped
    }

    /// How many slots after slot `index`, running on into the next pass, may be copied or being copied
    /// while `index` is in use and all slots before it are done, when copies are issued in order. It is
    /// less than the number of slots; 0 means that the next copy waits for this slot.
    ///
    /// # Panics
    /// If there is no such slot.
    #[must_use]
    pub fn lookahead(&self, index: usize) -> usize {
        self.lookahead[index]
    }
}

/// `len` bytes from `offset`, as they lie in the ring.
fn parts(capacity: u64, offset: u64, len: u64) -> [Range<u64>; 2] {
    let before = len.min(capacity - offset);
    [offset..offset + before, 0..len - before]
}

/// The offsets of a placement from offset 0, and in how many laps; skip-end unless regions may straddle.
fn place(capacity: u64, align: u64, lens: &[u64], straddle: bool) -> Result<(Vec<u64>, u64), LayoutError> {
    if !align.is_power_of_two() {
        return Err(LayoutError::BadAlign { align_bytes: align });
    }
    let (mut cursor, mut laps) = (0_u64, 0);
    let offset = |(index, &len): (usize, &u64)| {
        if len == 0 {
            return Err(LayoutError::ZeroLength { index });
        }
        let Some(last) = capacity.checked_sub(len) else {
            return Err(LayoutError::TooLong { index, len_bytes: len, capacity_bytes: capacity });
        };
        let last = if straddle { capacity - 1 } else { last };
        let offset = cursor.checked_next_multiple_of(align).filter(|&offset| offset <= last).unwrap_or(0);
        let [before, after] = parts(capacity, offset, len);
        // A lap begins with the byte at offset 0.
        laps += u64::from(offset == 0 || !after.is_empty());
        cursor = if after.is_empty() { before.end } else { after.end };
        Ok(offset)
    };
    let offsets = lens.iter().enumerate().map(offset).collect::<Result<_, _>>()?;
    Ok((offsets, laps))
}

/// The blocker of each slot as a time: `i` for slot `i` of a first pass, `n + i` for slot `i` of a second,
/// where the blocked slots are those of the second.
///
/// Two passes are painted over the ring. It is kept as runs of bytes last painted at the same time, from
/// the key up to the next key; a part adds at most two runs, so all the removals together are O(n).
fn blocker_times(regions: &[[Range<u64>; 2]]) -> Vec<usize> {
    let n = regions.len();
    // Unpainted bytes count as time 0; the second pass meets none.
    let mut runs = BTreeMap::from([(0, 0)]);
    let painter = |runs: &BTreeMap<u64, usize>, byte: u64| {
        *runs.range(..=byte).next_back().expect("a run starts at offset 0").1
    };
    let mut paint_part = |time: usize, part: &Range<u64>| {
        let mut latest = painter(&runs, part.start);
        let after = painter(&runs, part.end);
        runs.insert(part.end, after);
        while let Some((&run, &time)) = runs.range(part.clone()).next() {
            latest = latest.max(time);
            runs.remove(&run);
        }
        runs.insert(part.start, time);
        latest
    };
    let mut paint = |time: usize| {
        let parts = regions[time % n].iter().filter(|part| !part.is_empty());
        parts.map(|part| paint_part(time, part)).max().expect("a region has bytes")
    };
    (0..2 * n).map(&mut paint).skip(n).collect()
}

/// [`CyclicLayout::lookahead`] of each slot. The first slot to wait for slot `i` or a later one only moves
/// forward as `i` does, so one sweep finds them all.
fn lookahead(blocker_times: &[usize]) -> Vec<usize> {
    let n = blocker_times.len();
    // For slots from the second pass on.
    let blocked_until = |time: usize| blocker_times[time % n] + (time / n - 1) * n;
    let mut next = n;
    let ahead = |time: usize| {
        // Passes `time` itself too: a slot is blocked by one before it.
        while blocked_until(next) < time {
            next += 1;
        }
        next - time - 1
    };
    (n..2 * n).map(ahead).collect()
}
