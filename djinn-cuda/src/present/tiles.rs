//! Tiles of a weight: how many are computed together, and their rows in pieces.

use crate::present::launch::TILES;
use djinn_device::Result;
use djinn_device::args::{Linear, Weight};
use std::ops::Range;

/// Rows of a piece are a multiple of this, if there is room for that.
pub(crate) const PIECE: u64 = 64;

/// How many of the leading tiles one launch of Djinn's kernels takes: tiles of the same product that follow one another
/// in the output, with equal numbers of rows except for a smaller last one. With a bias it takes one tile, since the
/// bias is cut into tiles as well.
pub(crate) fn tiles_of_one_launch(tiles: &[Linear]) -> usize {
    let first = &tiles[0];
    if first.bias.is_some() {
        return 1;
    }
    let follows = |(a, b): (&Linear, &Linear)| {
        let (span, out_column) = (b.weight.span, a.out_column + a.n);
        let like_first = Linear { weight: Weight { span, ..first.weight }, out_column, n: b.n, ..*first };
        a.n == first.n && b.n <= first.n && *b == like_first
    };
    1 + tiles.iter().zip(&tiles[1..]).take(TILES - 1).take_while(|&pair| follows(pair)).count()
}

/// The rows of a weight of `n` rows and `k` columns, in about equal pieces whose elements fit `room` bytes. They
/// must hold a row.
pub(crate) fn decoded_pieces(room: u64, n: u32, k: u32) -> Result<impl Iterator<Item = Range<u32>> + use<>> {
    let fit = room / (u64::from(k) * 2);
    let most = (if fit >= PIECE { fit - fit % PIECE } else { fit }).min(n.into()) as u32;
    if most == 0 {
        let reason = format!("{room} bytes hold no row of {k} elements");
        return Err(djinn_device::Error::Resource { what: "room for decoded weights", reason });
    }
    let step = n.div_ceil(n.div_ceil(most)).next_multiple_of(PIECE as u32).min(most);
    Ok((0..n).step_by(step as usize).map(move |first| first..n.min(first + step)))
}

/// All rows of the tiles of a product, as one tile. Its weight is that of the first.
pub(crate) fn whole(tiles: &[Linear]) -> Linear {
    Linear { n: tiles.iter().map(|tile| tile.n).sum(), ..tiles[0] }
}

/// The part of a product for some rows of its weight. `weight` is still all of it.
pub(crate) fn rows_of(args: &Linear, rows: &Range<u32>) -> Linear {
    let (n, out_column) = (rows.len() as u32, args.out_column + rows.start);
    let bias = args.bias.map(|bias| {
        let size = bias.dtype.bytes();
        let span = bias.span.slice(u64::from(rows.start) * size, u64::from(n) * size);
        Weight { span, ..bias }
    });
    Linear { n, out_column, bias, ..*args }
}
