//! The source of weights: the interface between the text segment and checkpoints.

use std::ops::Range;

/// Bytes of weights by their names in the graph. Checkpoint readers and synthetic weights implement it. Several
/// threads read at once.
pub trait WeightSource: Send + Sync {
    /// Writes rows `rows` of the weight `name`, row-major, in the dtype that the graph declares, to `out`, which has
    /// exactly their length. The same call always gives the same bytes.
    fn read_rows(&self, name: &str, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError>;
}

/// A weight cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read weight {name}: {source}")]
pub struct SourceError {
    /// The weight.
    pub name: String,
    /// Why.
    pub source: Box<dyn std::error::Error + Send + Sync>,
}
