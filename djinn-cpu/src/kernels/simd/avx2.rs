//! [`Simd`](super::Simd) on AVX2 with FMA and F16C: 8 lanes.
#![allow(unsafe_code, reason = "vector instructions; each needs the proof that the CPU has it")]

use super::x86::x86_vectors;
use half::{bf16, f16};
use std::arch::x86_64::*;

x86_vectors! {
    /// Proof that the CPU has AVX2, FMA and F16C.
    Avx2: __m256 and __m256i of 8 lanes, 16 registers, tiles of 2 vectors or 3 rows, with ["avx2", "fma", "f16c"] = "avx2,fma,f16c";
    safe {
        splat(x: f32) -> __m256 = _mm256_set1_ps(x);
        alternate(even: f32, odd: f32) -> __m256 = _mm256_setr_ps(even, odd, even, odd, even, odd, even, odd);
        widen_pairs(pairs: &[u32]) -> __m256 = widen_pairs(pairs);
        add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b);
        sub(a: __m256, b: __m256) -> __m256 = _mm256_sub_ps(a, b);
        mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
        div(a: __m256, b: __m256) -> __m256 = _mm256_div_ps(a, b);
        min(a: __m256, b: __m256) -> __m256 = _mm256_min_ps(a, b);
        max(a: __m256, b: __m256) -> __m256 = _mm256_max_ps(a, b);
        fma(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps(a, b, c);
        round(a: __m256) -> __m256 = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a);
        scale_by_power(a: __m256, n: __m256) -> __m256 = scale_by_power(a, n);
        zero_where_less(x: __m256, bound: __m256, a: __m256) -> __m256 = zero_where_less(x, bound, a);
        sums(a: [__m256; 4]) -> [f32; 4] = sums(a);
        largest(a: __m256) -> f32 = largest(a);
        splat_int(x: u32) -> __m256i = _mm256_set1_epi32(x.cast_signed());
        count_from(first: u32) -> __m256i = _mm256_add_epi32(_mm256_set1_epi32(first.cast_signed()), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
        and(a: __m256i, b: __m256i) -> __m256i = _mm256_and_si256(a, b);
        or(a: __m256i, b: __m256i) -> __m256i = _mm256_or_si256(a, b);
        shift_left(a: __m256i, bits: __m256i) -> __m256i = _mm256_sllv_epi32(a, bits);
        shift_right(a: __m256i, bits: __m256i) -> __m256i = _mm256_srlv_epi32(a, bits);
        to_float(a: __m256i) -> __m256 = _mm256_cvtepi32_ps(a);
        float_of_bits(a: __m256i) -> __m256 = _mm256_castsi256_ps(a);
        look_up(table: &[f32; 16], index: __m256i) -> __m256 = look_up(table, index);
    }
    unsafe {
        load(from: *const f32) -> __m256 = _mm256_loadu_ps(from);
        load_f16(from: *const f16) -> __m256 = load_f16(from);
        load_bf16(from: *const bf16) -> __m256 = load_bf16(from);
        load_bf16_even(from: *const bf16) -> __m256 = load_bf16_even(from);
        load_bf16_odd(from: *const bf16) -> __m256 = load_bf16_odd(from);
        load_u8(from: *const u8) -> __m256i = load_u8(from);
        load_i8(from: *const u8) -> __m256i = load_i8(from);
        store(to: *mut f32, a: __m256) = _mm256_storeu_ps(to, a);
    }
    transpose by transposed, _mm256_setzero_ps, _mm256_loadu_ps, _mm256_storeu_ps;
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn widen_pairs(pairs: &[u32]) -> __m256 {
    let [a, b, c, d] = *pairs.first_chunk().expect("four pairs");
    let word = u32::cast_signed;
    _mm256_cvtph_ps(_mm_setr_epi32(word(a), word(b), word(c), word(d)))
}

#[inline]
#[target_feature(enable = "avx2")]
fn scale_by_power(a: __m256, n: __m256) -> __m256 {
    let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
}

#[inline]
#[target_feature(enable = "avx2")]
fn zero_where_less(x: __m256, bound: __m256, a: __m256) -> __m256 {
    _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(x, bound), a)
}

