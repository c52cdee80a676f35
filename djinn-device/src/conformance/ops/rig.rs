//! A device with what the checks need: random data, the host's image of the device's memory, comparisons.

use super::{Stored, Tolerance};
use crate::args::{Checksum, Weight};
use crate::reference::{Contents, Written, encode, written};
use crate::{Buffer, DType, Operation, Ops, Result, Space, Span, Stream};
use std::collections::BTreeMap;
use std::ops::Range;

/// All types of weights and caches.
pub(super) const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Parts of 33 rows, first and count, that must give the same bits as all of them.
pub(super) const PARTS: [(usize, usize); 7] = [(0, 1), (5, 1), (32, 1), (4, 2), (11, 5), (3, 16), (17, 16)];

/// A device, a stream of it, and the buffers of the present case.
pub(super) struct Rig<D> {
    pub(super) device: D,
    pub(super) stream: Stream,
    pub(super) random: Random,
    tolerance: Tolerance,
    image: Image,
    /// Buffers that the image does not show.
    staging: Vec<Buffer>,
}

/// What the buffers of a case must hold, by the buffers' ids.
#[derive(Default)]
struct Image(BTreeMap<u32, Held>);

struct Held {
    buffer: Buffer,
    bytes: Vec<u8>,
    /// Which of the 32-bit words are f32 up to rounding.
    rounded: Vec<bool>,
}

impl Contents for Image {
    fn bytes(&self, span: Span) -> &[u8] {
        &self.0[&span.buffer().id()].bytes[range(span)]
    }
}

fn range(span: Span) -> Range<usize> {
    span.offset() as usize..(span.offset() + span.len()) as usize
}

impl<D: Ops> Rig<D> {
    pub(super) fn new(device: D, tolerance: Tolerance) -> Self {
        let stream = device.stream().expect("a stream");
        Rig { device, stream, random: Random(1), tolerance, image: Image::default(), staging: Vec::new() }
    }

    /// A buffer with these bytes.
    pub(super) fn upload_to(&mut self, space: Space, bytes: Vec<u8>) -> Span {
        let alloc = |space| self.device.alloc(space, bytes.len() as u64).expect("room for a small buffer");
        let host = alloc(Space::Host);
        self.device.write_host(host.span(), |to| to.copy_from_slice(&bytes));
        let buffer = if space == Space::Device { alloc(space) } else { host };
        if buffer != host {
            self.enqueued(self.device.copy(self.stream, host.span(), buffer.span()));
            self.staging.push(host);
        }
        let rounded = vec![false; bytes.len().div_ceil(4)];
        self.image.0.insert(buffer.id(), Held { buffer, bytes, rounded });
        buffer.span()
    }

    /// A buffer of the device with these elements.
    pub(super) fn upload<T: bytemuck::NoUninit>(&mut self, data: &[T]) -> Span {
        self.upload_to(Space::Device, bytemuck::cast_slice(data).to_vec())
    }

    /// `len` bytes of 0xFF, which are NaNs of every type.
    pub(super) fn blank(&mut self, len: usize) -> Span {
        let buffer = self.device.alloc(Space::Device, len as u64).expect("room for a small buffer");
        self.enqueued(self.device.fill(self.stream, buffer.span(), 0xff));
        let (bytes, rounded) = (vec![0xff; len], vec![false; len.div_ceil(4)]);
        self.image.0.insert(buffer.id(), Held { buffer, bytes, rounded });
        buffer.span()
    }

    /// NaNs for `len` f32.
    pub(super) fn blank_f32(&mut self, len: usize) -> Span {
        self.blank(len * 4)
    }

    /// Values, rounded to a type.
    pub(super) fn weight(&mut self, values: &[f32], dtype: DType) -> Weight {
        Weight::plain(self.upload_to(Space::Device, encode(values, dtype)), dtype)
    }

    /// `len` random values, rounded to a type.
    pub(super) fn random_weight(&mut self, len: usize, dtype: DType) -> Weight {
        let values = self.random.floats(len);
        self.weight(&values, dtype)
    }

