//! Checks of [`Linear`].

use super::rig::{DTYPES, PARTS, Rig, rows, same_bits};
use crate::args::{Add, Linear, ReadBy, RmsNorm, SiluMul};
use crate::{DType, Ops, Result, Span, Stream};

/// Shapes with whole and ragged tiles in every direction.
const ROWS: [usize; 7] = [1, 2, 5, 7, 16, 33, 64];
const INNER: [usize; 8] = [1, 16, 17, 32, 33, 63, 576, 577];
const OUTER: [usize; 6] = [1, 3, 4, 5, 37, 130];

/// Weights of many rows: rows, `k`, `n`.
const LARGE: [[usize; 3]; 18] = [
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
    [4, 4096, 70],
    [8, 2112, 300],
    [13, 1472, 203],
];

/// Rows in one launch, among those for which a device is batch-invariant.
const ALONE: [usize; 18] = [1, 5, 8, 9, 16, 17, 24, 32, 33, 48, 64, 65, 100, 128, 129, 200, 255, 256];

/// One product and where it goes.
pub(super) struct Case {
    rows: usize,
    k: usize,
    n: usize,
    out_width: usize,
    out_column: usize,
    dtype: DType,
    x: Vec<f32>,
    weight: Vec<f32>,
    bias: Option<(Vec<f32>, DType)>,
}

impl Case {
    pub(super) fn new<D: Ops>(
        rig: &mut Rig<D>,
        [rows, k, n]: [usize; 3],
        dtype: DType,
        bias: Option<DType>,
    ) -> Case {
        let (x, weight) = (rig.random.floats(rows * k), rig.random.floats(n * k));
        let bias = bias.map(|dtype| (rig.random.floats(n), dtype));
        Case { rows, k, n, out_width: n, out_column: 0, dtype, x, weight, bias }
    }

    fn name(&self) -> String {
        format!("linear {}x{}x{} {}", self.rows, self.k, self.n, self.dtype.name())
    }

    /// The product of `n` rows of the weight from `first` on.
    pub(super) fn tile<D: Ops>(
        &self,
        rig: &mut Rig<D>,
        [x, out]: [Span; 2],
        first: usize,
        n: usize,
    ) -> Linear {
        let bias = self.bias.as_ref().map(|(bias, dtype)| rig.weight(&bias[first..first + n], *dtype));
        Linear {
            x,
            weight: rig.weight(rows(&self.weight, self.k, first, n), self.dtype),
            bias,
            out,
            k: self.k as u32,
            n: n as u32,
            out_width: self.out_width as u32,
            out_column: (self.out_column + first) as u32,
            rows: (x.len() / 4) as u32 / self.k as u32,
        }
    }

    /// Some rows of the product.
    fn part<D: Ops>(&self) -> impl Fn(&mut Rig<D>, usize, usize) -> (Linear, Span) {
        move |rig, first, count| {
            let x = rig.upload(rows(&self.x, self.k, first, count));
            let out = rig.blank_f32(count * self.out_width);
            (self.tile(rig, [x, out], 0, self.n), out)
        }
    }

    /// The products of all rows with a weight that is in tiles of its own memory each.
    fn products<D: Ops>(&self, rig: &mut Rig<D>, places: [Span; 2], tiles: &[usize]) -> Vec<Linear> {
        let firsts = tiles.iter().scan(0, |next, &n| Some(std::mem::replace(next, *next + n)));
        firsts.zip(tiles).map(|(first, &n)| self.tile(rig, places, first, n)).collect()
    }

