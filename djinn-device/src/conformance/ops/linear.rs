//! Checks of [`Linear`].

use super::rig::{DTYPES, Rig, Stored, same_bits};
use crate::args::Linear;
use crate::kernels::{data, reference};
use crate::{DType, Ops, Result, Stream};

/// Shapes with whole and ragged tiles in every direction.
const ROWS: [usize; 7] = [1, 2, 5, 7, 16, 33, 64];
const INNER: [usize; 8] = [1, 16, 17, 32, 33, 63, 576, 577];
const OUTER: [usize; 6] = [1, 3, 4, 5, 37, 130];

/// Weights of many rows: rows, `k`, `n`.
const LARGE: [[usize; 3]; 15] = [
    [1, 64, 1707],
    [2, 1088, 2113],
    [5, 192, 4100],
    [16, 640, 5001],
    [9, 64, 6400],
    [3, 128, 20_000],
    [17, 1088, 2113],
    [24, 192, 4100],
    [40, 320, 3001],
    [33, 64, 6001],
    [64, 64, 8200],
    [50, 128, 10_003],
    [100, 128, 2050],
    [129, 192, 1501],
    [256, 64, 4100],
];

/// Rows in one launch, of those that a device computes alone.
const ALONE: [usize; 18] = [1, 5, 8, 9, 16, 17, 24, 32, 33, 48, 64, 65, 100, 128, 129, 200, 255, 256];

/// One product and where it goes.
struct Case {
    rows: usize,
    k: usize,
    n: usize,
    out_width: usize,
    out_column: usize,
    x: Vec<f32>,
    weight: Stored,
    bias: Option<Stored>,
}

impl Case {
    fn new<D: Ops>(rig: &mut Rig<D>, [rows, k, n]: [usize; 3], dtype: DType, bias: Option<DType>) -> Case {
        let x = rig.random.floats(rows * k);
        let weight = Stored::round(&rig.random.floats(n * k), dtype);
        let bias = bias.map(|dtype| Stored::round(&rig.random.floats(n), dtype));
        Case { rows, k, n, out_width: n, out_column: 0, x, weight, bias }
    }

    /// The device's result for `count` rows from `first`.
    fn run<D: Ops>(&self, rig: &mut Rig<D>, first: usize, count: usize) -> Vec<f32> {
        let out = rig.blank_f32(count * self.out_width);
        let args = Linear {
            x: rig.upload(&self.x[first * self.k..(first + count) * self.k]),
            weight: rig.weight(&self.weight),
            bias: self.bias.as_ref().map(|bias| rig.weight(bias)),
            out,
            k: self.k as u32,
            n: self.n as u32,
            out_width: self.out_width as u32,
            out_column: self.out_column as u32,
            rows: count as u32,
        };
        args.check();
        rig.enqueued(rig.device.linear(rig.stream, &args));
        let got = rig.download(out);
        rig.free_all();
        got
    }

    /// The device's result for all rows, where the weight is in tiles of its own memory each.
    fn run_tiles<D: Ops>(
        &self,
        rig: &mut Rig<D>,
        tiles: &[usize],
        run: impl Fn(&D, Stream, &[Linear]) -> Result<()>,
    ) -> Vec<f32> {
        let out = rig.blank_f32(self.rows * self.out_width);
        let x = rig.upload(&self.x);
        let mut products = Vec::new();
        let mut first = 0;
        for &n in tiles {
            products.push(Linear {
                x,
                weight: rig.weight(&self.weight.part(first * self.k..(first + n) * self.k)),
                bias: self.bias.as_ref().map(|bias| rig.weight(&bias.part(first..first + n))),
                out,
                k: self.k as u32,
                n: n as u32,
                out_width: self.out_width as u32,
                out_column: (self.out_column + first) as u32,
                rows: self.rows as u32,
            });
            first += n;
        }
        products.iter().for_each(Linear::check);
        rig.enqueued(run(&rig.device, rig.stream, &products));
        let got = rig.download(out);
        rig.free_all();
        got
    }