    /// The elements of a span, once all work is done.
    pub(super) fn download<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(&mut self, span: Span) -> Vec<T> {
        let host = self.device.alloc(Space::Host, span.len()).expect("room for a small buffer");
        self.enqueued(self.device.copy(self.stream, span, host.span()));
        self.device.sync(self.stream).expect("no failure");
        let elements = self.device.read_host(host.span(), bytemuck::pod_collect_to_vec);
        self.device.free(host);
        elements
    }

    #[track_caller]
    pub(super) fn enqueued(&self, result: Result<()>) {
        result.expect("work is enqueued");
    }

    #[track_caller]
    pub(super) fn enqueue(&mut self, operation: impl Into<Operation>) {
        let operation = operation.into();
        operation.check();
        self.enqueued(operation.enqueue(&self.device, self.stream));
    }

    /// Enqueues an operation, and puts what it must write into the image.
    #[track_caller]
    pub(super) fn run(&mut self, operation: impl Into<Operation>) {
        let operation = operation.into();
        self.enqueue(operation);
        self.expect(operation);
    }

    /// Puts what an operation must write into the image.
    pub(super) fn expect(&mut self, operation: impl Into<Operation>) {
        for Written { span, bytes, exact } in written(&operation.into(), &self.image) {
            let held = self.image.0.get_mut(&span.buffer().id()).expect("a buffer of the case");
            let at = range(span);
            held.rounded[at.start / 4..at.end.div_ceil(4)].fill(!exact);
            held.bytes[at].copy_from_slice(&bytes);
        }
    }

    /// Puts what a copy must write into the image.
    pub(super) fn expect_copy(&mut self, src: Span, dst: Span) {
        let (from, words) =
            (&self.image.0[&src.buffer().id()], range(src).start / 4..range(src).end.div_ceil(4));
        let (bytes, rounded) = (from.bytes[range(src)].to_vec(), from.rounded[words].to_vec());
        let to = self.image.0.get_mut(&dst.buffer().id()).expect("a buffer of the case");
        to.bytes[range(dst)].copy_from_slice(&bytes);
        to.rounded[range(dst).start / 4..range(dst).end.div_ceil(4)].copy_from_slice(&rounded);
    }

    /// What the device holds in a span of f32, and what the image does.
    pub(super) fn results(&mut self, span: Span) -> (Vec<f32>, Vec<f32>) {
        (self.download(span), bytemuck::pod_collect_to_vec(self.image.bytes(span)))
    }

    /// Ends a case: compares all of its buffers with the image, bit by bit but for what is up to rounding. That is
    /// within the tolerance for a type, in each buffer.
    #[track_caller]
    pub(super) fn matches(&mut self, case: &str, of: impl Into<Stored>) {
        let of = of.into();
        let image = std::mem::take(&mut self.image);
        self.clear();
        for Held { buffer, bytes, rounded } in image.0.into_values() {
            let got: Vec<u8> = self.download(buffer.span());
            self.device.free(buffer);
            if got == bytes {
                continue;
            }
            let (mut difference, mut norm) = (0.0, 0.0);
            for (i, (got, want)) in got.chunks(4).zip(bytes.chunks(4)).enumerate() {
                if !rounded[i] || got == want {
                    assert!(got == want, "{case}: word {i} of {buffer:?} is {got:?} instead of {want:?}");
                    let value = if rounded[i] { float(want) } else { 0.0 };
                    norm += if value.is_finite() { value * value } else { 0.0 };
                    continue;
                }
                let (got, want) = (float(got), float(want));
                // NaNs need not be the same one.
                if !(got.is_nan() && want.is_nan()) {
                    difference += (got - want).powi(2);
                    norm += want.powi(2);
                }
            }
            self.within(case, difference, norm, of);
        }
    }

    /// Compares the norm of a difference with the tolerance for a type.
    #[track_caller]
    fn within(&self, case: &str, difference: f64, norm: f64, of: Stored) {
        let error = difference.sqrt() / norm.sqrt().max(f64::MIN_POSITIVE);
        let allowed = self.tolerance.of(of);
        // Also fails for NaN, i.e. where an output was left unwritten.
        assert!(error <= allowed, "{case}: relative error {error:.3e}, {allowed:.0e} allowed");
    }

    /// Ends a case: compares a span of f32 with the image, within the tolerance for a type.
    #[track_caller]
    pub(super) fn matches_in(&mut self, span: Span, case: &str, dtype: DType) {
        self.compare(span, case, dtype);
        self.clear();
    }

