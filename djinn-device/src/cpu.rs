//! What a device that computes elsewhere needs from the CPU.

use crate::{DType, Encoding};

/// A weight in host memory.
#[derive(Clone, Copy, Debug)]
pub struct HostWeight<'a> {
    /// Exactly the weight's bytes, aligned as device memory is.
    pub bytes: &'a [u8],
    /// As that of [`Weight`](crate::args::Weight).
    pub dtype: DType,
    /// As that of [`Weight`](crate::args::Weight).
    pub encoding: Encoding,
}

/// One product over host memory. The fields are those of [`args::Linear`](crate::args::Linear).
#[derive(Debug)]
pub struct HostLinear<'a> {
    /// `[rows, k]`.
    pub x: &'a [f32],
    /// `[n, k]`.
    pub weight: HostWeight<'a>,
    /// `[n]`.
    pub bias: Option<HostWeight<'a>>,
    /// `[rows, out_width]`; only `n` columns from `out_column` on are written.
    pub out: &'a mut [f32],
    /// Columns of `x`.
    pub k: u32,
    /// Rows of the weight.
    pub n: u32,
    /// Columns of `out`.
    pub out_width: u32,
    /// First column written.
    pub out_column: u32,
}

/// Operations over host memory that a device may leave to the CPU
/// ([`Ops::linear_on_cpu`](crate::Ops::linear_on_cpu), [`Ops::experts_on_cpu`](crate::Ops::experts_on_cpu)).
pub trait CpuOps: Send + Sync {
    /// Computes products. Returns when all are done. Each has the bits that it has alone.
    fn linears(&self, products: Vec<HostLinear<'_>>);

    /// `out[i] = silu(x[i]) · x[width + i]`, for one row of `x`, f32 `[2 · width]`.
    fn silu_mul(&self, x: &[f32], out: &mut [f32]);

    /// For people, e.g. `16 threads, avx512`.
    fn name(&self) -> String;
}
