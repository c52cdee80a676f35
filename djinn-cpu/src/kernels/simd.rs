//! Vector arithmetic chosen at run time: one trait, one implementation per instruction set.
//!
//! Numerics are written once, generic over [`Simd`], as a [`Kernel`]; [`Isa::run`] instantiates them inside
//! a function that has the instruction set enabled. Everything a kernel calls with a vector must be
//! `#[inline(always)]`, else it is compiled without those instructions.
#![allow(unsafe_code, reason = "vector loads and stores by pointer")]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
use half::{bf16, f16};
pub(crate) use portable::Portable;

/// The most lanes of any [`Simd`].
pub(crate) const MAX_LANES: usize = 16;

/// Vectors of `LANES` f32. A value of an implementation proves that the CPU has its instructions.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// A vector.
    type V: Copy;
    /// A vector of `LANES` 32-bit integers.
    type I: Copy;
    /// Lanes of a vector.
    const LANES: usize;
    /// Vectors side by side in a register tile of [`super::gemm`].
    const TILE_VECTORS: usize;
    /// Activation rows of a register tile of [`super::linear`]: as many as the registers hold beside what a step loads. One
    /// more row spills sums to memory in every step.
    const TILE_ROWS: usize;
    /// Vector registers of the CPU.
    const REGISTERS: usize;

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::V;
    /// Even lanes `even`, odd lanes `odd`.
    fn alternate(self, even: f32, odd: f32) -> Self::V;
    /// `LANES / 2` pairs of f16, widened: the low half of a word is in an even lane.
    ///
    /// # Panics
    /// If there are fewer.
    fn widen_pairs(self, pairs: &[u32]) -> Self::V;
    /// `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a · b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`.
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// The smaller lane; `b` where either is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// The larger lane; `b` where either is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a · b + c`, rounded once where the hardware can.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// To the nearest integer, ties to even, for `|a| < 2^22`.
    fn round(self, a: Self::V) -> Self::V;
    /// `a · 2^n`, for integers `n` in `-126..=127`.
    fn scale_by_power(self, a: Self::V, n: Self::V) -> Self::V;
    /// 0 where `x < bound`, else `a`.
    fn zero_where_less(self, x: Self::V, bound: Self::V, a: Self::V) -> Self::V;
    /// Each vector's sum of lanes, by a tree that halves the vector: lane `i` with `i + LANES / 2`, and on.
    fn sums(self, a: [Self::V; 4]) -> [f32; 4];
    /// The largest lane.
    fn largest(self, a: Self::V) -> f32;

    /// All lanes `x`.
    fn splat_int(self, x: u32) -> Self::I;
    /// Lane `i` is `first + i`.
    fn count_from(self, first: u32) -> Self::I;
    /// `a & b`.
    fn and(self, a: Self::I, b: Self::I) -> Self::I;
    /// `a | b`.
    fn or(self, a: Self::I, b: Self::I) -> Self::I;
    /// `a << bits`, lane by lane, for bits below 32.
    fn shift_left(self, a: Self::I, bits: Self::I) -> Self::I;
    /// `a >> bits`, lane by lane, zeros coming in, for bits below 32.
    fn shift_right(self, a: Self::I, bits: Self::I) -> Self::I;
    /// Signed integers below 2^24 in size.
    fn to_float(self, a: Self::I) -> Self::V;
    /// The floats with these bits.
    fn float_of_bits(self, a: Self::I) -> Self::V;
    /// `table[index]`, lane by lane, for indices below 16.
    fn look_up(self, table: &[f32; 16], index: Self::I) -> Self::V;

    /// `LANES` f32.
    ///
    /// # Safety
    /// They are readable.
    unsafe fn load(self, from: *const f32) -> Self::V;
    /// `LANES` f16, widened.
    ///
    /// # Safety
    /// They are readable.
    unsafe fn load_f16(self, from: *const f16) -> Self::V;
    /// `LANES` bf16, widened.
    ///
    /// # Safety
    /// They are readable.
    unsafe fn load_bf16(self, from: *const bf16) -> Self::V;
    /// Elements 0, 2, 4… of `2 LANES` bf16, widened.
    ///
    /// # Safety
    /// All `2 LANES` are readable.
    unsafe fn load_bf16_even(self, from: *const bf16) -> Self::V;
    /// Elements 1, 3, 5… of `2 LANES` bf16, widened.
    ///
    /// # Safety
    /// All `2 LANES` are readable.
    unsafe fn load_bf16_odd(self, from: *const bf16) -> Self::V;
    /// `LANES` bytes, widened.
    ///
    /// # Safety
    /// They are readable.
    unsafe fn load_u8(self, from: *const u8) -> Self::I;
    /// `LANES` signed bytes, widened.
    ///
    /// # Safety
    /// They are readable.
    unsafe fn load_i8(self, from: *const u8) -> Self::I;
    /// Writes `LANES` f32.
    ///
    /// # Safety
    /// They are writable.
    unsafe fn store(self, to: *mut f32, a: Self::V);
    /// Transposes a `LANES × LANES` block between row-major matrices.
    ///
    /// # Safety
    /// All rows at their strides (in elements) are readable and writable, and do not overlap.
    unsafe fn transpose(self, from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize);

    /// The first `LANES` of `from`.
    #[inline(always)]
    fn read(self, from: &[f32]) -> Self::V {
        assert!(from.len() >= Self::LANES);
        // SAFETY: the assertion above.
        unsafe { self.load(from.as_ptr()) }
    }

    /// The first `LANES` of `from`, widened.
    #[inline(always)]
    fn read_u8(self, from: &[u8]) -> Self::I {
        assert!(from.len() >= Self::LANES);
        // SAFETY: the assertion above.
        unsafe { self.load_u8(from.as_ptr()) }
    }

    /// The first `LANES` of `from`, signed and widened.
    #[inline(always)]
    fn read_i8(self, from: &[u8]) -> Self::I {
        assert!(from.len() >= Self::LANES);
        // SAFETY: the assertion above.
        unsafe { self.load_i8(from.as_ptr()) }
    }

    /// Writes the first `LANES` of `to`.
    #[inline(always)]
    fn write(self, to: &mut [f32], a: Self::V) {
        assert!(to.len() >= Self::LANES);
        // SAFETY: the assertion above.
        unsafe { self.store(to.as_mut_ptr(), a) }
    }

    /// At most `LANES` elements, the other lanes `pad`.
    #[inline(always)]
    fn read_partial(self, from: &[f32], pad: f32) -> Self::V {
        let mut lanes = [pad; MAX_LANES];
        lanes[..from.len()].copy_from_slice(from);
        self.read(&lanes)
    }

    /// Writes as many lanes as `to` has elements, at most `LANES`.
    #[inline(always)]
    fn write_partial(self, to: &mut [f32], a: Self::V) {
        let mut lanes = [0.0; MAX_LANES];
        self.write(&mut lanes, a);
        to.copy_from_slice(&lanes[..to.len()]);
    }

    /// e to the power of each lane, within 2e-7 relative for lanes in `-87..=88`; 0 below; e^88 above; NaN
    /// stays NaN.
    ///
    /// Cody and Waite's reduction, `e^x = 2^n · e^r` with `n = round(x / ln 2)` and `|r| <= ln 2 / 2`, then
    /// the Taylor polynomial of degree 7, whose remainder is below 6e-9 there.
    #[inline(always)]
    #[allow(clippy::excessive_precision, reason = "the split of ln 2 is exact")]
    fn exp(self, x: Self::V) -> Self::V {
        let capped = self.min(self.splat(88.0), x);
        let n = self.round(self.mul(capped, self.splat(std::f32::consts::LOG2_E)));
        // ln 2 in two parts; the first has so few bits that its product with n is exact.
        let r = self.fma(n, self.splat(-0.693_359_375), capped);
        let r = self.fma(n, self.splat(2.121_944_4e-4), r);
        let mut p = self.splat(1.0 / 5040.0);
        for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
            p = self.fma(p, r, self.splat(c));
        }
        // Scaled with the exponent clamped, as lanes below -87 are dropped and may not overflow it before.
        let n = self.max(self.splat(-126.0), n);
        self.zero_where_less(x, self.splat(-87.0), self.scale_by_power(p, n))
    }
}