    /// The same before the end of a case.
    #[track_caller]
    pub(super) fn compare(&mut self, span: Span, case: &str, dtype: DType) {
        let (got, want) = self.results(span);
        let sum = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>();
        let difference =
            sum(&mut got.iter().zip(&want).map(|(&got, &want)| f64::from(got) - f64::from(want)));
        self.within(case, difference, sum(&mut want.iter().map(|&x| x.into())), dtype.into());
    }

    /// Ends a case: gives what the device holds in a span of f32.
    pub(super) fn take(&mut self, span: Span) -> Vec<f32> {
        let got = self.download(span);
        self.clear();
        got
    }

    /// Ends a case: frees its buffers.
    pub(super) fn clear(&mut self) {
        self.device.sync(self.stream).expect("no failure");
        let held = std::mem::take(&mut self.image).0.into_values().map(|held| held.buffer);
        held.chain(self.staging.drain(..)).for_each(|buffer| self.device.free(buffer));
    }

    /// A case of some rows: `make` gives the operation for `count` of them from the first on, and its output. All of
    /// them match the reference.
    #[track_caller]
    pub(super) fn agrees<O: Into<Operation>>(
        &mut self,
        case: &str,
        of: impl Into<Stored>,
        rows: usize,
        make: impl Fn(&mut Self, usize, usize) -> (O, Span),
    ) {
        let (operation, _) = make(self, 0, rows);
        self.run(operation);
        self.matches(case, of);
    }

    /// The output of some rows of a case.
    pub(super) fn output<O: Into<Operation>>(
        &mut self,
        (first, count): (usize, usize),
        make: &impl Fn(&mut Self, usize, usize) -> (O, Span),
    ) -> Vec<f32> {
        let (operation, out) = make(self, first, count);
        self.enqueue(operation);
        self.take(out)
    }

    /// Each of `parts` of a case's rows has the bits that it has among all of them, which are computed in batches as
    /// large as invariance is promised for.
    #[track_caller]
    pub(super) fn invariant<O: Into<Operation>>(
        &mut self,
        case: &str,
        rows: usize,
        parts: &[(usize, usize)],
        make: impl Fn(&mut Self, usize, usize) -> (O, Span),
    ) {
        let step = rows.min(self.device.info().batch_invariant_rows as usize);
        let firsts = (0..rows).step_by(step);
        let all: Vec<f32> =
            firsts.flat_map(|first| self.output((first, step.min(rows - first)), &make)).collect();
        self.parts_of(&all, case, rows, parts, make);
    }

    /// Each of `parts` of a case's rows has the bits of `all`.
    #[track_caller]
    pub(super) fn parts_of<O: Into<Operation>>(
        &mut self,
        all: &[f32],
        case: &str,
        rows: usize,
        parts: &[(usize, usize)],
        make: impl Fn(&mut Self, usize, usize) -> (O, Span),
    ) {
        let width = all.len() / rows;
        for &(first, count) in parts {
            let got = self.output((first, count), &make);
            let name = format!("rows {first}+{count} of {case}");
            same_bits(&name, &got, &all[first * width..(first + count) * width]);
        }
    }
}

fn float(word: &[u8]) -> f64 {
    f32::from_le_bytes(word.try_into().expect("four bytes")).into()
}

/// Some rows of a matrix.
pub(super) fn rows(x: &[f32], width: usize, first: usize, count: usize) -> &[f32] {
    &x[first * width..(first + count) * width]
}

#[track_caller]
pub(super) fn same_bits(case: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{case}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!(got.to_bits() == want.to_bits(), "{case}: element {i} is {got:?} instead of {want:?}");
    }
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
pub(super) struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        Checksum::mix(self.0)
    }

    /// One of `0..n`.
    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// `len` numbers of `0..n`.
    pub(super) fn indices(&mut self, len: usize, n: usize) -> Vec<u32> {
        (0..len).map(|_| self.below(n) as u32).collect()
    }

    /// `len` values in -1..1.
    pub(super) fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
    }

    /// `len` values in -spread..spread.
    pub(super) fn spread(&mut self, len: usize, spread: f32) -> Vec<f32> {
        self.floats(len).into_iter().map(|x| x * spread).collect()
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
