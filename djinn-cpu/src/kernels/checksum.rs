//! The checksum, in parallel.

use super::simd::{Kernel, Simd};
use super::{Fast, data};
use djinn_device::args::Checksum;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a task.
const TASK_BYTES: usize = 1 << 18;

impl Fast {
    /// See [`djinn_device::args::Checksum`].
    pub(crate) fn checksum(&self, op: data::Checksum<'_>) {
        op.out.copy_from_slice(&self.sum(op.src).to_le_bytes());
    }

    /// See [`djinn_device::checksum`].
    pub(super) fn sum(&self, bytes: &[u8]) -> u64 {
        let total = AtomicU64::new(0);
        self.pool.run(bytes.len().div_ceil(TASK_BYTES), |task| {
            let part = &bytes[task * TASK_BYTES..bytes.len().min((task + 1) * TASK_BYTES)];
            let mut sum = 0;
            self.isa.run(Sum { bytes: part, first_index: (task * TASK_BYTES / 4) as u64, sum: &mut sum });
            total.fetch_add(sum, Ordering::Relaxed);
        });
        total.into_inner()
    }
}

/// The sum over some bytes, whose first word has the index `first_index`.
struct Sum<'a> {
    bytes: &'a [u8],
    first_index: u64,
    sum: &'a mut u64,
}

impl Kernel for Sum<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let (words, rest) = self.bytes.as_chunks::<4>();
        let mut sum = 0_u64;
        for (i, &word) in words.iter().enumerate() {
            let index = self.first_index.wrapping_add(i as u64);
            sum = sum.wrapping_add(Checksum::mix(u64::from(u32::from_le_bytes(word)) ^ Checksum::mix(index)));
        }
        if !rest.is_empty() {
            let mut word = [0; 4];
            word[..rest.len()].copy_from_slice(rest);
            let index = self.first_index.wrapping_add(words.len() as u64);
            sum = sum.wrapping_add(Checksum::mix(u64::from(u32::from_le_bytes(word)) ^ Checksum::mix(index)));
        }
        *self.sum = sum;
    }
}
