//! Products of bytes by the instructions of x86.
#![allow(unsafe_code, reason = "vector instructions; each needs the proof that the CPU has it")]

use super::bytes::{ByteKernel, Integers};
use crate::kernels::simd::{Avx2, Avx512, MAX_LANES};
use std::arch::x86_64::*;

/// Defines a proof, and its methods as calls of functions that have the instructions enabled.
macro_rules! x86_bytes {
    ($($(#[$doc:meta])* $Isa:ident: $S:ident with $feature:tt, all $features:tt;
        $I:ident and $V:ident, tiles of $rows:literal rows;
        dot::<$NARROW:ident>($sums:ident, $a:ident, $b:ident) = $dot:expr;
        $xor:ident, $set1:ident, $look_up:ident, $halves:ident, $columns:ident, $load:ident, $store:ident, $fma:ident, $lanes:literal;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy)]
            pub(crate) struct $Isa($S);

            impl $Isa {
                /// The proof, where it holds.
                pub(crate) fn detect() -> Option<Self> {
                    if is_x86_feature_detected!($feature) { $S::detect().map($Isa) } else { None }
                }

                /// Runs `kernel` with the instructions enabled.
                pub(crate) fn run(self, kernel: impl ByteKernel) {
                    #[target_feature(enable = $features)]
                    fn enabled(integers: $Isa, kernel: impl ByteKernel) {
                        kernel.run(integers);
                    }
                    // SAFETY: `self` proves the instructions.
                    unsafe { enabled(self, kernel) }
                }
            }

            impl Integers for $Isa {
                type S = $S;
                const ROWS: usize = $rows;

                #[inline(always)]
                fn simd(self) -> $S {
                    self.0
                }

                #[inline(always)]
                fn dot<const $NARROW: bool>(self, $sums: $I, $a: $I, $b: $I) -> $I {
                    // SAFETY: `self` proves the instructions.
                    unsafe { $dot }
                }

                #[inline(always)]
                fn flip_signs(self, a: $I) -> $I {
                    // SAFETY: `self` proves the instructions.
                    unsafe { $xor(a, $set1(i8::MIN)) }
                }

                #[inline(always)]
                fn look_up(self, table: &[u8; 16], index: $I) -> $I {
                    // SAFETY: `self` proves the instructions.
                    unsafe { $look_up(table, index) }
                }

                #[inline(always)]
                fn halves(self, a: $I) -> $V {
                    // SAFETY: `self` proves the instructions.
                    unsafe { $halves(a) }
                }

                #[inline(always)]
                unsafe fn columns(self, rows: &[*const u8; MAX_LANES], at: usize) -> [$I; 4] {
                    // SAFETY: `self` proves the instructions; the caller vouches for the memory.
                    unsafe { $columns(rows, at) }
                }

                #[inline(always)]
                fn read(self, from: &[u32]) -> $I {
                    assert!(from.len() >= $lanes);
                    // SAFETY: the assertion above, and `self` proves the instructions.
                    unsafe { $load(from.as_ptr().cast()) }
                }

                #[inline(always)]
                fn write(self, to: &mut [u32], a: $I) {
                    assert!(to.len() >= $lanes);
                    // SAFETY: the assertion above, and `self` proves the instructions.
                    unsafe { $store(to.as_mut_ptr().cast(), a) }
                }

                #[inline(always)]
                fn fma(self, a: $V, b: $V, c: $V) -> $V {
                    // SAFETY: `self` proves the instructions.
                    unsafe { $fma(a, b, c) }
                }
            }
        )*
    };
}

x86_bytes! {
    /// Proof that the CPU has AVX-512 F, BW, DQ, VL and VNNI.
    Avx512Vnni: Avx512 with "avx512vnni", all "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni";
    __m512i and __m512, tiles of 12 rows;
    dot::<NARROW>(sums, a, b) = _mm512_dpbusd_epi32(sums, a, b);
    _mm512_xor_si512, _mm512_set1_epi8, look_up_512, halves_512, columns_512, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_fmadd_ps, 16;

    /// Proof that the CPU has AVX2, FMA, F16C and AVX-VNNI.
    AvxVnni: Avx2 with "avxvnni", all "avx2,fma,f16c,avxvnni";
    __m256i and __m256, tiles of 4 rows;
    dot::<NARROW>(sums, a, b) = _mm256_dpbusd_avx_epi32(sums, a, b);
    _mm256_xor_si256, _mm256_set1_epi8, look_up_256, halves_256, columns_256, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_fmadd_ps, 8;

    /// Proof that the CPU has AVX2, FMA and F16C.
    Avx2Bytes: Avx2 with "avx2", all "avx2,fma,f16c";
    __m256i and __m256, tiles of 4 rows;
    dot::<NARROW>(sums, a, b) = dot_256::<NARROW>(sums, a, b);
    _mm256_xor_si256, _mm256_set1_epi8, look_up_256, halves_256, columns_256, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_fmadd_ps, 8;
}

