//! Checks of matrices in every encoding that the device says it computes from.

use super::Stored;
use super::linear::{is_large, read_by};
use super::rig::{PARTS, Rig, rows, same_bits};
use super::routing::{AtOnce, MANY, ROUTINGS, group};
use crate::args::{Add, Embed, ExpertLinear, Group, Linear, RmsNorm, SiluMul, Weight};
use crate::reference::encode;
use crate::{BlockFormat, DType, Encoding, Ops, Space, Span};
use djinn_srg::lossless_row;

/// Activation rows in one launch, at the edges of kernels.
const ROWS: [usize; 9] = [1, 2, 7, 16, 17, 64, 128, 129, 300];

/// Parts of 300 rows, first and count.
const LARGE_PARTS: [(usize, usize); 7] =
    [(299, 1), (5, 2), (11, 7), (20, 16), (100, 17), (60, 128), (40, 129)];

/// Random rows of an encoding.
pub(super) struct Matrix {
    pub(super) encoding: Encoding,
    /// That of plain elements, where the encoding keeps it.
    pub(super) dtype: DType,
    rows: usize,
    pub(super) columns: usize,
    bytes: Vec<u8>,
}

impl Matrix {
    /// Rows of `blocks` blocks each. The padding of rows is random, so that results that depend on it differ.
    fn of_blocks<D: Ops>(rig: &mut Rig<D>, format: BlockFormat, rows: usize, blocks: usize) -> Matrix {
        let (encoding, dtype) = (Encoding::Blocks(format), DType::F32);
        let columns = blocks * format.elements() as usize;
        let row_bytes = encoding.row_bytes(dtype, columns as u64).expect("whole blocks") as usize;
        let mut bytes = rig.random.bytes(rows * row_bytes);
        for row in bytes.chunks_exact_mut(row_bytes) {
            for block in row.chunks_exact_mut(format.bytes() as usize).take(blocks) {
                format.set_scales(block, || rig.random.floats(1)[0] / 64.0);
            }
        }
        Matrix { encoding, dtype, rows, columns, bytes }
    }

    /// The same matrix without loss, and plain. Each row has a zero and a tiny value, which are escapes; or, if its list
    /// is `full`, as many as it has room for, side by side in every second row.
    fn lossless<D: Ops>(
        rig: &mut Rig<D>,
        dtype: DType,
        [rows, columns]: [usize; 2],
        full: bool,
    ) -> [Matrix; 2] {
        const TINY: f32 = 1.0 / 1024.0 / 1024.0;
        let (form, row) = lossless_row(dtype, columns as u64).expect("a 16-bit type");
        let mut values = rig.random.floats(rows * columns);
        for (i, values) in values.chunks_exact_mut(columns).enumerate() {
            values.iter_mut().for_each(|value| *value = half::bf16::from_f32(*value).to_f32());
            if full {
                values.iter_mut().filter(|value| value.abs() < 0.001).for_each(|value| *value = 0.5);
                let apart = if i % 2 == 0 { 1 } else { columns / row.capacity() };
                for escape in 0..row.capacity() {
                    values[(i * 7 + escape * apart) % columns] = [0.0, -0.0, TINY][escape % 3];
                }
            } else {
                values[i * 7 % columns] = 0.0;
                values[(i * 13 + 1) % columns] = TINY;
            }
        }
        let plain = encode(&values, dtype);
        let mut bytes = vec![0; rows * row.bytes()];
        for (plain, encoded) in plain.chunks_exact(columns * 2).zip(bytes.chunks_exact_mut(row.bytes())) {
            assert!(row.encode(form, plain, encoded), "few values are escapes");
        }
        let lossless = Matrix { encoding: Encoding::Lossless, dtype, rows, columns, bytes };
        let plain = Matrix { encoding: Encoding::Plain, dtype, rows, columns, bytes: plain };
        [lossless, plain]
    }

    /// Random elements of a type.
    pub(super) fn plain<D: Ops>(rig: &mut Rig<D>, dtype: DType, [rows, columns]: [usize; 2]) -> Matrix {
        let bytes = encode(&rig.random.floats(rows * columns), dtype);
        Matrix { encoding: Encoding::Plain, dtype, rows, columns, bytes }
    }