    fn reference(&self) -> Vec<f32> {
        let mut out = vec![f32::from_bits(u32::MAX); self.rows * self.out_width];
        reference::linear(data::Linear {
            x: &self.x,
            weight: self.weight.elements(),
            bias: self.bias.as_ref().map(Stored::elements),
            k: self.k,
            n: self.n,
            out_width: self.out_width,
            out_column: self.out_column,
            out: &mut out,
        });
        out
    }
}

pub(super) fn matches_the_reference<D: Ops>(rig: &mut Rig<D>) {
    for dtype in DTYPES {
        for (i, k) in INNER.into_iter().enumerate() {
            // Every row count and every width meets every `k` class over the three types.
            for (j, rows) in ROWS.into_iter().enumerate() {
                let n = OUTER[(i + j) % OUTER.len()];
                let bias = [None, Some(DType::F32), Some(dtype)][(i + j) % 3];
                let case = Case::new(rig, [rows, k, n], dtype, bias);
                let got = case.run(rig, 0, rows);
                let name = format!("linear {rows}x{k}x{n} {}", dtype.name());
                rig.compare(&name, &got, &case.reference(), dtype);
            }
        }
    }
}

/// Weights of many rows, which devices divide between their parts, evenly or not.
pub(super) fn divides_large_weights<D: Ops>(rig: &mut Rig<D>) {
    for dtype in [DType::F16, DType::BF16] {
        let most = most_alone(rig);
        for [rows, k, n] in LARGE.into_iter().filter(|&[rows, ..]| rows <= most) {
            let case = Case::new(rig, [rows, k, n], dtype, Some(dtype));
            let all = case.run(rig, 0, rows);
            let name = format!("linear {rows}x{k}x{n} {}", dtype.name());
            rig.compare(&name, &all, &case.reference(), dtype);
            let last = case.run(rig, rows - 1, 1);
            same_bits(&format!("the last row of {name}"), &last, &all[(rows - 1) * n..]);
        }
    }
}

/// Widths of GPT-2 and Falcon, i.e. odd numbers of rows of a weight and multiples of 64 without larger powers of
/// two; as products of few rows and of many.
pub(super) fn serves_unusual_widths<D: Ops>(rig: &mut Rig<D>) {
    for dtype in [DType::F16, DType::BF16] {
        for [k, n] in [[4544, 232], [320, 4672], [64, 50_257], [14_848, 72]] {
            let case = Case::new(rig, [18, k, n], dtype, Some(dtype));
            let want = case.reference();
            let all = case.run(rig, 0, 18);
            rig.compare(&format!("linear 18x{k}x{n} {}", dtype.name()), &all, &want, dtype);
            let one = case.run(rig, 17, 1);
            rig.compare(&format!("linear 1x{k}x{n} {}", dtype.name()), &one, &want[17 * n..], dtype);
        }
    }
}

pub(super) fn leaves_other_columns_alone<D: Ops>(rig: &mut Rig<D>) {
    for (rows, n, out_width, out_column) in
        [(1, 5, 12, 3), (7, 33, 40, 7), (16, 4, 4, 0), (3, 8, 16, 8), (18, 1001, 50_257, 49_256)]
    {
        let case = Case { out_width, out_column, ..Case::new(rig, [rows, 40, n], DType::BF16, None) };
        let (got, want) = (case.run(rig, 0, rows), case.reference());
        let name = format!("linear of {n} columns at {out_column} of {out_width}");
        for (got, want) in got.chunks(out_width).zip(want.chunks(out_width)) {
            let written = out_column..out_column + n;
            rig.compare(&name, &got[written.clone()], &want[written.clone()], DType::BF16);
            same_bits(&name, &got[..written.start], &want[..written.start]);
            same_bits(&name, &got[written.end..], &want[written.end..]);
        }
    }
}

