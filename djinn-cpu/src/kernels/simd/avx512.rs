//! [`Simd`](super::Simd) on AVX-512 (F, BW, DQ, VL): 16 lanes.
#![allow(unsafe_code, reason = "vector instructions; each needs the proof that the CPU has it")]

use super::x86::x86_vectors;
use half::{bf16, f16};
use std::arch::x86_64::*;

x86_vectors! {
    /// Proof that the CPU has AVX-512 F, BW, DQ and VL.
    Avx512: __m512 and __m512i of 16 lanes, 32 registers, tiles of 4 vectors or 5 rows, with ["avx512f", "avx512bw", "avx512dq", "avx512vl"] = "avx512f,avx512bw,avx512dq,avx512vl";
    safe {
        splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        alternate(even: f32, odd: f32) -> __m512 = _mm512_setr4_ps(even, odd, even, odd);
        widen_pairs(pairs: &[u32]) -> __m512 = widen_pairs(pairs);
        add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
        min(a: __m512, b: __m512) -> __m512 = _mm512_min_ps(a, b);
        max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        round(a: __m512) -> __m512 = _mm512_roundscale_ps::<0>(a);
        scale_by_power(a: __m512, n: __m512) -> __m512 = _mm512_scalef_ps(a, n);
        zero_where_less(x: __m512, bound: __m512, a: __m512) -> __m512 = zero_where_less(x, bound, a);
        sums(a: [__m512; 4]) -> [f32; 4] = sums(a);
        largest(a: __m512) -> f32 = _mm512_reduce_max_ps(a);
        splat_int(x: u32) -> __m512i = _mm512_set1_epi32(x.cast_signed());
        count_from(first: u32) -> __m512i = _mm512_add_epi32(_mm512_set1_epi32(first.cast_signed()), _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
        and(a: __m512i, b: __m512i) -> __m512i = _mm512_and_si512(a, b);
        or(a: __m512i, b: __m512i) -> __m512i = _mm512_or_si512(a, b);
        shift_left(a: __m512i, bits: __m512i) -> __m512i = _mm512_sllv_epi32(a, bits);
        shift_right(a: __m512i, bits: __m512i) -> __m512i = _mm512_srlv_epi32(a, bits);
        to_float(a: __m512i) -> __m512 = _mm512_cvtepi32_ps(a);
        float_of_bits(a: __m512i) -> __m512 = _mm512_castsi512_ps(a);
        look_up(table: &[f32; 16], index: __m512i) -> __m512 = _mm512_permutexvar_ps(index, _mm512_loadu_ps(table.as_ptr()));
    }
    unsafe {
        load(from: *const f32) -> __m512 = _mm512_loadu_ps(from);
        load_f16(from: *const f16) -> __m512 = load_f16(from);
        load_bf16(from: *const bf16) -> __m512 = load_bf16(from);
        load_bf16_even(from: *const bf16) -> __m512 = load_bf16_even(from);
        load_bf16_odd(from: *const bf16) -> __m512 = load_bf16_odd(from);
        load_u8(from: *const u8) -> __m512i = load_u8(from);
        load_i8(from: *const u8) -> __m512i = load_i8(from);
        store(to: *mut f32, a: __m512) = _mm512_storeu_ps(to, a);
    }
    transpose by transposed, _mm512_setzero_ps, _mm512_loadu_ps, _mm512_storeu_ps;
}

#[inline]
#[target_feature(enable = "avx512f")]
fn widen_pairs(pairs: &[u32]) -> __m512 {
    let [a, b, c, d, e, f, g, h] = pairs.first_chunk::<8>().expect("eight pairs").map(u32::cast_signed);
    _mm512_cvtph_ps(_mm256_setr_epi32(a, b, c, d, e, f, g, h))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn zero_where_less(x: __m512, bound: __m512, a: __m512) -> __m512 {
    _mm512_maskz_mov_ps(!_mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, bound), a)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn sums([a, b, c, d]: [__m512; 4]) -> [f32; 4] {
    // Two vectors' halves side by side, then four vectors' quarters.
    let ab = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
    let cd = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xee>(c, d));
    let quarters = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xdd>(ab, cd));
    let pairs = _mm512_add_ps(quarters, _mm512_permute_ps::<0x4e>(quarters));
    let sums = _mm512_add_ps(pairs, _mm512_permute_ps::<0xb1>(pairs));
    let first_of_quarters = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
    let packed = _mm512_castps512_ps128(_mm512_permutexvar_ps(first_of_quarters, sums));
    let mut out = [0.0; 4];
    // SAFETY: `out` has four f32.
    unsafe { _mm_storeu_ps(out.as_mut_ptr(), packed) };
    out
}

#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load_f16(from: *const f16) -> __m512 {
    // SAFETY: the caller vouches for 16 elements, 32 bytes.
    let halves = unsafe { _mm256_loadu_si256(from.cast()) };
    _mm512_cvtph_ps(halves)
}

#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load_bf16(from: *const bf16) -> __m512 {
    // SAFETY: the caller vouches for 16 elements, 32 bytes.
    let halves = unsafe { _mm256_loadu_si256(from.cast()) };
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
}

#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load_bf16_even(from: *const bf16) -> __m512 {
    // SAFETY: the caller vouches for 32 elements, 64 bytes.
    let pairs = unsafe { _mm512_loadu_si512(from.cast()) };
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs))
}

#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load_bf16_odd(from: *const bf16) -> __m512 {
    // SAFETY: the caller vouches for 32 elements, 64 bytes.
    let pairs = unsafe { _mm512_loadu_si512(from.cast()) };
    _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32 as i32)))
}

#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load_u8(from: *const u8) -> __m512i {
    // SAFETY: the caller vouches for 16 bytes.
    let bytes = unsafe { _mm_loadu_si128(from.cast()) };
    _mm512_cvtepu8_epi32(bytes)
}

#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load_i8(from: *const u8) -> __m512i {
    // SAFETY: the caller vouches for 16 bytes.
    let bytes = unsafe { _mm_loadu_si128(from.cast()) };
    _mm512_cvtepi8_epi32(bytes)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn transposed(rows: [__m512; 16]) -> [__m512; 16] {
    let zero = _mm512_setzero_ps();
    let (mut pairs, mut quads, mut out) = ([zero; 16], [zero; 16], [zero; 16]);
    for i in (0..16).step_by(2) {
        pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
    // quads[4 i + c] holds, in quarter q, column 4 q + c of rows 4 i ..= 4 i + 3.
    for i in (0..16).step_by(4) {
        for half in 0..2 {
            let (a, b) = (_mm512_castps_pd(pairs[i + half]), _mm512_castps_pd(pairs[i + half + 2]));
            quads[i + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            quads[i + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    }
    for c in 0..4 {
        let even_low = _mm512_shuffle_f32x4::<0x88>(quads[c], quads[4 + c]);
        let odd_low = _mm512_shuffle_f32x4::<0xdd>(quads[c], quads[4 + c]);
        let even_high = _mm512_shuffle_f32x4::<0x88>(quads[8 + c], quads[12 + c]);
        let odd_high = _mm512_shuffle_f32x4::<0xdd>(quads[8 + c], quads[12 + c]);
        out[c] = _mm512_shuffle_f32x4::<0x88>(even_low, even_high);
        out[4 + c] = _mm512_shuffle_f32x4::<0x88>(odd_low, odd_high);
        out[8 + c] = _mm512_shuffle_f32x4::<0xdd>(even_low, even_high);
        out[12 + c] = _mm512_shuffle_f32x4::<0xdd>(odd_low, odd_high);
    }
    out
}