    /// `n` rows of `k` columns, which blocks of the encoding divide.
    pub(super) fn random<D: Ops>(rig: &mut Rig<D>, encoding: Encoding, n: usize, k: usize) -> Matrix {
        match encoding {
            Encoding::Blocks(format) => Matrix::of_blocks(rig, format, n, k / format.elements() as usize),
            Encoding::Lossless => {
                let [matrix, _] = Matrix::lossless(rig, DType::BF16, [n, k], false);
                matrix
            }
            other => panic!("no random rows of {other}"),
        }
    }

    /// The product with `count` of its rows from `first` on, at a column of `width`.
    fn tile<D: Ops>(
        &self,
        rig: &mut Rig<D>,
        [x, out]: [Span; 2],
        [first, count]: [usize; 2],
        [column, width]: [usize; 2],
    ) -> Linear {
        Linear {
            x,
            weight: self.upload(rig, Space::Device, first, count),
            bias: None,
            out,
            k: self.columns as u32,
            n: count as u32,
            out_width: width as u32,
            out_column: column as u32,
            rows: (x.len() / 4) as u32 / self.columns as u32,
        }
    }

    /// `count` of its rows from `first` on, in a buffer of their own.
    pub(super) fn upload<D: Ops>(
        &self,
        rig: &mut Rig<D>,
        space: Space,
        first: usize,
        count: usize,
    ) -> Weight {
        let row = self.bytes.len() / self.rows;
        let bytes = self.bytes[first * row..(first + count) * row].to_vec();
        Weight { span: rig.upload_to(space, bytes), dtype: self.dtype, encoding: self.encoding }
    }

    /// What its products are compared by.
    pub(super) fn stored(&self) -> Stored {
        Stored(self.encoding, self.dtype)
    }

    pub(super) fn name(&self, what: &str) -> String {
        format!("{what} {} rows of {} in {}", self.rows, self.columns, self.encoding)
    }

    /// Some rows of `x` times all rows of the matrix, beside columns that stay as they are.
    fn product<'a, D: Ops>(
        &'a self,
        x: &'a [f32],
    ) -> impl Fn(&mut Rig<D>, usize, usize) -> (Linear, Span) + 'a {
        move |rig, first, count| {
            let out_width = self.rows + 3;
            let out = rig.blank_f32(count * out_width);
            let args = Linear {
                x: rig.upload(rows(x, self.columns, first, count)),
                weight: self.upload(rig, Space::Device, 0, self.rows),
                bias: None,
                out,
                k: self.columns as u32,
                n: self.rows as u32,
                out_width: out_width as u32,
                out_column: 2,
                rows: count as u32,
            };
            (args, out)
        }
    }
}

/// Every encoding, with shapes of ragged tiles. Most formats' rows of so few blocks, and of nine, are padded.
fn each<D: Ops>(rig: &mut Rig<D>, mut check: impl FnMut(&mut Rig<D>, Matrix)) {
    for &encoding in rig.device.info().encodings {
        for (rows, blocks) in [(17, 1), (37, 3), (130, 2), (21, 9)] {
            match encoding {
                Encoding::Blocks(format) => {
                    let matrix = Matrix::of_blocks(rig, format, rows, blocks);
                    check(rig, matrix);
                }
                Encoding::Lossless => {
                    each_lossless(rig, [rows, blocks * 64], false, |rig, [matrix, _]| check(rig, matrix))
                }
                other => panic!("no random rows of {other}"),
            }
        }
    }
}

/// Both types that are stored without loss.
fn each_lossless<D: Ops>(
    rig: &mut Rig<D>,
    sizes: [usize; 2],
    full: bool,
    mut check: impl FnMut(&mut Rig<D>, [Matrix; 2]),
) {
    for dtype in [DType::BF16, DType::F16] {
        let matrices = Matrix::lossless(rig, dtype, sizes, full);
        check(rig, matrices);
    }
}

pub(super) fn products_match_the_reference<D: Ops>(rig: &mut Rig<D>) {
    each(rig, |rig, matrix| {
        for rows in [1, 7, 64, if [37, 21].contains(&matrix.rows) { 300 } else { 16 }] {
            let x = rig.random.floats(rows * matrix.columns);
            rig.agrees(&matrix.name(&format!("linear {rows} x")), matrix.stored(), rows, matrix.product(&x));
        }
    });
}