#[inline]
#[target_feature(enable = "avx2")]
fn look_up(table: &[f32; 16], index: __m256i) -> __m256 {
    // SAFETY: the table has sixteen f32.
    let low = unsafe { _mm256_loadu_ps(table.as_ptr()) };
    // SAFETY: as above.
    let high = unsafe { _mm256_loadu_ps(table[8..].as_ptr()) };
    let [low, high] = [low, high].map(|half| _mm256_permutevar8x32_ps(half, index));
    // Bit 3 of the index, as the sign that chooses.
    _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index)))
}

#[inline]
#[target_feature(enable = "avx2")]
fn sums([a, b, c, d]: [__m256; 4]) -> [f32; 4] {
    let ab = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b));
    let cd = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(c, d), _mm256_permute2f128_ps::<0x31>(c, d));
    let pairs = _mm256_add_ps(_mm256_shuffle_ps::<0x44>(ab, cd), _mm256_shuffle_ps::<0xee>(ab, cd));
    let sums = _mm256_add_ps(pairs, _mm256_permute_ps::<0xb1>(pairs));
    let mut lanes = [0.0; 8];
    // SAFETY: `lanes` has eight f32.
    unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), sums) };
    [lanes[0], lanes[4], lanes[2], lanes[6]]
}

#[inline]
#[target_feature(enable = "avx2")]
fn largest(a: __m256) -> f32 {
    let mut lanes = [0.0; 8];
    // SAFETY: `lanes` has eight f32.
    unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), a) };
    lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn load_f16(from: *const f16) -> __m256 {
    // SAFETY: the caller vouches for 8 elements, 16 bytes.
    let halves = unsafe { _mm_loadu_si128(from.cast()) };
    _mm256_cvtph_ps(halves)
}

#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_bf16(from: *const bf16) -> __m256 {
    // SAFETY: the caller vouches for 8 elements, 16 bytes.
    let halves = unsafe { _mm_loadu_si128(from.cast()) };
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
}

#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_bf16_even(from: *const bf16) -> __m256 {
    // SAFETY: the caller vouches for 16 elements, 32 bytes.
    let pairs = unsafe { _mm256_loadu_si256(from.cast()) };
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs))
}

#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_bf16_odd(from: *const bf16) -> __m256 {
    // SAFETY: the caller vouches for 16 elements, 32 bytes.
    let pairs = unsafe { _mm256_loadu_si256(from.cast()) };
    _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(0xffff_0000_u32 as i32)))
}

#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_u8(from: *const u8) -> __m256i {
    // SAFETY: the caller vouches for 8 bytes.
    let bytes = unsafe { _mm_loadl_epi64(from.cast()) };
    _mm256_cvtepu8_epi32(bytes)
}

#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_i8(from: *const u8) -> __m256i {
    // SAFETY: the caller vouches for 8 bytes.
    let bytes = unsafe { _mm_loadl_epi64(from.cast()) };
    _mm256_cvtepi8_epi32(bytes)
}

#[inline]
#[target_feature(enable = "avx2")]
fn transposed(rows: [__m256; 8]) -> [__m256; 8] {
    let zero = _mm256_setzero_ps();
    let (mut pairs, mut quads, mut out) = ([zero; 8], [zero; 8], [zero; 8]);
    for i in (0..8).step_by(2) {
        pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    // quads[4 i + c] holds, in half q, column 4 q + c of rows 4 i ..= 4 i + 3.
    for i in (0..8).step_by(4) {
        for half in 0..2 {
            let (a, b) = (_mm256_castps_pd(pairs[i + half]), _mm256_castps_pd(pairs[i + half + 2]));
            quads[i + 2 * half] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
            quads[i + 2 * half + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
        }
    }
    for c in 0..4 {
        out[c] = _mm256_permute2f128_ps::<0x20>(quads[c], quads[4 + c]);
        out[4 + c] = _mm256_permute2f128_ps::<0x31>(quads[c], quads[4 + c]);
    }
    out
}
