//! [`Simd`] in plain Rust: 8 lanes that the compiler maps onto the vectors that the target always has.
#![allow(unsafe_code, reason = "loads and stores by pointer")]

use super::Simd;
use half::{bf16, f16};

/// Needs no proof.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

type Lanes = [f32; 8];
type Integers = [i32; 8];

/// `f` of each lane pair.
#[inline(always)]
fn zip(mut a: Lanes, b: Lanes, f: impl Fn(f32, f32) -> f32) -> Lanes {
    for (a, b) in a.iter_mut().zip(b) {
        *a = f(*a, b);
    }
    a
}

/// As [`zip`], of integers without their signs.
#[inline(always)]
fn zip_bits(mut a: Integers, b: Integers, f: impl Fn(u32, u32) -> u32) -> Integers {
    for (a, b) in a.iter_mut().zip(b) {
        *a = f(a.cast_unsigned(), b.cast_unsigned()).cast_signed();
    }
    a
}

/// Eight bytes, widened.
///
/// # Safety
/// They are readable.
#[inline(always)]
unsafe fn widened_bytes(from: *const u8, widen: impl Fn(u8) -> i32) -> Integers {
    // SAFETY: the caller vouches for 8 bytes.
    let bytes = unsafe { from.cast::<[u8; 8]>().read_unaligned() };
    let mut out = [0; 8];
    for (out, byte) in out.iter_mut().zip(bytes) {
        *out = widen(byte);
    }
    out
}

/// Lane `i` from element `i · step` of `from`.
///
/// # Safety
/// Elements up to `7 · step` are readable.
#[inline(always)]
unsafe fn gather<T: Copy>(from: *const T, step: usize, widen: impl Fn(T) -> f32) -> Lanes {
    let mut lanes = [0.0; 8];
    for (i, lane) in lanes.iter_mut().enumerate() {
        // SAFETY: the caller vouches for element `i · step`.
        let at = unsafe { from.add(i * step) };
        // SAFETY: as above; unaligned, as the caller promises no alignment.
        *lane = widen(unsafe { at.read_unaligned() });
    }
    lanes
}

impl Simd for Portable {
    type V = Lanes;
    type I = Integers;
    const LANES: usize = 8;
    const TILE_VECTORS: usize = 2;
    const TILE_ROWS: usize = 2;
    const REGISTERS: usize = 16;

    #[inline(always)]
    fn splat(self, x: f32) -> Lanes {
        [x; 8]
    }

    #[inline(always)]
    fn alternate(self, even: f32, odd: f32) -> Lanes {
        [even, odd, even, odd, even, odd, even, odd]
    }

    #[inline(always)]
    fn widen_pairs(self, pairs: &[u32]) -> Lanes {
        let mut out = [0.0; 8];
        for (i, out) in out.iter_mut().enumerate() {
            *out = f16::from_bits((pairs[i / 2] >> (i % 2 * 16)) as u16).to_f32();
        }
        out
    }