pub(super) fn products_are_batch_invariant<D: Ops>(rig: &mut Rig<D>) {
    each(rig, |rig, matrix| {
        let x = rig.random.floats(33 * matrix.columns);
        rig.invariant(&matrix.name("linear 33 x"), 33, &PARTS, matrix.product(&x));
        if matrix.rows == 37 {
            let most = rig.device.info().batch_invariant_rows as usize;
            let parts: Vec<_> = LARGE_PARTS.into_iter().filter(|&(_, count)| count <= most).collect();
            let x = rig.random.floats(300 * matrix.columns);
            rig.invariant(&matrix.name("linear 300 x"), 300, &parts, matrix.product(&x));
        }
    });
}

/// Whatever the rows; with columns that are no multiple of anything; and with as many escapes as there is room for.
pub(super) fn lossless_products_have_the_bits_of_plain_ones<D: Ops>(rig: &mut Rig<D>) {
    if !rig.device.info().encodings.contains(&Encoding::Lossless) {
        return;
    }
    for (n, k, full) in [(37, 192, false), (130, 101, false), (40, 8192, true)] {
        each_lossless(rig, [n, k], full, |rig, matrices| {
            for rows in ROWS {
                let rows = if full { at_most(rig, rows) } else { rows };
                let x = rig.random.floats(rows * k);
                let [got, want] = [0, 1].map(|i: usize| rig.output((0, rows), &matrices[i].product(&x)));
                same_bits(&matrices[0].name(&format!("linear {rows} x")), &got, &want);
            }
        });
    }
}

/// Rows of wide products have the bits of a launch of few, in launches of any number of rows.
pub(super) fn wide_products_have_the_bits_of_few<D: Ops>(rig: &mut Rig<D>) {
    const ROWS: usize = 600;
    let info = rig.device.info();
    if !info.wide_products || info.batch_invariant_rows == u32::MAX {
        return;
    }
    for &encoding in info.encodings {
        for n in [130, 3003] {
            let matrix = Matrix::random(rig, encoding, n, 512);
            let x = rig.random.floats(ROWS * matrix.columns);
            let few: Vec<f32> =
                (0..ROWS).step_by(8).flat_map(|row| rig.output((row, 8), &matrix.product(&x))).collect();
            let launches = [257, 512, ROWS].map(|rows| (ROWS - rows, rows));
            rig.parts_of(&few, &matrix.name("wide"), ROWS, &launches, matrix.product(&x));
        }
    }
}

/// Rows of a product. Devices in host memory compute all tiles alike, and slowly: they take few rows.
fn at_most<D: Ops>(rig: &Rig<D>, rows: usize) -> usize {
    if rig.device.info().host_memory { rows.min(10) } else { rows }
}

/// Tiles of several encodings at once give the bits of one after another.
pub(super) fn takes_tiles_at_once<D: Ops>(rig: &mut Rig<D>) {
    let encodings = rig.device.info().encodings;
    for rows in [1, 70, 300].map(|rows| at_most(rig, rows)) {
        // Rows of half of the formats are padded.
        let k = 768;
        let x = rig.random.floats(rows * k);
        let (cut, before) = ([64, 96, 40], 5);
        // Neighbours in the list: formats of blocks decode to one type, others do not.
        for (i, &encoding) in encodings.iter().enumerate() {
            let of_tiles = [encoding, encodings[(i + 1) % encodings.len()], encoding];
            let tiles: Vec<Matrix> =
                of_tiles.iter().zip(cut).map(|(&of, n)| Matrix::random(rig, of, before + n, k)).collect();
            let mut run = |at_once: bool| {
                let (x, out) = (rig.upload(&x), rig.blank_f32(rows * cut.iter().sum::<usize>()));
                let mut products = Vec::new();
                for (tile, n) in tiles.iter().zip(cut) {
                    let first = products.iter().map(|tile: &Linear| tile.n as usize).sum();
                    products.push(tile.tile(rig, [x, out], [before, n], [first, cut.iter().sum()]));
                }
                products.iter().for_each(Linear::check);
                rig.enqueued(if at_once {
                    rig.device.linear_tiles(rig.stream, &products)
                } else {
                    products.iter().try_for_each(|product| rig.device.linear(rig.stream, product))
                });
                let got: Vec<f32> = rig.download(out);
                rig.clear();
                got
            };
            let [at_once, apart] = [true, false].map(&mut run);
            same_bits(&format!("linear {rows} x tiles in {of_tiles:?}"), &at_once, &apart);
        }
    }
}

