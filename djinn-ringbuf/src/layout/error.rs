//! Why a layout cannot be computed.

use core::{error, fmt};

/// Why [`CyclicLayout::new`](crate::CyclicLayout::new) refused its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayoutError {
    /// The alignment is not a power of two.
    BadAlign {
        /// The alignment given.
        align_bytes: u64,
    },
    /// A length is zero.
    ZeroLength {
        /// Its place in the list of lengths.
        index: usize,
    },
    /// A length exceeds the capacity, so no ring of this size can hold it.
    TooLong {
        /// Its place in the list of lengths.
        index: usize,
        /// The length given.
        len_bytes: u64,
        /// The capacity given.
        capacity_bytes: u64,
    },
    /// One pass sweeps over more than `u64::MAX` bytes.
    Overflow {
        /// How many times a pass goes round the ring.
        laps: u64,
        /// The capacity given.
        capacity_bytes: u64,
    },
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::BadAlign { align_bytes } => write!(f, "alignment {align_bytes} is not a power of two"),
            Self::ZeroLength { index } => write!(f, "length {index} is zero"),
            Self::TooLong { index, len_bytes, capacity_bytes } => {
                write!(f, "length {index} is {len_bytes} bytes, more than the ring's {capacity_bytes}")
            }
            Self::Overflow { laps, capacity_bytes } => {
                write!(f, "{laps} laps of {capacity_bytes} bytes exceed 2^64 bytes")
            }
        }
    }
}

impl error::Error for LayoutError {}
