//! The Semantically Rich Graph (SRG): a decoder, written down once as data.
//!
//! A [`Graph`] lists a model's operations in execution order over values with known lifetimes. It holds no device code
//! and no bytes. Everything else is derived from it: the order in which weights are used ([`tiles`]), the stack
//! segment's offsets ([`StackPlan`]), the KV cache's ([`KvPlan`]), costs and bottlenecks ([`cost`]), and hook points.
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod cost;
mod dtype;
mod encoding;
mod graph;
mod kv;
mod liveness;
mod op;
mod order;
mod value;

pub use dtype::DType;
pub use encoding::{BlockFormat, Encoding, Plane, RowEncodings, TileLayout, lossless_row};
pub use graph::{Graph, GraphBuilder, GraphError, Heads, Hook, Node, NodeId, Routing};
pub use kv::{KvPlace, KvPlan};
pub use liveness::StackPlan;
pub use op::{GeluForm, Op, RopeStyle, Scores};
pub use order::{Condition, Part, Tile, decoded_bytes, gathered_tables, tile_bytes, tiles};
pub use value::{Dim, Lifecycle, Rows, Value, ValueId};