/// A product and the activation function or the addition after it at once, and then a product of what that gives: the
/// bits of one after the other.
pub(super) fn goes_on_at_once<D: Ops>(rig: &mut Rig<D>) {
    for &encoding in rig.device.info().encodings {
        for (rows, cut) in [(1, [256, 256]), (130, [256, 256]), (300, [320, 192])] {
            let (rows, k, n) = (at_most(rig, rows), 256, 512);
            let [both, down] = [[n, k], [n, n / 2]].map(|[n, k]| Matrix::random(rig, encoding, n, k));
            let (x, terms) = (rig.random.floats(rows * k), rig.random.floats(rows * n));
            let mut run = |at_once: bool| {
                let [x, term] = [&x, &terms].map(|values| rig.upload(values));
                let [between, out, last] = [n, n / 2, n].map(|width| rig.blank_f32(rows * width));
                let tiles = [(0, cut[0]), (cut[0], cut[1])];
                let products =
                    tiles.map(|(first, count)| both.tile(rig, [x, between], [first, count], [first, n]));
                let next = [down.tile(rig, [out, last], [0, n], [0, n])];
                let read_by = at_once.then(|| read_by(&next[0], true));
                let act = SiluMul { x: between, out, width: n as u32 / 2, rows: rows as u32, read_by };
                let add = Add { a: term, b: last, out: term, len: (rows * n) as u64 };
                products.iter().chain(&next).for_each(Linear::check);
                act.check();
                add.check();
                let (device, stream) = (&rig.device, rig.stream);
                let enqueued = if at_once {
                    device
                        .linear_silu_mul(stream, &products, &act)
                        .and_then(|()| device.linear_add(stream, &next, &add))
                } else {
                    device
                        .linear_tiles(stream, &products)
                        .and_then(|()| device.silu_mul(stream, &act))
                        .and_then(|()| device.linear_tiles(stream, &next))
                        .map(|()| false)
                };
                if !enqueued.expect("work is enqueued") {
                    rig.enqueued(device.add(stream, &add));
                }
                let sum: Vec<f32> = rig.download(term);
                rig.clear();
                sum
            };
            let [at_once, apart] = [true, false].map(&mut run);
            same_bits(&both.name(&format!("an MLP of {rows} rows with")), &at_once, &apart);
        }
    }
}

/// A norm, and the product that alone reads it, with a weight whose tiles are in blocks of two formats: the bits of a norm that
/// knows of no product.
pub(super) fn goes_on_over_two_formats_at_once<D: Ops>(rig: &mut Rig<D>) {
    let blocks =
        rig.device.info().encodings.iter().filter(|encoding| matches!(encoding, Encoding::Blocks(_)));
    let formats: Vec<Encoding> = blocks.copied().collect();
    let (k, n) = (8192, 64);
    for (i, &encoding) in formats.iter().enumerate() {
        let others = [formats[(i + 1) % formats.len()], formats[(i + 5) % formats.len()]];
        let rows: &[usize] = if is_large(rig) { &[1, 3, 5, 9, 20] } else { &[3] };
        for (&rows, other) in rows.iter().flat_map(|rows| others.map(|other| (rows, other))) {
            let (rows, matrices) =
                (at_most(rig, rows), [encoding, other].map(|of| Matrix::random(rig, of, n, k)));
            let (x, scale) = (rig.random.floats(rows * k), rig.random.floats(k));
            let mut run = |told: bool| {
                let [x, weight] = [&x, &scale].map(|values| rig.upload(values));
                let [normed, out] = [k, 2 * n].map(|width| rig.blank_f32(rows * width));
                let mut tile = |i: usize| matrices[i].tile(rig, [normed, out], [0, n], [i * n, 2 * n]);
                let products = [tile(0), tile(1)];
                let read_by = told.then(|| read_by(&products[0], true));
                let weight = Weight::plain(weight, DType::F32);
                let (width, rows) = (k as u32, rows as u32);
                let norm = RmsNorm { x, weight, out: normed, eps: 1e-5, width, rows, read_by };
                norm.check();
                products.iter().for_each(Linear::check);
                rig.enqueued(rig.device.rms_norm(rig.stream, &norm));
                rig.enqueued(rig.device.linear_tiles(rig.stream, &products));
                rig.take(out)
            };
            let [told, apart] = [true, false].map(&mut run);
            same_bits(&matrices[0].name(&format!("{rows} rows by {other} and")), &told, &apart);
        }
    }
}