    /// All rows, where the weight is in tiles of its own memory each: against the reference; gives the output.
    fn in_tiles<D: Ops>(
        &self,
        rig: &mut Rig<D>,
        tiles: &[usize],
        run: impl Fn(&D, Stream, &[Linear]) -> Result<()>,
    ) -> Vec<f32> {
        let (x, out) = (rig.upload(&self.x), rig.blank_f32(self.rows * self.out_width));
        let products = self.products(rig, [x, out], tiles);
        products.iter().for_each(Linear::check);
        rig.enqueued(run(&rig.device, rig.stream, &products));
        products.into_iter().for_each(|product| rig.expect(product));
        let got = rig.download(out);
        rig.matches(&format!("{} in {} tiles", self.name(), tiles.len()), self.dtype);
        got
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
                rig.agrees(&case.name(), dtype, rows, case.part());
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
            rig.agrees(&case.name(), dtype, rows, case.part());
            let all = rig.output((0, rows), &case.part());
            rig.parts_of(&all, &case.name(), rows, &[(rows - 1, 1)], case.part());
        }
    }
}

/// Widths of GPT-2 and Falcon, i.e. odd numbers of rows of a weight and multiples of 64 without larger powers of
/// two; as products of few rows and of many.
pub(super) fn serves_unusual_widths<D: Ops>(rig: &mut Rig<D>) {
    for dtype in [DType::F16, DType::BF16] {
        for [k, n] in [[4544, 232], [320, 4672], [64, 50_257], [14_848, 72]] {
            let case = Case::new(rig, [18, k, n], dtype, Some(dtype));
            rig.agrees(&case.name(), dtype, 18, case.part());
            let name = format!("one row of {}", case.name());
            rig.agrees(&name, dtype, 1, |rig, _, _| case.part()(rig, 17, 1));
        }
    }
}

pub(super) fn leaves_other_columns_alone<D: Ops>(rig: &mut Rig<D>) {
    for (rows, n, out_width, out_column) in
        [(1, 5, 12, 3), (7, 33, 40, 7), (16, 4, 4, 0), (3, 8, 16, 8), (18, 1001, 50_257, 49_256)]
    {
        let case = Case { out_width, out_column, ..Case::new(rig, [rows, 40, n], DType::BF16, None) };
        let name = format!("{} at {out_column} of {out_width}", case.name());
        rig.agrees(&name, DType::BF16, rows, case.part());
    }
}

/// Several tiles of a weight at once give the bits of one after another, and touch no other columns.
pub(super) fn takes_tiles_at_once<D: Ops>(rig: &mut Rig<D>) {
    // Rows of the tiles: even ones, a smaller last one, too many for one launch, such as no launch takes together, and
    // more than a device has blocks for at once.
    let cuts: [&[usize]; 5] = [&[16, 16], &[203, 203, 41], &[8; 35], &[3, 5, 5, 2], &[5000, 5000, 300]];
    for dtype in DTYPES {
        for (i, rows) in [1, 8, 16, 17, 33, 64, 65, 200].into_iter().enumerate() {
            for (j, tiles) in cuts.into_iter().enumerate() {
                let n = tiles.iter().sum::<usize>();
                if rows > most_alone(rig).max(65) || n > 10_000 && !(is_large(rig) && [1, 17].contains(&rows))
                {
                    continue;
                }
                let k = if n > 10_000 { 64 } else { [64, 704, 577][(i + j) % 3] };
                let bias = [None, None, Some(dtype)][(i + j / 2) % 3];
                let case = Case::new(rig, [rows, k, n], dtype, bias);
                let case = Case { out_width: n + 5, out_column: 3, ..case };
                let apart = case.in_tiles(rig, tiles, |device, stream, products| {
                    products.iter().try_for_each(|product| device.linear(stream, product))
                });
                let at_once = case.in_tiles(rig, tiles, Ops::linear_tiles);
                same_bits(&format!("{} in {} tiles", case.name(), tiles.len()), &at_once, &apart);
            }
        }
    }
}

/// Whether the device is a GPU with kernels for products of many rows, which takes much larger cases.
pub(super) fn is_large<D: Ops>(rig: &Rig<D>) -> bool {
    let info = rig.device.info();
    info.wide_products && !info.host_memory
}