/// Products of bytes as sums of two in 16 bits, which hold 2 · 128 · 127 and no more.
#[inline]
#[target_feature(enable = "avx2")]
fn dot_256<const NARROW: bool>(sums: __m256i, a: __m256i, b: __m256i) -> __m256i {
    let add = |sums, a| {
        let pairs = _mm256_maddubs_epi16(a, b);
        _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
    };
    if NARROW {
        return add(sums, a);
    }
    // Halves of at most 127 and 128.
    let half = _mm256_and_si256(_mm256_srli_epi16::<1>(a), _mm256_set1_epi8(0x7f));
    add(add(sums, half), _mm256_sub_epi8(a, half))
}

#[inline]
#[target_feature(enable = "avx2")]
fn look_up_256(table: &[u8; 16], index: __m256i) -> __m256i {
    // SAFETY: the table has 16 bytes.
    let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), index)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn look_up_512(table: &[u8; 16], index: __m512i) -> __m512i {
    // SAFETY: the table has 16 bytes.
    let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
    _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), index)
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn halves_256(a: __m256i) -> __m256 {
    let low = _mm256_and_si256(a, _mm256_set1_epi32(0xffff));
    let packed = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(low, low));
    _mm256_cvtph_ps(_mm256_castsi256_si128(packed))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn halves_512(a: __m512i) -> __m512 {
    _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a))
}

/// 16 bytes of a row.
///
/// # Safety
/// They are readable.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn row(from: *const u8, at: usize) -> __m128i {
    // SAFETY: the caller vouches for them.
    let from = unsafe { from.add(at) };
    // SAFETY: as above.
    unsafe { _mm_loadu_si128(from.cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
unsafe fn columns_256(rows: &[*const u8; MAX_LANES], at: usize) -> [__m256i; 4] {
    let mut four = [_mm256_setzero_si256(); 4];
    for (i, four) in four.iter_mut().enumerate() {
        // SAFETY: the caller vouches for the first eight rows.
        let low = unsafe { row(rows[i], at) };
        // SAFETY: as above.
        let high = unsafe { row(rows[4 + i], at) };
        *four = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high);
    }
    let [a, b, c, d] = four;
    let (low_ab, high_ab) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let (low_cd, high_cd) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(low_ab, low_cd),
        _mm256_unpackhi_epi64(low_ab, low_cd),
        _mm256_unpacklo_epi64(high_ab, high_cd),
        _mm256_unpackhi_epi64(high_ab, high_cd),
    ]
}

#[inline]
#[target_feature(enable = "avx512f,avx2")]
unsafe fn columns_512(rows: &[*const u8; MAX_LANES], at: usize) -> [__m512i; 4] {
    let mut four = [_mm512_setzero_si512(); 4];
    for (i, four) in four.iter_mut().enumerate() {
        // SAFETY: the caller vouches for all rows.
        let first = unsafe { row(rows[i], at) };
        // SAFETY: as above.
        let second = unsafe { row(rows[4 + i], at) };
        // SAFETY: as above.
        let third = unsafe { row(rows[8 + i], at) };
        // SAFETY: as above.
        let last = unsafe { row(rows[12 + i], at) };
        let joined = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(first), second);
        *four = _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(joined, third), last);
    }
    let [a, b, c, d] = four;
    let (low_ab, high_ab) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let (low_cd, high_cd) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(low_ab, low_cd),
        _mm512_unpackhi_epi64(low_ab, low_cd),
        _mm512_unpacklo_epi64(high_ab, high_cd),
        _mm512_unpackhi_epi64(high_ab, high_cd),
    ]
}