pub(super) fn embeds_rows_exactly<D: Ops>(rig: &mut Rig<D>) {
    each(rig, |rig, matrix| {
        for space in [Space::Device, Space::Host] {
            let (tokens, rows) = (rig.random.indices(29, matrix.rows + 14), matrix.rows - 1);
            let args = Embed {
                tokens: rig.upload(&tokens),
                table: matrix.upload(rig, space, 1, rows),
                first_row: 7,
                table_rows: rows as u32,
                width: matrix.columns as u32,
                out: rig.blank_f32(tokens.len() * matrix.columns),
                rows: tokens.len() as u32,
            };
            rig.run(args);
            rig.matches(&matrix.name("embed"), matrix.stored());
        }
    });
}

/// An expert's product against the reference, and its slots against `linear` of their rows alone.
pub(super) fn experts_match_the_reference<D: Ops>(rig: &mut Rig<D>) {
    each(rig, |rig, matrix| {
        let (slots, first, k) = (12, 3, matrix.columns);
        let n = matrix.rows - first;
        let (ids, x) = (rig.random.indices(slots, 2), rig.random.floats(slots * k));
        let span = rig.upload(&ids);
        let group = group(rig, span, 2);
        rig.run(group);
        let args = ExpertLinear {
            x: rig.upload(&x),
            weight: matrix.upload(rig, Space::Device, first, n),
            order: group.order,
            starts: group.starts,
            out: rig.blank_f32(slots * n),
            k: k as u32,
            n: n as u32,
            out_width: n as u32,
            out_column: 0,
            expert: 1,
            slots_per_row: 1,
            slots: slots as u32,
        };
        rig.run(args);
        let got: Vec<f32> = rig.download(args.out);
        let name = matrix.name("expert_linear");
        rig.matches(&name, matrix.stored());
        for slot in (0..slots).filter(|&slot| ids[slot] == 1) {
            let alone = rig.output((slot, 1), &matrix.product(&x));
            same_bits(&format!("slot {slot} of {name}"), &got[slot * n..][..n], &alone[2 + first..][..n]);
        }
    });
}

/// Feed-forward blocks of experts follow one another in the same memory, with other slots each, and have the bits that they have
/// if the host waits for every operation: no product reads slots or weights too early.
pub(super) fn experts_follow_one_another<D: Ops>(rig: &mut Rig<D>) {
    const ROUNDS: usize = 10;
    let large = is_large(rig);
    let (experts, top_k) = if large { (24, 8) } else { (5, 2) };
    let sizes: &[[usize; 3]] =
        if large { &[[1, 512, 256], [1, 1024, 768], [3, 768, 256]] } else { &[[1, 256, 256]] };
    for &encoding in rig.device.info().encodings {
        for &[rows, k, inner] in sizes {
            let (slots, both) = (rows * top_k, 2 * inner);
            let mut of_experts = |n: usize, k: usize| -> Vec<Matrix> {
                (0..experts).map(|_| Matrix::random(rig, encoding, n, k)).collect()
            };
            let (up, down) = (of_experts(both, k), of_experts(k, inner));
            let x = rig.random.floats(rows * k);
            let ids: Vec<Vec<u32>> = (0..ROUNDS).map(|_| rig.random.indices(slots, experts)).collect();
            let mut run = |waits: bool| -> Vec<Vec<f32>> {
                let x = rig.upload(&x);
                let ids: Vec<Span> = ids.iter().map(|ids| rig.upload(ids)).collect();
                let [between, act, out] = [both, inner, k].map(|width| rig.blank_f32(slots * width));
                let kept: Vec<Span> = (0..ROUNDS).map(|_| rig.blank_f32(slots * k)).collect();
                let [up, down] = [&up, &down].map(|of| -> Vec<Weight> {
                    of.iter().map(|matrix| matrix.upload(rig, Space::Device, 0, matrix.rows)).collect()
                });
                let slots_of = group(rig, ids[0], experts);
                let products =
                    |weights: &[Weight], [x, out]: [Span; 2], [k, n]: [usize; 2], slots_per_row: usize| {
                        let product = |(expert, &weight): (usize, &Weight)| ExpertLinear {
                            x,
                            weight,
                            order: slots_of.order,
                            starts: slots_of.starts,
                            out,
                            k: k as u32,
                            n: n as u32,
                            out_width: n as u32,
                            out_column: 0,
                            expert: expert as u32,
                            slots_per_row: slots_per_row as u32,
                            slots: slots as u32,
                        };
                        weights.iter().enumerate().map(product).collect::<Vec<_>>()
                    };
                let (up, down) = (
                    products(&up, [x, between], [k, both], top_k),
                    products(&down, [act, out], [inner, k], 1),
                );
                let act =
                    SiluMul { x: between, out: act, width: inner as u32, rows: slots as u32, read_by: None };
                let (device, stream) = (&rig.device, rig.stream);
                let wait = || if waits { device.sync(stream) } else { Ok(()) };
                for (ids, kept) in ids.iter().zip(&kept) {
                    let done = device
                        .group(stream, &Group { ids: *ids, ..slots_of })
                        .and_then(|()| wait())
                        .and_then(|()| device.expert_linears(stream, &up))
                        .and_then(|()| wait())
                        .and_then(|()| device.silu_mul(stream, &act))
                        .and_then(|()| wait())
                        .and_then(|()| device.expert_linears(stream, &down))
                        .and_then(|()| wait())
                        .and_then(|()| device.copy(stream, out, *kept));
                    done.expect("work is enqueued");
                }
                let found = kept.into_iter().map(|kept| rig.download(kept)).collect();
                rig.clear();
                found
            };
            let [want, got] = [true, false].map(&mut run);
            for (round, (want, got)) in want.iter().zip(&got).enumerate() {
                same_bits(&format!("round {round} of experts in {encoding}, {rows} rows of {k}"), got, want);
            }
        }
    }
}

