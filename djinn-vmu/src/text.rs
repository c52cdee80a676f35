//! The text segment: weights, read-only and shared, some resident and the rest streamed through a ring.

mod chunk;
mod load;
mod mirror;
mod on_cpu;
mod pass;
mod placement;
mod segment;
mod slot;
mod store;
mod streamer;

pub use chunk::{Chunk, ChunkId, PlacedTile, Section};
pub use on_cpu::{CpuExchange, CpuRouter};
pub use pass::{ChunkTimes, PassStats, STALL};
pub use placement::Placement;
pub use segment::{LoadedTile, TextSegment};
pub use store::TextStore;
pub(crate) use streamer::{CHECK_BYTES, FLAG_BYTES};
pub use streamer::{StreamPosition, Streamer};

pub(crate) use chunk::pack;
pub(crate) use on_cpu::{choose_on_cpu, choose_routers};
pub(crate) use placement::{choose_resident, layout, same_chunks};
pub(crate) use store::Hash;
