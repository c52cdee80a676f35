//! The text segment: weights, read-only and shared, some resident and the rest streamed through a ring.

mod chunk;
mod load;
mod mirror;
mod pass;
mod placement;
mod segment;
mod slot;
mod store;
mod streamer;

pub use chunk::{Chunk, ChunkId, PlacedTile};
pub use pass::{ChunkTimes, PassStats, STALL};
pub use placement::Placement;
pub use segment::TextSegment;
pub use store::TextStore;
pub use streamer::Phase;
pub(crate) use streamer::{CHECK_BYTES, FLAG_BYTES};

pub(crate) use chunk::pack;
pub(crate) use placement::{choose_resident, layout, twins};
