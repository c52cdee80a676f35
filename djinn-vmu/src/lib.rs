//! Virtual memory unit for tensors: three segments under one byte-exact budget.
//!
//! [`MemoryPlan`] decides, from a graph and a budget, where every byte lies, before anything is allocated;
//! [`predict`] says how fast a pass over that plan would be. Then [`TextSegment`] holds the weights (some
//! resident, the rest streamed through a ring), [`DataSegment`] the KV cache in pages (shared,
//! forked, parked in host memory), and [`StackSegment`] the activations.
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod data;
mod error;
mod plan;
mod predict;
pub mod size;
mod source;
mod stack;
mod text;

pub use data::{
    Arriving, DataSegment, Direction, HostFull, KvLayout, Moved, NotMoved, PagesFull, Parked, Refusal,
    SWAP_PIECE_BYTES, Sequence, SwapPace, SwapStats, Transfer,
};
pub use error::{Error, Result};
pub use plan::{Budget, Demand, MemoryPlan, Segments};
pub use predict::{Bottleneck, Prediction, predict};
pub use source::{SourceError, WeightSource};
pub use stack::StackSegment;
pub use text::{
    Chunk, ChunkId, ChunkTimes, PassStats, Phase, PlacedTile, Placement, STALL, TextSegment, TextStore,
};
