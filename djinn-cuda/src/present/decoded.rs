//! Weights that are decoded into a workspace before a product reads them.

use crate::experts::Experts;
use crate::present::device::CudaDevice;
use crate::present::launch::{Launch, decoded_dtype, wants_rounded};
use crate::present::memory::Place;
use crate::present::tiles::{decoded_pieces, tiles_of_one_launch, whole};
use djinn_device::args::{self, Linear};
use djinn_device::{Encoding, Result, Stream};
use std::borrow::Cow;
use std::ops::Range;

impl CudaDevice {
    /// How many of the leading tiles are decoded for one launch of Djinn's kernels: encoded tiles of a product that
    /// follow one another in the output, and whose elements are of one type. Encodings may differ. A bias is cut into
    /// tiles, so with one it is one tile.
    pub(crate) fn decoded_together(&self, tiles: &[Linear]) -> usize {
        let decoded = |tile: &Linear| tile.weight.encoding != Encoding::Plain && !self.reads_directly(tile);
        let follows = |(a, b): (&Linear, &Linear)| {
            let next = Linear { weight: b.weight, out_column: a.out_column + a.n, n: b.n, ..*a };
            let alike = decoded_dtype(a.weight) == decoded_dtype(b.weight) && a.bias.is_none();
            *b == next && alike && decoded(b)
        };
        1 + tiles.iter().zip(&tiles[1..]).take_while(|&pair| follows(pair)).count()
    }

    /// The tiles of a weight for a launch of kernels for many rows that takes all of them, if one can: as they are, or as
    /// one tile that is [decoded](CudaDevice::decode_all) first.
    pub(crate) fn as_one_launch<'a>(&self, tiles: &'a [Linear]) -> Option<Cow<'a, [Linear]>> {
        let plain = tiles[0].weight.encoding == Encoding::Plain;
        if plain || (!self.reads_directly(&tiles[0]) && self.reads_as_stored(tiles)) {
            return (tiles_of_one_launch(tiles) == tiles.len()).then_some(Cow::Borrowed(tiles));
        }
        let all = whole(tiles);
        let fits = u64::from(all.n) * u64::from(all.k) * 2 <= self.scratch.decoded().len();
        let can = fits && !self.reads_directly(&tiles[0]) && self.decoded_together(tiles) == tiles.len();
        can.then(|| Cow::Owned(vec![all]))
    }

    /// Decodes all of an encoded weight that [fits](CudaDevice::as_one_launch) the workspace. `None`: it is read as it is stored.
    pub(crate) fn decode_all(&self, launch: Launch<'_>, tiles: &[Linear]) -> crate::Result<Option<Place>> {
        let decodes = !self.reads_as_stored(tiles);
        decodes.then(|| self.decode(launch, tiles, 0..whole(tiles).n)).transpose()
    }

    /// Decodes some rows of the tiles of a product, counted from the first tile's first row, into the workspace.
    pub(crate) fn decode(
        &self,
        launch: Launch<'_>,
        tiles: &[Linear],
        rows: Range<u32>,
    ) -> crate::Result<Place> {
        let weights = tiles.iter().map(|tile| (tile.weight, tile.n));
        self.decode_weights(launch, weights, tiles[0].k, rows)
    }

    /// The same for weights of `k` columns, each with its number of rows.
    fn decode_weights(
        &self,
        launch: Launch<'_>,
        weights: impl Iterator<Item = (args::Weight, u32)>,
        k: u32,
        rows: Range<u32>,
    ) -> crate::Result<Place> {
        let row = u64::from(k) * 2;
        let out = self.scratch.decoded().slice(0, rows.len() as u64 * row);
        let mut first = 0;
        for (weight, n) in weights {
            let part = rows.start.max(first)..rows.end.min(first + n);
            if !part.is_empty() {
                let to = out.slice(u64::from(part.start - rows.start) * row, part.len() as u64 * row);
                launch.decode(weight, [n, k], part.start - first..part.end - first, to)?;
            }
            first += n;
        }
        Ok(out)
    }

    /// An expert's product whose weight is decoded piece by piece.
    pub(crate) fn decoded_expert_linear(&self, stream: Stream, args: &args::ExpertLinear) -> Result<()> {
        let workspace =
            wants_rounded(args.slots, args.k, args.weight, true).then(|| self.scratch.activations());
        self.claim_scratch(stream)?;
        for rows in decoded_pieces(self.scratch.decoded().len(), args.n, args.k)? {
            let (n, out_column) = (rows.len() as u32, args.out_column + rows.start);
            self.launch(stream, |launch| {
                let weight = std::iter::once((args.weight, args.n));
                let decoded = self.decode_weights(launch, weight, args.k, rows)?;
                let products = vec![args::ExpertLinear { n, out_column, ..*args }];
                launch.expert_linear(&Experts { products, tiles: 1 }, workspace, Some(decoded), false)
            })?;
        }
        Ok(())
    }
}