/// Tiles of a weight at once: the bits that each gives by itself, and no other columns.
pub(super) fn takes_tiles_at_once<D: Ops>(rig: &mut Rig<D>) {
    // Rows of the tiles: even ones, a smaller last one, too many for one launch, such as no launch takes together, and
    // more than a device has blocks for at once.
    let cuts: [&[usize]; 5] = [&[16, 16], &[203, 203, 41], &[8; 11], &[3, 5, 5, 2], &[5000, 5000, 300]];
    for dtype in DTYPES {
        for (i, rows) in [1, 8, 16, 17, 33, 64, 65, 200].into_iter().enumerate() {
            for (j, tiles) in cuts.into_iter().enumerate() {
                if rows > most_alone(rig).max(65) {
                    continue;
                }
                let n = tiles.iter().sum::<usize>();
                let k = if n > 10_000 { 64 } else { [64, 704, 577][(i + j) % 3] };
                if n > 10_000 && ![1, 17].contains(&rows) {
                    continue;
                }
                let bias = [None, None, Some(dtype)][(i + j / 2) % 3];
                let case = Case::new(rig, [rows, k, n], dtype, bias);
                let case = Case { out_width: n + 5, out_column: 3, ..case };
                let name = format!("linear {rows}x{k}x{n} {} in {} tiles", dtype.name(), tiles.len());
                let apart = case.run_tiles(rig, tiles, |device, stream, products| {
                    products.iter().try_for_each(|product| device.linear(stream, product))
                });
                let at_once = case.run_tiles(rig, tiles, Ops::linear_tiles);
                same_bits(&name, &at_once, &apart);
                // Of each row first the columns that are written, then the others.
                let split = |out: &[f32]| -> [Vec<f32>; 2] {
                    let rows = || out.chunks(n + 5);
                    let others = rows().flat_map(|row| [&row[..3], &row[n + 3..]].concat());
                    [rows().flat_map(|row| row[3..n + 3].to_vec()).collect(), others.collect()]
                };
                let [[got, beside], [want, blank]] = [&at_once, &case.reference()].map(|out| split(out));
                rig.compare(&name, &got, &want, dtype);
                same_bits(&format!("what is beside {name}"), &beside, &blank);
            }
        }
    }
}

pub(super) fn is_batch_invariant<D: Ops>(rig: &mut Rig<D>) {
    for dtype in DTYPES {
        for [k, n] in [[577, 37], [64, 130], [17, 5]] {
            let case = Case::new(rig, [33, k, n], dtype, Some(dtype));
            let all = rig.in_batches(33, |rig, first, count| case.run(rig, first, count));
            for (first, count) in [(0, 1), (5, 1), (32, 1), (4, 2), (11, 5), (3, 16), (17, 16)] {
                let got = case.run(rig, first, count);
                let name = format!("rows {first}+{count} of 33 in linear {k}x{n} {}", dtype.name());
                same_bits(&name, &got, &all[first * n..(first + count) * n]);
            }
        }
    }
}

/// The most rows of a check of rows alone. A device without a limit has no kernels of its own for more.
fn most_alone<D: Ops>(rig: &Rig<D>) -> usize {
    match rig.device.info().rows_alone {
        u32::MAX => 64,
        rows => rows.min(256) as usize,
    }
}

/// Up to as many rows as the device says it computes alone: each has the bits of a launch of its own.
pub(super) fn computes_rows_alone<D: Ops>(rig: &mut Rig<D>) {
    let most = most_alone(rig);
    for dtype in DTYPES {
        for [k, n] in [[64, 5], [577, 37], [704, 130], [1088, 1003], [4096, 37]] {
            let case = Case::new(rig, [most, k, n], dtype, Some(dtype));
            let case = Case { out_width: n + 3, out_column: 2, ..case };
            let alone: Vec<Vec<f32>> = (0..most).map(|row| case.run(rig, row, 1)).collect();
            for rows in ALONE.into_iter().filter(|&rows| rows <= most) {
                // The last rows: each stands in another place of every launch.
                let got = case.run(rig, most - rows, rows);
                for (i, (got, alone)) in got.chunks(n + 3).zip(&alone[most - rows..]).enumerate() {
                    let name = format!("row {i} of {rows} in linear {k}x{n} {}", dtype.name());
                    same_bits(&name, got, alone);
                }
            }
        }
    }
}