/// A computation to instantiate for the instruction set at hand.
pub(crate) trait Kernel {
    /// Runs it. Implementations are `#[inline(always)]`.
    fn run<S: Simd>(self, simd: S);
}

/// The instruction set in use.
#[derive(Clone, Copy)]
pub(crate) enum Isa {
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Avx512),
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2),
    Portable(portable::Portable),
}

impl Isa {
    /// The best that this CPU has.
    pub(crate) fn detect() -> Isa {
        Isa::available()[0]
    }

    /// All that this CPU has, best first.
    pub(crate) fn available() -> Vec<Isa> {
        let mut all = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(avx512::Avx512::detect().map(Isa::Avx512));
            all.extend(avx2::Avx2::detect().map(Isa::Avx2));
        }
        all.push(Isa::Portable(portable::Portable));
        all
    }

    /// For people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(_) => "avx2",
            Isa::Portable(_) => "portable",
        }
    }

    /// Lanes of a vector.
    pub(crate) fn lanes(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(_) => avx512::Avx512::LANES,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(_) => avx2::Avx2::LANES,
            Isa::Portable(_) => portable::Portable::LANES,
        }
    }

    /// [`Simd::TILE_ROWS`].
    pub(crate) fn tile_rows(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(_) => avx512::Avx512::TILE_ROWS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(_) => avx2::Avx2::TILE_ROWS,
            Isa::Portable(_) => portable::Portable::TILE_ROWS,
        }
    }

    /// Runs a kernel with this instruction set.
    // Inlined, every kernel is compiled once for each unit of code that calls it: too often for tests.
    #[cfg_attr(not(debug_assertions), inline)]
    pub(crate) fn run(self, kernel: impl Kernel) {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(simd) => simd.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(simd) => simd.run(kernel),
            Isa::Portable(simd) => kernel.run(simd),
        }
    }
}
