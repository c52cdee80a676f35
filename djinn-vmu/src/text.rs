//! The text segment: weights, read-only and shared, some resident and the rest streamed through a ring.

mod chunk;
mod load;
mod placement;
mod segment;
mod store;
mod streamer;

pub use chunk::{Chunk, ChunkId, PlacedTile};
pub use placement::Placement;
pub use segment::TextSegment;
pub use store::TextStore;
pub(crate) use streamer::CHECK_BYTES;
pub use streamer::{ChunkTimes, PassStats, Phase, STALL};

pub(crate) use chunk::pack;
pub(crate) use placement::{choose_resident, layout};