    #[inline(always)]
    fn add(self, a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn min(self, a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn max(self, a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn fma(self, a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        // Without an FMA instruction `mul_add` is a slow library call.
        if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
            let mut out = c;
            for i in 0..8 {
                out[i] = a[i].mul_add(b[i], c[i]);
            }
            out
        } else {
            self.add(self.mul(a, b), c)
        }
    }

    #[inline(always)]
    fn round(self, a: Lanes) -> Lanes {
        // 1.5 · 2^23: a sum of that size has no bits after the point.
        const SHIFT: f32 = 12_582_912.0;
        a.map(|a| (a + SHIFT) - SHIFT)
    }

    #[inline(always)]
    fn scale_by_power(self, a: Lanes, n: Lanes) -> Lanes {
        zip(a, n, |a, n| a * f32::from_bits((((n as i32) + 127) << 23) as u32))
    }

    #[inline(always)]
    fn zero_where_less(self, x: Lanes, bound: Lanes, a: Lanes) -> Lanes {
        let mut out = a;
        for i in 0..8 {
            out[i] = if x[i] < bound[i] { 0.0 } else { a[i] };
        }
        out
    }

    #[inline(always)]
    fn sums(self, a: [Lanes; 4]) -> [f32; 4] {
        a.map(|a| {
            let b = [a[0] + a[4], a[1] + a[5], a[2] + a[6], a[3] + a[7]];
            (b[0] + b[2]) + (b[1] + b[3])
        })
    }

    #[inline(always)]
    fn largest(self, a: Lanes) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    #[inline(always)]
    fn splat_int(self, x: u32) -> Integers {
        [x.cast_signed(); 8]
    }

    #[inline(always)]
    fn count_from(self, first: u32) -> Integers {
        [0, 1, 2, 3, 4, 5, 6, 7].map(|i| first.cast_signed() + i)
    }

    #[inline(always)]
    fn and(self, a: Integers, b: Integers) -> Integers {
        zip_bits(a, b, |a, b| a & b)
    }

    #[inline(always)]
    fn or(self, a: Integers, b: Integers) -> Integers {
        zip_bits(a, b, |a, b| a | b)
    }

    #[inline(always)]
    fn shift_left(self, a: Integers, bits: Integers) -> Integers {
        zip_bits(a, bits, |a, bits| a << bits)
    }

    #[inline(always)]
    fn shift_right(self, a: Integers, bits: Integers) -> Integers {
        zip_bits(a, bits, |a, bits| a >> bits)
    }

    #[inline(always)]
    fn to_float(self, a: Integers) -> Lanes {
        a.map(|a| a as f32)
    }

    #[inline(always)]
    fn float_of_bits(self, a: Integers) -> Lanes {
        a.map(|a| f32::from_bits(a.cast_unsigned()))
    }

    #[inline(always)]
    fn look_up(self, table: &[f32; 16], index: Integers) -> Lanes {
        index.map(|index| table[index as usize & 15])
    }

    #[inline(always)]
    unsafe fn load_u8(self, from: *const u8) -> Integers {
        // SAFETY: the caller vouches for 8 bytes.
        unsafe { widened_bytes(from, i32::from) }
    }

    #[inline(always)]
    unsafe fn load_i8(self, from: *const u8) -> Integers {
        // SAFETY: the caller vouches for 8 bytes.
        unsafe { widened_bytes(from, |byte| i32::from(byte as i8)) }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Lanes {
        // SAFETY: the caller vouches for 8 elements.
        unsafe { gather(from, 1, |x| x) }
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const f16) -> Lanes {
        // SAFETY: the caller vouches for 8 elements.
        unsafe { gather(from, 1, f16::to_f32) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const bf16) -> Lanes {
        // SAFETY: the caller vouches for 8 elements.
        unsafe { gather(from, 1, widen_bf16) }
    }

    #[inline(always)]
    unsafe fn load_bf16_even(self, from: *const bf16) -> Lanes {
        // SAFETY: the caller vouches for 16 elements.
        unsafe { gather(from, 2, widen_bf16) }
    }

    #[inline(always)]
    unsafe fn load_bf16_odd(self, from: *const bf16) -> Lanes {
        // SAFETY: the caller vouches for 16 elements.
        let second = unsafe { from.add(1) };
        // SAFETY: as above; the last element read is 1 + 7 · 2.
        unsafe { gather(second, 2, widen_bf16) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, a: Lanes) {
        // SAFETY: the caller vouches for 8 elements.
        unsafe { to.cast::<Lanes>().write_unaligned(a) }
    }

    #[inline(always)]
    unsafe fn transpose(self, from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        for i in 0..8 {
            // SAFETY: the caller vouches for all rows, so for column `i` of each.
            let column = unsafe { from.add(i) };
            // SAFETY: as above.
            let lanes = unsafe { gather(column, from_stride, |x| x) };
            // SAFETY: the caller vouches for row `i`.
            let row = unsafe { to.add(i * to_stride) };
            // SAFETY: as above.
            unsafe { self.store(row, lanes) };
        }
    }
}

/// As `bf16::to_f32`, without its distinction of NaNs, so that it vectorises.
#[inline(always)]
fn widen_bf16(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}
