//! Skip-end ring allocation over offsets.
//!
//! The ring owns no bytes: it hands out `[offset, offset + len)` within a capacity, in bytes, and the
//! caller maps that onto its memory. Regions follow one another; one that does not fit before the end
//! starts again at offset 0 and the tail is *skipped*, so that no region ever straddles the end and one
//! copy fills it. Offsets are aligned relative to offset 0: the memory's base must be aligned as well.
//!
//! ```text
//! 0                                          capacity
//! | C ......... free ......... | A    | B    | skipped |
//! ```
//!
//! - [`CyclicLayout`] places a fixed list of regions once, for a cycle that is repeated for ever, and
//!   tells for each which earlier one must be done with before it may be overwritten.
//! - [`Ring`] serves requests as they come: reserve, retire (no more uses will be issued), reclaim (the
//!   issued uses are over). Bytes come back in the order in which they were reserved.
//!
//! Both are deterministic: the same calls give the same offsets.
//!
//! Skipping the end is the exact-size grant of the bip-buffer family (Simon Cooke, "The Bip Buffer",
//! 2003; `grant_exact` in the crate `bbqueue`), with more than two regions and two-step freeing.
#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod layout;
mod ring;

pub use layout::{Blocker, BlockerPass, CyclicLayout, LayoutError, Slot};
pub use ring::{Full, Region, Ring};
