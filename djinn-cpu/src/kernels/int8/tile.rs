//! The register tile: a vector of weight rows times a few rows of activations, over 256 columns.

use super::bytes::{ByteKernel, Integers};
use super::formats::{BlockBytes, RUN_VECTORS, Tables, with_bytes};
use super::isa::ByteIsa;
use super::quantise::Group;
use crate::kernels::blocks::GROUP_RUNS;
use crate::kernels::simd::{MAX_LANES, Simd};
use djinn_device::BlockFormat;

/// The most rows of activations of a tile, if fewer than the instruction set's are left.
const FEW: usize = 4;

/// Adds the products of a group to the sums of some rows, [as many](ByteIsa::tile) as a tile has.
pub(super) struct Tile<'a> {
    pub(super) format: BlockFormat,
    /// Of the group; the row may end in it.
    pub(super) runs: usize,
    pub(super) tables: &'a Tables,
    pub(super) x: &'a [Group],
    /// `[row][lane]`.
    pub(super) sums: &'a mut [f32],
}

impl ByteIsa {
    /// Rows of the next tile, where that many are left.
    pub(super) fn tile(self, left: usize) -> usize {
        [self.tile_rows(), FEW].into_iter().find(|&rows| rows <= left).unwrap_or(1)
    }
}

/// Runs a tile.
///
/// # Panics
/// If no tile has that many rows.
pub(super) fn run(isa: ByteIsa, tile: Tile<'_>) {
    // One instance for all formats that are alike.
    fn of<F: BlockBytes>(isa: ByteIsa, tile: Tile<'_>) {
        match (F::SCALES, F::NARROW, F::LESS.is_none()) {
            (1, true, true) => rows::<1, true, true>(isa, tile),
            (1, true, false) => rows::<1, true, false>(isa, tile),
            (1, false, false) => rows::<1, false, false>(isa, tile),
            (2, true, true) => rows::<2, true, true>(isa, tile),
            (2, true, false) => rows::<2, true, false>(isa, tile),
            _ => unreachable!("no format is such"),
        }
    }
    with_bytes!(tile.format, F => of::<F>(isa, tile));
}

fn rows<const SCALES: usize, const NARROW: bool, const OFFSETS: bool>(isa: ByteIsa, tile: Tile<'_>) {
    match tile.x.len() {
        12 => isa.run(Rows::<SCALES, NARROW, OFFSETS, 12>(tile)),
        FEW => isa.run(Rows::<SCALES, NARROW, OFFSETS, FEW>(tile)),
        1 => isa.run(Rows::<SCALES, NARROW, OFFSETS, 1>(tile)),
        rows => unreachable!("a tile of {rows} rows"),
    }
}

struct Rows<'a, const SCALES: usize, const NARROW: bool, const OFFSETS: bool, const ROWS: usize>(Tile<'a>);

impl<const SCALES: usize, const NARROW: bool, const OFFSETS: bool, const ROWS: usize> ByteKernel
    for Rows<'_, SCALES, NARROW, OFFSETS, ROWS>
{
    #[inline(always)]
    fn run<I: Integers>(self, integers: I) {
        if ROWS > I::ROWS {
            unreachable!("a tile of {ROWS} rows");
        }
        let Tile { runs, tables, x, sums, .. } = self.0;
        let (simd, lanes) = (integers.simd(), I::S::LANES);
        let x = x.first_chunk::<ROWS>().expect("a tile's rows");
        assert!(sums.len() == ROWS * lanes);
        let mut totals = [simd.splat(0.0); ROWS];
        for (r, total) in totals.iter_mut().enumerate() {
            *total = simd.read(&sums[r * lanes..]);
        }
        let vectors = RUN_VECTORS / SCALES;
        for run in 0..runs.min(GROUP_RUNS) {
            for part in 0..SCALES {
                let bytes = &tables.bytes[run * RUN_VECTORS * MAX_LANES..][part * vectors * lanes..];
                let bytes = &bytes[..vectors * lanes];
                let mut products = [simd.splat_int(0); ROWS];
                if !OFFSETS {
                    for (product, x) in products.iter_mut().zip(x) {
                        *product = simd.splat_int(x.sums[run][part]);
                    }
                }
                for v in 0..vectors {
                    let weights = integers.read(&bytes[v * lanes..]);
                    for (product, x) in products.iter_mut().zip(x) {
                        let x = simd.splat_int(u32::from_le(x.words[run][part * vectors + v]));
                        *product = integers.dot::<NARROW>(*product, weights, x);
                    }
                }
                let at = 2 * (run * SCALES + part) * lanes;
                let (scale, offset) = tables.scales[at..at + 2 * lanes].split_at(lanes);
                let scale = simd.read(scale);
                for ((total, product), x) in totals.iter_mut().zip(products).zip(x) {
                    let by = simd.mul(scale, simd.splat(x.scale[run]));
                    *total = integers.fma(simd.to_float(product), by, *total);
                }
                if OFFSETS {
                    let offset = simd.read(offset);
                    for (total, x) in totals.iter_mut().zip(x) {
                        *total = integers.fma(offset, simd.splat(f32::from_bits(x.sums[run][part])), *total);
                    }
                }
            }
        }
        for (r, total) in totals.into_iter().enumerate() {
            simd.write(&mut sums[r * lanes..], total);
        }
    }
}
