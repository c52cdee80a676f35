//! A device with what the checks need: uploads, downloads, random data, comparisons.

use super::Tolerance;
use crate::args::Weight;
use crate::kernels::element::Elements;
use crate::{Buffer, DType, Ops, Result, Space, Span, Stream};
use half::{bf16, f16};
use std::ops::Range;

/// All types of weights and caches.
pub(super) const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// A device, a stream of it, and what was allocated for the present case.
pub(super) struct Rig<D: Ops> {
    pub(super) device: D,
    pub(super) stream: Stream,
    pub(super) tolerance: Tolerance,
    pub(super) random: Random,
    buffers: Vec<Buffer>,
}

impl<D: Ops> Rig<D> {
    pub(super) fn new(device: D, tolerance: Tolerance) -> Self {
        let stream = device.stream().expect("a stream");
        Rig { device, stream, tolerance, random: Random(1), buffers: Vec::new() }
    }

    /// `len` bytes of 0xFF, which are NaNs of every type.
    pub(super) fn blank(&mut self, len: usize) -> Span {
        let buffer = self.device.alloc(Space::Device, len as u64).expect("room for a small buffer");
        self.buffers.push(buffer);
        self.enqueued(self.device.fill(self.stream, buffer.span(), 0xff));
        buffer.span()
    }

    /// NaNs for `len` f32.
    pub(super) fn blank_f32(&mut self, len: usize) -> Span {
        self.blank(len * 4)
    }

    pub(super) fn upload_host(&mut self, bytes: &[u8]) -> Span {
        let buffer = self.device.alloc(Space::Host, bytes.len() as u64).expect("room for a small buffer");
        self.buffers.push(buffer);
        self.device.write_host(buffer.span(), |to| to.copy_from_slice(bytes));
        buffer.span()
    }

    pub(super) fn upload<T: bytemuck::Pod>(&mut self, data: &[T]) -> Span {
        let bytes = bytemuck::cast_slice(data);
        let host = self.upload_host(bytes);
        let span = self.blank(bytes.len());
        self.enqueued(self.device.copy(self.stream, host, span));
        span
    }

    pub(super) fn weight(&mut self, stored: &Stored) -> Weight {
        Weight { span: self.upload(stored.bytes()), dtype: stored.dtype() }
    }

    /// The elements of a span, once all work is done.
    pub(super) fn download<T: bytemuck::Pod>(&mut self, span: Span) -> Vec<T> {
        let host = self.device.alloc(Space::Host, span.len()).expect("room for a small buffer");
        self.buffers.push(host);
        self.enqueued(self.device.copy(self.stream, span, host.span()));
        self.device.sync(self.stream).expect("no failure");
        self.device.read_host(host.span(), bytemuck::pod_collect_to_vec)
    }

    #[track_caller]
    pub(super) fn enqueued(&self, result: Result<()>) {
        result.expect("work is enqueued");
    }

    /// Ends a case: frees its buffers.
    pub(super) fn free_all(&mut self) {
        self.device.sync(self.stream).expect("no failure");
        for buffer in self.buffers.drain(..) {
            self.device.free(buffer);
        }
    }

    /// The result of all `rows`, computed in batches as large as invariance is promised for; `run` computes
    /// some rows from the first on.
    pub(super) fn in_batches(
        &mut self,
        rows: usize,
        run: impl Fn(&mut Self, usize, usize) -> Vec<f32>,
    ) -> Vec<f32> {
        let step = rows.min(self.device.info().rows_alone as usize);
        (0..rows).step_by(step).flat_map(|first| run(self, first, step.min(rows - first))).collect()
    }

    /// Compares with the reference, within the tolerance for a type.
    #[track_caller]
    pub(super) fn compare(&self, case: &str, got: &[f32], want: &[f32], dtype: DType) {
        assert_eq!(got.len(), want.len(), "{case}");
        let (mut difference, mut norm) = (0.0, 0.0);
        for (&got, &want) in got.iter().zip(want) {
            difference += (f64::from(got) - f64::from(want)).powi(2);
            norm += f64::from(want).powi(2);
        }
        let error = difference.sqrt() / norm.sqrt().max(f64::MIN_POSITIVE);
        let allowed = self.tolerance.of(dtype);
        // Also fails for NaN, i.e. where an output was left unwritten.
        assert!(error <= allowed, "{case}: relative error {error:.3e}, {allowed:.0e} allowed");
    }
}

/// Compares bits.
#[track_caller]
pub(super) fn same_bits(case: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{case}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!(got.to_bits() == want.to_bits(), "{case}: element {i} is {got:?} instead of {want:?}");
    }
}

/// Elements of any type, as they are stored.
#[derive(Clone)]
pub(super) enum Stored {
    F32(Vec<f32>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
}

impl Stored {
    /// Rounds to a type.
    pub(super) fn round(values: &[f32], dtype: DType) -> Stored {
        match dtype {
            DType::F32 => Stored::F32(values.to_vec()),
            DType::F16 => Stored::F16(values.iter().copied().map(f16::from_f32).collect()),
            DType::BF16 => Stored::BF16(values.iter().copied().map(bf16::from_f32).collect()),
            DType::U32 => unreachable!("no type of weights"),
        }
    }

    /// Some of the elements.
    pub(super) fn part(&self, range: Range<usize>) -> Stored {
        match self {
            Stored::F32(x) => Stored::F32(x[range].to_vec()),
            Stored::F16(x) => Stored::F16(x[range].to_vec()),
            Stored::BF16(x) => Stored::BF16(x[range].to_vec()),
        }
    }

    pub(super) fn dtype(&self) -> DType {
        match self {
            Stored::F32(_) => DType::F32,
            Stored::F16(_) => DType::F16,
            Stored::BF16(_) => DType::BF16,
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Stored::F32(x) => bytemuck::cast_slice(x),
            Stored::F16(x) => bytemuck::cast_slice(x),
            Stored::BF16(x) => bytemuck::cast_slice(x),
        }
    }

    pub(super) fn elements(&self) -> Elements<'_> {
        match self {
            Stored::F32(x) => Elements::F32(x),
            Stored::F16(x) => Elements::F16(x),
            Stored::BF16(x) => Elements::BF16(x),
        }
    }
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
pub(super) struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        crate::kernels::reference::mix(self.0)
    }

    /// One of `0..n`.
    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// `len` values in -1..1.
    pub(super) fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
    }

    pub(super) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }

    /// `0..n` in some order.
    pub(super) fn permutation(&mut self, n: usize) -> Vec<u32> {
        let mut all: Vec<u32> = (0..n as u32).collect();
        for i in (1..n).rev() {
            all.swap(i, self.below(i + 1));
        }
        all
    }
}