/// A product and an activation at once, and then a product of what that gives: the bits of one after the other.
pub(super) fn activates_at_once<D: Ops>(rig: &mut Rig<D>) {
    // The last has more pairs of tiles than a device computes at once.
    let cuts: [&[usize]; 6] =
        [&[512], &[256, 256], &[203, 203, 42], &[6, 6, 6, 2], &[992, 992, 64], &[16_384]];
    for (d, dtype) in DTYPES.into_iter().enumerate() {
        for (i, rows) in [1, 16, 40, 130, 257, 600].into_iter().enumerate() {
            for (j, tiles) in cuts.into_iter().enumerate() {
                let n = tiles.iter().sum::<usize>();
                // Devices take x rounded also for few rows with many columns.
                let (k, width) = (if rows == 16 { 1024 } else { [64, 128, 192][(i + j) % 3] }, n / 2);
                let large = is_large(rig) && n > 10_000 && [130, 600].contains(&rows);
                if !large && (rows * n * k > 10_000_000 || (d + i + j) % 2 == 1) {
                    continue;
                }
                let case = Case::new(rig, [rows, k, n], dtype, None);
                let down = Case::new(rig, [rows, width, 24], dtype, None);
                let mut run = |over_x: bool, at_once: bool, alone: bool| {
                    let (x, between) = (rig.upload(&case.x), rig.blank_f32(rows * n));
                    let bytes = (rows * width * 4) as u64;
                    let out = if over_x { x.slice(0, bytes) } else { rig.blank_f32(rows * width) };
                    let products = case.products(rig, [x, between], tiles);
                    let last = rig.blank_f32(rows * down.n);
                    let product = down.tile(rig, [out, last], 0, down.n);
                    let read_by = alone.then(|| read_by(&product, true));
                    let act = SiluMul { x: between, out, width: width as u32, rows: rows as u32, read_by };
                    products.iter().for_each(Linear::check);
                    act.check();
                    if at_once {
                        rig.enqueued(rig.device.linear_silu_mul(rig.stream, &products, &act));
                    } else {
                        rig.enqueued(rig.device.linear_tiles(rig.stream, &products));
                        rig.enqueued(rig.device.silu_mul(rig.stream, &act));
                    }
                    rig.enqueued(rig.device.linear(rig.stream, &product));
                    let both: [Vec<f32>; 2] = [out, last].map(|span| rig.download(span));
                    rig.clear();
                    both
                };
                let apart = run(false, false, false);
                for at_once in [false, true] {
                    let name = format!("a product that alone reads an activation of {}", case.name());
                    same_bits(&name, &run(false, at_once, true)[1], &apart[1]);
                }
                for over_x in [false, true] {
                    if over_x && width > k {
                        continue;
                    }
                    let at_once = run(over_x, true, false);
                    let name = format!("an activation of {} in {} tiles", case.name(), tiles.len());
                    same_bits(&name, &at_once[0], &apart[0]);
                    same_bits(&format!("a product of {name}"), &at_once[1], &apart[1]);
                }
            }
        }
    }
}

