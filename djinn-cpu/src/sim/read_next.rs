//! Outputs that an operation was told only the next product reads: a GPU may keep them nowhere but in a workspace.

use super::tape::Call;
use djinn_device::args::{Attention, Linear, ReadBy, RmsNorm, SiluMul};
use djinn_device::{DType, Encoding, Operation, Span, Stream};
use std::cell::Cell;
use std::mem::{Discriminant, discriminant};

/// The latest such output whose product has not come yet.
#[derive(Default)]
pub(super) struct ReadNext(Cell<Option<(Stream, Span, ReadBy)>>);

impl ReadNext {
    /// Follows a call that enqueues on `stream`.
    ///
    /// # Panics
    /// If another call than the product follows.
    pub(super) fn follow(&self, stream: Stream, call: &Call) {
        match call {
            Call::Operation(Operation::Linear(product)) => self.read(stream, std::slice::from_ref(product)),
            // No call of the host.
            Call::Poison(_) => {}
            _ => assert!(self.take(stream).is_none(), "{call:?} comes before the product that was told of"),
        }
        let Call::Operation(operation) = call else { return };
        if let Operation::RmsNorm(RmsNorm { out, read_by: Some(by), .. })
        | Operation::SiluMul(SiluMul { out, read_by: Some(by), .. })
        | Operation::Attention(Attention { out, read_by: Some(by), .. }) = *operation
            && by.alone
        {
            self.0.set(Some((stream, out, by)));
        }
    }

    /// Follows a product with these tiles.
    ///
    /// # Panics
    /// If another product follows.
    pub(super) fn read(&self, stream: Stream, tiles: &[Linear]) {
        let Some((out, by)) = self.take(stream) else { return };
        let fits = |tile: &Linear| {
            tile.x == out && kind(tile.weight.dtype, tile.weight.encoding) == kind(by.dtype, by.encoding)
        };
        assert!(tiles.iter().all(fits), "{tiles:?} read {out:?}, which was told of {by:?}");
    }

    fn take(&self, stream: Stream) -> Option<(Span, ReadBy)> {
        let (_, out, by) = self.0.get().filter(|(on, ..)| *on == stream)?;
        self.0.set(None);
        Some((out, by))
    }
}

/// What the tiles of a product must have in common.
fn kind(dtype: DType, encoding: Encoding) -> (DType, Discriminant<Encoding>) {
    (dtype, discriminant(&encoding))
}