/// Products of several experts at once have the bits of one after another, also with tiles in several encodings.
pub(super) fn experts_are_computed_at_once<D: Ops>(rig: &mut Rig<D>) {
    let large = is_large(rig);
    let encodings = rig.device.info().encodings;
    for (e, &encoding) in encodings.iter().enumerate() {
        let other = encodings[(e + 1) % encodings.len()];
        let mut check = |(counts, chosen): (&[usize], &[usize]), slots_per_row, k, tiles: &[usize], mixed| {
            let case = AtOnce { counts, chosen, slots_per_row, k, tiles };
            let mut made = 0;
            let weight = |rig: &mut Rig<D>, [n, k]: [usize; 2]| {
                made += 1;
                if mixed && made % 5 == 4 {
                    return rig.random_weight(n * k, DType::BF16);
                }
                let matrix = Matrix::random(rig, if mixed && made % 3 == 0 { other } else { encoding }, n, k);
                matrix.upload(rig, Space::Device, 0, n)
            };
            let of = Stored(encoding, if encoding == Encoding::Lossless { DType::BF16 } else { DType::F32 });
            let name = format!("{encoding}{}", if mixed { " and others" } else { "" });
            case.check(rig, (&name, of), counts.len() == 2 && !mixed, weight);
        };
        // Half of the routings for each encoding. Blocks have up to 256 elements.
        for (i, routing) in ROUTINGS.into_iter().enumerate().skip(e % 2).step_by(2) {
            let (wanted, mixed) = ([2, 8, 1][(i + e / 2) % 3], i % 4 == 3 || i == 8);
            let slots_per_row =
                if routing.0.iter().sum::<usize>().is_multiple_of(wanted) { wanted } else { 1 };
            let unit = match encoding {
                Encoding::Blocks(format) if !mixed => format.elements() as usize,
                _ => 256,
            };
            let (blocks, tiles): (_, &[usize]) =
                [(1, &[37, 17][..]), (3, &[64]), (5, &[130, 5])][(i + e) % 3];
            check(routing, slots_per_row, blocks * unit, tiles, mixed);
        }
        if large {
            check(MANY[e % 2], 1, 512, &[17], false);
            check(MANY[0], 1, 256, &[9, 5], false);
            check(ROUTINGS[7], 2, 512, &[1707], false);
            check(ROUTINGS[6], 2, 4096, &[200, 37], false);
        }
    }
}