/// A product that is added to another value in one launch, in place or not: the bits of one after the other.
pub(super) fn adds_at_once<D: Ops>(rig: &mut Rig<D>) {
    // Devices divide products of many rows among their parts: evenly or not, and in pairs. The last pair may be half of one.
    let cases: [([usize; 2], &[usize], &[DType]); 9] = [
        ([1, 64], &[1024], &DTYPES),
        ([40, 192], &[512, 512], &DTYPES),
        ([130, 64], &[304, 304, 96], &DTYPES),
        ([257, 64], &[203, 203, 42], &DTYPES),
        ([300, 64], &[2752], &[DType::BF16]),
        ([600, 64], &[512], &[DType::F16]),
        ([700, 64], &[512, 512, 488], &[DType::F16]),
        ([1030, 64], &[512, 512, 256], &[DType::BF16]),
        // Rounded activations that almost fill a workspace of 2 MiB.
        ([340, 3008], &[2752], &[DType::BF16]),
    ];
    let many = is_large(rig);
    for ([rows, k], tiles, dtypes) in cases.into_iter().filter(|([rows, _], ..)| many || *rows <= 130) {
        for &dtype in dtypes {
            let n = tiles.iter().sum::<usize>();
            let case = Case::new(rig, [rows, k, n], dtype, None);
            // Subnormal terms and sums as well.
            let small = |x: &f32, among: bool| if among { x * 1e-38 } else { *x };
            let terms = rig.random.floats(rows * n);
            let terms: Vec<f32> = (0..).zip(&terms).map(|(i, x)| small(x, i % 3 == 0)).collect();
            let x: Vec<f32> = (0..).zip(&case.x).map(|(i, x)| small(x, i / k % 3 == 0)).collect();
            let mut run = |at_once: bool, place: usize| {
                let (x, term, product) = (rig.upload(&x), rig.upload(&terms), rig.blank_f32(rows * n));
                let out = [term, rig.blank_f32(rows * n), product][place];
                let products = case.products(rig, [x, product], tiles);
                let add = Add { a: term, b: product, out, len: (rows * n) as u64 };
                products.iter().for_each(Linear::check);
                add.check();
                let device = &rig.device;
                let done = if at_once {
                    device.linear_add(rig.stream, &products, &add)
                } else {
                    device.linear_tiles(rig.stream, &products).map(|()| false)
                };
                if !done.expect("work is enqueued") {
                    rig.enqueued(device.add(rig.stream, &add));
                }
                let sum: Vec<f32> = rig.download(out);
                rig.clear();
                sum
            };
            let apart = run(false, 0);
            for place in 0..if rows < 300 { 3 } else { 1 } {
                let name = format!("{} in {} tiles, added", case.name(), tiles.len());
                same_bits(&name, &run(true, place), &apart);
            }
        }
    }
}

/// A product reads what the operation before gave, or what was written over that since, whether or not the operation was
/// told that it would.
pub(super) fn reads_the_latest<D: Ops>(rig: &mut Rig<D>) {
    for dtype in DTYPES {
        for (rows, width) in [(1, 64), (7, 2368), (16, 1024), (20, 128), (33, 60), (70, 192), (140, 64)] {
            let case = Case::new(rig, [rows, width, 9], dtype, None);
            let (both, scales) = (rig.random.floats(rows * 2 * width), rig.random.floats(width));
            let mut run = |norms: bool, told: Option<bool>, then: Then| {
                let (x, other) =
                    (rig.upload(&both[..rows * width * if norms { 1 } else { 2 }]), rig.upload(&case.x));
                let (between, out) = (rig.blank_f32(rows * width), rig.blank_f32(rows * case.n));
                let elsewhere = rig.blank_f32(rows * width);
                let product = case.tile(rig, [between, out], 0, case.n);
                let read_by = told.map(|alone| read_by(&product, alone));
                let (width, rows) = (width as u32, rows as u32);
                if norms {
                    let weight = rig.weight(&scales, dtype);
                    rig.enqueue(RmsNorm { x, weight, out: between, eps: 1e-5, width, rows, read_by });
                } else {
                    rig.enqueue(SiluMul { x, out: between, width, rows, read_by });
                }
                match then {
                    Then::Nothing => {}
                    Then::Elsewhere => {
                        let event = rig.device.event().expect("an event");
                        rig.enqueued(rig.device.copy(rig.stream, other, elsewhere));
                        rig.enqueued(rig.device.record(rig.stream, event));
                        rig.enqueued(rig.device.wait(rig.stream, event));
                    }
                    Then::Over => rig.enqueued(rig.device.copy(rig.stream, other, between)),
                }
                rig.enqueue(product);
                let both: [Vec<f32>; 2] = [between, out].map(|span| rig.download(span));
                rig.clear();
                both
            };
            for norms in [false, true] {
                for then in [Then::Nothing, Then::Elsewhere, Then::Over] {
                    let (told, untold) = (run(norms, Some(false), then), run(norms, None, then));
                    let name = format!("{}, norms {norms}, then {then:?}", case.name());
                    same_bits(&format!("what is read by {name}"), &told[0], &untold[0]);
                    same_bits(&name, &told[1], &untold[1]);
                    if matches!(then, Then::Nothing) {
                        let alone = run(norms, Some(true), then);
                        same_bits(&format!("{name}, alone"), &alone[1], &untold[1]);
                    }
                }
            }
        }
    }
}

