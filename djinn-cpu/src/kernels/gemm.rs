//! A small matrix product for attention: `c = a · b` or `c += a · b`, all f32, by broadcasting `a`.
//!
//! Each element of `c` is one chain of multiply-adds over `k` in order, whatever its row, so rows do not
//! depend on what else is in the product.
#![allow(unsafe_code, reason = "tiles are read and written by pointer")]

use super::simd::{Kernel, Simd};

/// `c[m, width] (+)= a[m, k] · b[k, width]`.
pub(crate) struct Gemm<'a> {
    /// Rows at `a_stride`.
    pub(crate) a: &'a [f32],
    pub(crate) a_stride: usize,
    /// Rows at `width`.
    pub(crate) b: &'a [f32],
    /// Rows at `width`.
    pub(crate) c: &'a mut [f32],
    pub(crate) m: usize,
    pub(crate) k: usize,
    /// A multiple of `LANES`.
    pub(crate) width: usize,
    /// Whether `c` is added to.
    pub(crate) accumulate: bool,
}

/// Rows of a register tile.
const TILE_ROWS: usize = 6;

impl Kernel for Gemm<'_> {
    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let mut row = 0;
        while row < self.m {
            let rows = TILE_ROWS.min(self.m - row);
            match rows {
                1 => self.columns::<S, 1>(simd, row),
                2 => self.columns::<S, 2>(simd, row),
                3 => self.columns::<S, 3>(simd, row),
                4 => self.columns::<S, 4>(simd, row),
                5 => self.columns::<S, 5>(simd, row),
                _ => self.columns::<S, TILE_ROWS>(simd, row),
            }
            row += rows;
        }
    }
}

impl Gemm<'_> {
    /// All columns of `ROWS` rows from `row`.
    #[inline(always)]
    fn columns<S: Simd, const ROWS: usize>(&mut self, simd: S, row: usize) {
        let (mut column, tile) = (0, S::TILE_VECTORS * S::LANES);
        while column + tile <= self.width {
            match S::TILE_VECTORS {
                4 => self.tile::<S, ROWS, 4>(simd, row, column),
                _ => self.tile::<S, ROWS, 2>(simd, row, column),
            }
            column += tile;
        }
        while column < self.width {
            self.tile::<S, ROWS, 1>(simd, row, column);
            column += S::LANES;
        }
    }

    /// `VECTORS` vectors of columns of `ROWS` rows.
    #[inline(always)]
    fn tile<S: Simd, const ROWS: usize, const VECTORS: usize>(&mut self, simd: S, row: usize, column: usize) {
        let (k, width) = (self.k, self.width);
        let columns = VECTORS * S::LANES;
        assert!(k > 0 && columns <= width && column <= width - columns);
        let a = &self.a[row * self.a_stride..][..(ROWS - 1) * self.a_stride + k];
        let b = &self.b[column..][..(k - 1) * width + columns];
        let c = &mut self.c[row * width + column..][..(ROWS - 1) * width + columns];
        let (a, b, c) = (a.as_ptr(), b.as_ptr(), c.as_mut_ptr());

        let mut sums = [[simd.splat(0.0); VECTORS]; ROWS];
        if self.accumulate {
            for (r, sums) in sums.iter_mut().enumerate() {
                for (v, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: vector `v` of row `r` of the slice `c`.
                    let at = unsafe { c.add(r * width + v * S::LANES) };
                    // SAFETY: as above.
                    *sum = unsafe { simd.load(at) };
                }
            }
        }
        for i in 0..k {
            let mut b_row = [simd.splat(0.0); VECTORS];
            for (v, vector) in b_row.iter_mut().enumerate() {
                // SAFETY: vector `v` of row `i` of the slice `b`.
                let at = unsafe { b.add(i * width + v * S::LANES) };
                // SAFETY: as above.
                *vector = unsafe { simd.load(at) };
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                // SAFETY: element `i` of row `r` of the slice `a`.
                let at = unsafe { a.add(r * self.a_stride + i) };
                // SAFETY: as above.
                let a = simd.splat(unsafe { *at });
                for (sum, b) in sums.iter_mut().zip(b_row) {
                    *sum = simd.fma(a, b, *sum);
                }
            }
        }
        for (r, sums) in sums.into_iter().enumerate() {
            for (v, sum) in sums.into_iter().enumerate() {
                // SAFETY: vector `v` of row `r` of the slice `c`.
                let at = unsafe { c.add(r * width + v * S::LANES) };
                // SAFETY: as above.
                unsafe { simd.store(at, sum) };
            }
        }
    }
}
