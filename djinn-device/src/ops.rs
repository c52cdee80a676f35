//! The [`Ops`] trait: the closed list of decoder operations.

use crate::args::{
    Add, Argmax, Attention, Checksum, Combine, CopyExpert, CopyPages, Embed, ExpertLinear, Gelu, Group,
    HeadNorm, KvWrite, LayerNorm, Linear, RmsNorm, Rope, RopeTable, Route, SelectRows, SiluMul,
};
use crate::{Device, Result, Stream};

/// Decoder operations. Each enqueues on `stream` and returns at once; results are defined by the scalar
/// reference of the CPU device, up to the tolerance of [`conformance`](crate::conformance). Arguments were
/// checked by the caller (`args.check()`); devices only `debug_assert` them.
///
/// Every operation computes each output row from that row's inputs alone, in an order that does not depend
/// on how many rows there are: results are *batch-invariant*. A device may compute `linear` and `attention` of
/// many rows on other units, in another order; it states the number of rows up to which a row's bits are the
/// same in every batch ([`DeviceInfo::rows_alone`](crate::DeviceInfo::rows_alone)).
pub trait Ops: Device {
    /// See [`Embed`].
    fn embed(&self, stream: Stream, args: &Embed) -> Result<()>;
    /// See [`RopeTable`].
    fn rope_table(&self, stream: Stream, args: &RopeTable) -> Result<()>;
    /// See [`RmsNorm`].
    fn rms_norm(&self, stream: Stream, args: &RmsNorm) -> Result<()>;
    /// See [`LayerNorm`].
    fn layer_norm(&self, stream: Stream, args: &LayerNorm) -> Result<()>;
    /// See [`HeadNorm`].
    fn head_norm(&self, stream: Stream, args: &HeadNorm) -> Result<()>;
    /// See [`Linear`].
    fn linear(&self, stream: Stream, args: &Linear) -> Result<()>;
    /// See [`Rope`].
    fn rope(&self, stream: Stream, args: &Rope) -> Result<()>;
    /// See [`KvWrite`].
    fn kv_write(&self, stream: Stream, args: &KvWrite) -> Result<()>;
    /// See [`Attention`].
    fn attention(&self, stream: Stream, args: &Attention) -> Result<()>;
    /// See [`SiluMul`].
    fn silu_mul(&self, stream: Stream, args: &SiluMul) -> Result<()>;
    /// See [`Gelu`].
    fn gelu(&self, stream: Stream, args: &Gelu) -> Result<()>;
    /// See [`Add`].
    fn add(&self, stream: Stream, args: &Add) -> Result<()>;
    /// See [`SelectRows`].
    fn select_rows(&self, stream: Stream, args: &SelectRows) -> Result<()>;
    /// See [`Argmax`].
    fn argmax(&self, stream: Stream, args: &Argmax) -> Result<()>;
    /// See [`CopyPages`].
    fn copy_pages(&self, stream: Stream, args: &CopyPages) -> Result<()>;
    /// See [`Route`].
    fn route(&self, stream: Stream, args: &Route) -> Result<()>;
    /// See [`Group`].
    fn group(&self, stream: Stream, args: &Group) -> Result<()>;
    /// See [`ExpertLinear`].
    fn expert_linear(&self, stream: Stream, args: &ExpertLinear) -> Result<()>;
    /// See [`Combine`].
    fn combine(&self, stream: Stream, args: &Combine) -> Result<()>;
    /// See [`CopyExpert`].
    fn copy_expert(&self, stream: Stream, args: &CopyExpert) -> Result<()>;
    /// See [`Checksum`].
    fn checksum(&self, stream: Stream, args: &Checksum) -> Result<()>;

    /// [`add`](Ops::add), then [`rms_norm`](Ops::rms_norm) of the sum, with the same bits; devices may do both in
    /// one launch. `norm.x` is `add.out`; each of `add.out` and `norm.out` is one of `add.a` and `add.b` as a
    /// whole, or shares no byte with them.
    fn add_rms_norm(&self, stream: Stream, add: &Add, norm: &RmsNorm) -> Result<()> {
        self.add(stream, add)?;
        self.rms_norm(stream, norm)
    }

    /// One [`linear`](Ops::linear) after another, with the same bits; devices may do those in one launch that are of
    /// the same rows with successive tiles of a weight.
    fn linear_tiles(&self, stream: Stream, tiles: &[Linear]) -> Result<()> {
        tiles.iter().try_for_each(|tile| self.linear(stream, tile))
    }

    /// [`rope`](Ops::rope), then [`kv_write`](Ops::kv_write) of the same `qkv`, with the same bits; devices may
    /// do both in one launch.
    fn rope_kv_write(&self, stream: Stream, rope: &Rope, write: &KvWrite) -> Result<()> {
        self.rope(stream, rope)?;
        self.kv_write(stream, write)
    }
}