/// What comes between an operation and the product that reads its output: nothing, work that leaves the output as it is,
/// or a copy over it.
#[derive(Clone, Copy, Debug)]
enum Then {
    Nothing,
    Elsewhere,
    Over,
}

/// What an operation is told of the product that reads its output next.
pub(super) fn read_by(product: &Linear, alone: bool) -> ReadBy {
    ReadBy { dtype: product.weight.dtype, encoding: product.weight.encoding, alone }
}

pub(super) fn is_batch_invariant<D: Ops>(rig: &mut Rig<D>) {
    for dtype in DTYPES {
        for [k, n] in [[577, 37], [64, 130], [17, 5]] {
            let case = Case::new(rig, [33, k, n], dtype, Some(dtype));
            rig.invariant(&case.name(), 33, &PARTS, case.part());
        }
    }
}

/// The most batch-invariant rows that are checked. A device without a limit has no kernels of its own for more.
fn most_alone<D: Ops>(rig: &Rig<D>) -> usize {
    match rig.device.info().batch_invariant_rows {
        u32::MAX => 64,
        rows => rows.min(256) as usize,
    }
}

/// Up to as many rows as the device says it is batch-invariant for: each has the bits of a launch of its own.
pub(super) fn computes_batch_invariant_rows<D: Ops>(rig: &mut Rig<D>) {
    let most = most_alone(rig);
    // More columns than a device computes at once, on a device that computes few as well.
    let many = if is_large(rig) { 1003 } else { 203 };
    for dtype in DTYPES {
        for [k, n] in [[64, 5], [577, 37], [704, 130], [1088, many], [4096, 37]] {
            let case = Case::new(rig, [most, k, n], dtype, Some(dtype));
            let case = Case { out_width: n + 3, out_column: 2, ..case };
            let alone: Vec<f32> = (0..most).flat_map(|row| rig.output((row, 1), &case.part())).collect();
            // The last rows: each stands in another place of every launch.
            let launches: Vec<_> =
                ALONE.into_iter().filter(|&rows| rows <= most).map(|rows| (most - rows, rows)).collect();
            rig.parts_of(&alone, &case.name(), most, &launches, case.part());
        }
    }
    let info = rig.device.info();
    if info.wide_products && info.batch_invariant_rows != u32::MAX {
        computes_wide_products(rig);
    }
}

/// Rows of wide products have the bits of a launch of few, in launches of any number of rows.
fn computes_wide_products<D: Ops>(rig: &mut Rig<D>) {
    const ROWS: usize = 600;
    for dtype in [DType::F16, DType::BF16] {
        // Few tiles, and enough for a large card: with a bias at an odd column, and as in a layer.
        for ([k, n], odd) in [
            ([64, 5], true),
            ([704, 130], true),
            ([1088, 1003], true),
            ([704, 3003], true),
            ([320, 14_000], true),
            ([320, 14_000], false),
        ] {
            let case = Case::new(rig, [ROWS, k, n], dtype, odd.then_some(dtype));
            let case = if odd { Case { out_width: n + 3, out_column: 2, ..case } } else { case };
            let few: Vec<f32> =
                (0..ROWS).step_by(8).flat_map(|row| rig.output((row, 8), &case.part())).collect();
            let launches = [257, 300, 400, 512, ROWS].map(|rows| (ROWS - rows, rows));
            rig.parts_of(&few, &case.name(), ROWS, &launches, case.part());
        }
    }
}
