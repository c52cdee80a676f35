//! Virtual memory unit for tensors: three segments under one byte-exact budget.
//!
//! [`MemoryPlan`] decides, from a graph and a budget, where every byte lies, before anything is allocated;
//! [`predict`] says how fast a pass over that plan would be. Then [`TextSegment`] holds the weights (some
//! resident, the rest streamed through a ring), [`DataSegment`] the bytes of the KV cache's pages
//! (on the device and in host memory), and [`StackSegment`] the activations.
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod allocations;
mod data;
mod error;
mod machine;
mod plan;
mod predict;
mod program;
pub mod size;
mod source;
mod stack;
mod text;

pub use allocations::Allocations;
pub use data::{
    DataSegment, Direction, KvLayout, Moved, SWAP_PIECE_BYTES, SwapFault, SwapPace, SwapStats, Transfer,
};
pub use error::{Error, Result};
pub use machine::{Bound, Busy, Machine, ProductRates};
pub use plan::{Budget, Demand, MemoryPlan, Segments};
pub use predict::{Bottleneck, Prediction, predict};
pub use program::{Detail, Fused, Launch, NextProduct, Program};
pub use source::{SourceError, WeightSource};
pub use stack::StackSegment;
pub use text::{
    Chunk, ChunkId, ChunkTimes, CpuExchange, CpuRouter, LoadedTile, PassStats, PlacedTile, Placement, STALL,
    Section, StreamPosition, Streamer, TextSegment, TextStore,
};
