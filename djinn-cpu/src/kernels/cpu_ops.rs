//! The CPU's products, for devices that compute elsewhere.

use super::data::{Linear, SiluMul};
use super::element::{Elements, Matrix};
use super::pool::Pool;
use super::simd::Isa;
use super::{Fast, threads_at_once};
use djinn_device::{CpuOps, HostLinear, Result};
use std::sync::Mutex;

/// Products on the fast path of [`CpuDevice`](crate::CpuDevice), with the same bits.
pub struct CpuKernels(Fast);

impl CpuKernels {
    /// On `threads` threads, the calling one included; 0 for one fewer than the machine runs at once, since another one
    /// waits for the device. They stay awake for some milliseconds between products.
    ///
    /// # Errors
    /// [`Error::Resource`](djinn_device::Error::Resource) if the system refuses a thread.
    pub fn new(threads: usize) -> Result<Self> {
        let threads = if threads == 0 { threads_at_once().saturating_sub(1).max(1) } else { threads };
        let pool = Pool::patient(threads)?;
        Ok(CpuKernels(Fast { isa: Isa::detect(), int8: None, pool, packed: Mutex::default() }))
    }
}

impl CpuOps for CpuKernels {
    fn linears(&self, products: Vec<HostLinear<'_>>) {
        let linear = |HostLinear { x, weight, bias, out, k, n, out_width, out_column }| Linear {
            x,
            weight: Matrix::of(weight, k),
            bias: bias.map(|bias| Elements::of(bias.bytes, bias.dtype)),
            k: k as usize,
            n: n as usize,
            out_width: out_width as usize,
            out_column: out_column as usize,
            out,
        };
        self.0.linears(products.into_iter().map(linear).collect());
    }

    fn silu_mul(&self, x: &[f32], out: &mut [f32]) {
        self.0.silu_mul(SiluMul { x, width: out.len(), out });
    }

    fn name(&self) -> String {
        self.0.threads_and_vectors()
    }
}
