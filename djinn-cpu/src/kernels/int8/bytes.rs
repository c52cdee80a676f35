//! What a product of bytes needs of an instruction set, and the same in plain Rust.
#![allow(unsafe_code, reason = "rows are read by pointer")]

use crate::kernels::simd::{MAX_LANES, Portable, Simd};
use half::f16;

/// The floats and 32-bit integers of one [`Simd`], and products of the bytes in them. A value proves that the CPU
/// has the instructions.
pub(crate) trait Integers: Copy + Send + Sync + 'static {
    /// Vectors of as many lanes.
    type S: Simd;
    /// Rows of activations of a register tile: as many as the registers hold.
    const ROWS: usize;

    /// The same proof.
    fn simd(self) -> Self::S;

    /// Adds to each lane of `sums` the products of its four bytes: of `a` without sign, of `b` with, above -128. `NARROW`
    /// says that those of `a` are at most 128.
    fn dot<const NARROW: bool>(self, sums: Int<Self>, a: Int<Self>, b: Int<Self>) -> Int<Self>;

    /// Each byte less 128: without a sign from one with it.
    fn flip_signs(self, a: Int<Self>) -> Int<Self>;

    /// `table[byte]`, byte by byte, for bytes below 16.
    fn look_up(self, table: &[u8; 16], index: Int<Self>) -> Int<Self>;

    /// The low half of each lane, an f16, widened.
    fn halves(self, a: Int<Self>) -> Float<Self>;

    /// 16 bytes of each of `LANES` rows, from its byte `at` on, by columns of four: lane `r` of vector `c` has the bytes
    /// `4 c..4 c + 4` of row `r`, in little-endian order.
    ///
    /// # Safety
    /// They are readable.
    unsafe fn columns(self, rows: &[*const u8; MAX_LANES], at: usize) -> [Int<Self>; 4];

    /// `LANES` integers.
    fn read(self, from: &[u32]) -> Int<Self>;

    /// Writes the first `LANES` of `to`.
    fn write(self, to: &mut [u32], a: Int<Self>);

    /// `a · b + c`, rounded once.
    fn fma(self, a: Float<Self>, b: Float<Self>, c: Float<Self>) -> Float<Self>;
}

/// A vector of 32-bit integers.
pub(crate) type Int<I> = <<I as Integers>::S as Simd>::I;
/// A vector of f32.
pub(crate) type Float<I> = <<I as Integers>::S as Simd>::V;

/// A computation to instantiate for the instruction set at hand.
pub(crate) trait ByteKernel {
    /// Runs it. Implementations are `#[inline(always)]`.
    fn run<I: Integers>(self, integers: I);
}

impl Integers for Portable {
    type S = Portable;
    const ROWS: usize = 4;

    #[inline(always)]
    fn simd(self) -> Portable {
        self
    }

    #[inline(always)]
    fn dot<const NARROW: bool>(self, mut sums: [i32; 8], a: [i32; 8], b: [i32; 8]) -> [i32; 8] {
        for (sum, (a, b)) in sums.iter_mut().zip(a.into_iter().zip(b)) {
            for (a, b) in a.to_ne_bytes().into_iter().zip(b.to_ne_bytes()) {
                *sum += i32::from(a) * i32::from(b.cast_signed());
            }
        }
        sums
    }

    #[inline(always)]
    fn flip_signs(self, a: [i32; 8]) -> [i32; 8] {
        a.map(|a| a ^ i32::from_ne_bytes([0x80; 4]))
    }

    #[inline(always)]
    fn look_up(self, table: &[u8; 16], index: [i32; 8]) -> [i32; 8] {
        index.map(|index| i32::from_ne_bytes(index.to_ne_bytes().map(|index| table[usize::from(index & 15)])))
    }

    #[inline(always)]
    fn halves(self, a: [i32; 8]) -> [f32; 8] {
        a.map(|a| f16::from_bits(a as u16).to_f32())
    }

    #[inline(always)]
    unsafe fn columns(self, rows: &[*const u8; MAX_LANES], at: usize) -> [[i32; 8]; 4] {
        let mut columns = [[0; 8]; 4];
        for (r, row) in rows[..8].iter().enumerate() {
            // SAFETY: the caller vouches for 16 bytes.
            let from = unsafe { row.add(at) };
            // SAFETY: as above.
            let bytes = unsafe { from.cast::<[[u8; 4]; 4]>().read_unaligned() };
            for (column, bytes) in columns.iter_mut().zip(bytes) {
                column[r] = i32::from_le_bytes(bytes);
            }
        }
        columns
    }

    #[inline(always)]
    fn read(self, from: &[u32]) -> [i32; 8] {
        from.first_chunk::<8>().expect("eight integers").map(u32::cast_signed)
    }

    #[inline(always)]
    fn write(self, to: &mut [u32], a: [i32; 8]) {
        to[..8].copy_from_slice(&a.map(i32::cast_unsigned));
    }

    #[inline(always)]
    fn fma(self, a: [f32; 8], b: [f32; 8], mut c: [f32; 8]) -> [f32; 8] {
        // Not the multiply and add of `Simd::fma`, for the bits of the other instruction sets. A run has two at most.
        for (c, (a, b)) in c.iter_mut().zip(a.into_iter().zip(b)) {
            *c = a.mul_add(b, *c);
        }
        c
    }
}
