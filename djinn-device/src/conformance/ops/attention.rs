//! Checks of [`Attention`] and [`KvWrite`].

use super::linear;
use super::rig::{DTYPES, Rig, rows, same_bits};
use crate::args::{Attention, KvPages, KvWrite, ReadBy, Rope};
use crate::reference::{encode, encode_vectors};
use crate::{DType, Encoding, Ops, RopeStyle, Span};
use djinn_srg::Scores;

const LAYERS: usize = 3;
const LAYER: usize = 1;

/// Parts of 33 rows, those of `SEGMENTS`, that must give the same bits as all of them.
const PARTS: [(usize, usize); 9] =
    [(0, 1), (5, 1), (6, 2), (18, 1), (20, 1), (21, 5), (32, 1), (3, 16), (17, 16)];

/// Sequences in order: the first row's position, and rows.
type Segments = [(usize, usize)];

const SEGMENTS: [(usize, usize); 3] = [(58, 19), (127, 3), (0, 11)];

/// Long runs and short ones in one batch; the context of the last but one is long or not.
const fn mixed(context: usize) -> [(usize, usize); 7] {
    [(60, 40), (0, 70), (5, 3), (129, 1), (31, 33), (context, 4), (300, 1)]
}

/// Heads, and how their cache is cut.
#[derive(Clone, Copy)]
struct Shape {
    heads: usize,
    kv_heads: usize,
    dim: usize,
    page_tokens: usize,
    dtype: DType,
}

impl Shape {
    fn page_elements(self) -> usize {
        // Rounded up to whole 16 bytes of the smallest type.
        (LAYERS * self.layer_elements()).next_multiple_of(8)
    }

    fn layer_elements(self) -> usize {
        2 * self.kv_heads * self.page_tokens * self.dim
    }

    fn layer_bytes(self) -> u64 {
        (2 * self.kv_heads * self.page_tokens) as u64 * self.dtype.vector_bytes(self.dim as u64)
    }

    fn page_bytes(self) -> u64 {
        let elements = self.page_elements() as u64 * self.dtype.bytes();
        elements.max(LAYERS as u64 * self.layer_bytes()).next_multiple_of(16)
    }

    /// Pages of numbers as they are stored.
    fn stored(self, cache: &[f32]) -> Vec<u8> {
        let Shape { dim, page_tokens, dtype, .. } = self;
        if dtype.scale_bytes() == 0 {
            return encode(cache, dtype);
        }
        let mut bytes = Vec::new();
        for (page, numbers) in (1..).zip(cache.chunks_exact(self.page_elements())) {
            for plane in numbers.chunks_exact(page_tokens * dim) {
                let vectors = encode_vectors(plane, dtype, dim);
                let vectors = vectors.chunks_exact(dtype.vector_bytes(dim as u64) as usize);
                let (elements, scales): (Vec<_>, Vec<_>) = vectors.map(|vector| vector.split_at(dim)).unzip();
                bytes.extend(elements.concat());
                bytes.extend(scales.concat());
            }
            bytes.resize(page * self.page_bytes() as usize, 0xff);
        }
        bytes
    }

    fn width(self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.dim
    }

    /// Scores on a larger scale than usual, so that the softmax is far from uniform.
    fn scores(self) -> Scores {
        Scores::scaled(4.0 / (self.dim as f32).sqrt())
    }

    fn windowed(self, window: u32) -> Scores {
        Scores { window: Some(window), ..self.scores() }
    }

    fn biased(self, window: Option<u32>) -> Scores {
        Scores { window, alibi: true, ..self.scores() }
    }

    fn name(self) -> String {
        format!("{}/{}x{} {}", self.heads, self.kv_heads, self.dim, self.dtype.name())
    }
}

/// Multi-head, grouped and multi-query; ragged dimensions and pages.
fn shapes_of(dtype: DType) -> [Shape; 5] {
    [
        Shape { heads: 9, kv_heads: 3, dim: 64, page_tokens: 16, dtype },
        Shape { heads: 2, kv_heads: 2, dim: 20, page_tokens: 5, dtype },
        Shape { heads: 5, kv_heads: 1, dim: 33, page_tokens: 64, dtype },
        Shape { heads: 4, kv_heads: 2, dim: 128, page_tokens: 32, dtype },
        Shape { heads: 1, kv_heads: 1, dim: 8, page_tokens: 1, dtype },
    ]
}

/// In every type of floats.
fn shapes() -> impl Iterator<Item = Shape> {
    DTYPES.into_iter().flat_map(shapes_of)
}

/// In int8, where the device has it: for checks of what depends on how keys and values are stored.
fn int8_shapes<D: Ops>(rig: &Rig<D>) -> impl Iterator<Item = Shape> + use<D> {
    let int8 = rig.device.info().int8_cache;
    shapes_of(DType::Int8).into_iter().filter(move |shape| int8 && shape.dim <= 64)
}

/// A batch: rows of several sequences over one cache.
struct Batch {
    shape: Shape,
    scores: Scores,
    qkv: Vec<f32>,
    /// As they are stored.
    pages: Vec<u8>,
    table: Vec<u32>,
    table_width: usize,
    row_seq: Vec<u32>,
    positions: Vec<u32>,
}

impl Batch {
    /// Slots of the cache that no row may read hold NaN. Pages that a window hides from all rows of their sequence do
    /// not exist.
    fn new<D: Ops>(rig: &mut Rig<D>, shape: Shape, segments: &Segments, scores: Scores) -> Batch {
        let longest = segments.iter().map(|(first, rows)| first + rows).max().expect("a sequence");
        let (dim, page_tokens, table_width) =
            (shape.dim, shape.page_tokens, longest.div_ceil(shape.page_tokens));
        let mut table = rig.random.permutation(segments.len() * table_width);
        let (mut row_seq, mut positions) = (Vec::new(), Vec::new());
        let mut cache = vec![f32::NAN; table.len() * shape.page_elements()];
        for (sequence, &(first, rows)) in segments.iter().enumerate() {
            row_seq.extend(vec![sequence as u32; rows]);
            positions.extend((first as u32)..(first + rows) as u32);
            let pages = &mut table[sequence * table_width..][..table_width];
            let unseen = scores.window.map_or(0, |window| (first + 1).saturating_sub(window as usize));
            for position in unseen..first + rows {
                let page = pages[position / page_tokens] as usize * shape.page_elements();
                for plane in 0..2 * shape.kv_heads {
                    let vector = (LAYER * 2 * shape.kv_heads + plane) * page_tokens + position % page_tokens;
                    cache[page + vector * dim..][..dim].copy_from_slice(&rig.random.floats(dim));
                }
            }
            pages[..unseen / page_tokens].fill(u32::MAX);
        }
        let qkv = rig.random.floats(positions.len() * shape.width());
        let pages = shape.stored(&cache);
        Batch { shape, scores, qkv, pages, table, table_width, row_seq, positions }
    }

    fn rows(&self) -> usize {
        self.positions.len()
    }

    fn name(&self) -> String {
        let Scores { window, alibi, .. } = self.scores;
        format!("attention {}, window {window:?}, alibi {alibi}", self.shape.name())
    }

    fn kv<D: Ops>(&self, rig: &mut Rig<D>) -> KvPages {
        let shape = self.shape;
        KvPages {
            pages: rig.upload(&self.pages),
            dtype: shape.dtype,
            page_bytes: shape.page_bytes(),
            page_tokens: shape.page_tokens as u32,
            offset: LAYER as u64 * shape.layer_bytes(),
            kv_heads: shape.kv_heads as u32,
            head_dim: shape.dim as u32,
            page_table: rig.upload(&self.table),
            table_width: self.table_width as u32,
        }
    }

    /// Some rows' attention.
    fn part<D: Ops>(&self) -> impl Fn(&mut Rig<D>, usize, usize) -> (Attention, Span) {
        move |rig, first, count| {
            let (shape, part) = (self.shape, first..first + count);
            let longest = self.row_seq[part.clone()].chunk_by(|a, b| a == b).map(<[u32]>::len).max();
            let most = rig.device.info().batch_invariant_run;
            let out = rig.blank_f32(count * shape.heads * shape.dim);
            let args = Attention {
                qkv: rig.upload(rows(&self.qkv, shape.width(), first, count)),
                kv: self.kv(rig),
                row_seq: rig.upload(&self.row_seq[part.clone()]),
                positions: rig.upload(&self.positions[part]),
                out,
                heads: shape.heads as u32,
                scale: self.scores.scale,
                window: self.scores.window,
                alibi: self.scores.alibi,
                rows: count as u32,
                // Both are right for such rows, and give the same bits.
                short_runs: longest.is_none_or(|rows| rows as u64 <= most.into()) && first % 2 == 0,
                // Nor does a device's copy of the output for a product change it.
                read_by: (count % 2 == 0).then_some(ReadBy {
                    dtype: DType::BF16,
                    encoding: Encoding::Plain,
                    alone: false,
                }),
            };
            (args, out)
        }
    }

    /// The write of all rows' keys and values.
    fn write<D: Ops>(&self, rig: &mut Rig<D>) -> KvWrite {
        KvWrite {
            qkv: rig.upload(&self.qkv),
            kv: self.kv(rig),
            row_seq: rig.upload(&self.row_seq),
            positions: rig.upload(&self.positions),
            heads: self.shape.heads as u32,
            rows: self.rows() as u32,
        }
    }
}

/// Compares a whole batch.
fn check<D: Ops>(rig: &mut Rig<D>, shape: Shape, segments: &Segments, scores: Scores) -> Batch {
    let batch = Batch::new(rig, shape, segments, scores);
    rig.agrees(&format!("{} {segments:?}", batch.name()), shape.dtype, batch.rows(), batch.part());
    batch
}

/// Rows have the bits that they have in other parts of the batch.
fn invariant<D: Ops>(rig: &mut Rig<D>, shape: Shape, scores: Scores) {
    let batch = Batch::new(rig, shape, &SEGMENTS, scores);
    rig.invariant(&batch.name(), batch.rows(), &PARTS, batch.part());
}

/// Each sequence's rows have the bits that they have alone.
fn apart<D: Ops>(rig: &mut Rig<D>, batch: &Batch, segments: &Segments) {
    let all = rig.output((0, batch.rows()), &batch.part());
    let firsts = segments.iter().scan(0, |next, &(_, count)| {
        *next += count;
        Some((*next - count, count))
    });
    rig.parts_of(&all, &batch.name(), batch.rows(), &firsts.collect::<Vec<_>>(), batch.part());
}

pub(super) fn matches_the_reference<D: Ops>(rig: &mut Rig<D>) {
    for shape in shapes().chain(int8_shapes(rig)) {
        let batches: [&Segments; 5] = [
            &[(0, 1)],
            &[(0, 70)],
            &[(63, 1), (64, 1), (65, 1), (150, 1), (0, 1)],
            &[(60, 9), (0, 17), (129, 1)],
            &[(255, 2), (600, 1), (31, 1), (1023, 2)],
        ];
        for segments in batches {
            check(rig, shape, segments, shape.scores());
        }
    }
}

pub(super) fn is_batch_invariant<D: Ops>(rig: &mut Rig<D>) {
    for shape in shapes().chain(int8_shapes(rig).take(1)) {
        invariant(rig, shape, shape.scores());
    }
}

pub(super) fn keeps_sequences_apart<D: Ops>(rig: &mut Rig<D>) {
    for shape in shapes() {
        let batch = Batch::new(rig, shape, &mixed(510), shape.scores());
        apart(rig, &batch, &mixed(510));
    }
}

/// Rows of a run that is longer than `batch_invariant_run` have the bits that they have in a part of it that is longer, too,
/// wherever the part begins. Where no run is longer, [`is_batch_invariant`] has checked that.
pub(super) fn divides_long_runs<D: Ops>(rig: &mut Rig<D>) {
    if rig.device.info().batch_invariant_run == u32::MAX {
        return;
    }
    let parts = [(0, 33), (33, 64), (97, 203), (12, 41), (40, 260)];
    for shape in shapes().chain(int8_shapes(rig).take(1)) {
        for (window, alibi) in [(None, false), (Some(50), false), (None, true)] {
            let scores = Scores { window, alibi, ..shape.scores() };
            for first in [0, 4000] {
                let batch = Batch::new(rig, shape, &[(first, 300), (7, 1)], scores);
                let all = rig.output((0, batch.rows()), &batch.part());
                rig.parts_of(&all, &batch.name(), batch.rows(), &parts, batch.part());
            }
        }
    }
}

/// Contexts of several thousand positions, on both sides of where a device may cut them: against the reference, and
/// each sequence's rows with the bits that they have alone.
pub(super) fn takes_long_contexts<D: Ops>(rig: &mut Rig<D>) {
    for dtype in DTYPES {
        let shape = Shape { heads: 2, kv_heads: 1, dim: 64, page_tokens: 16, dtype };
        for window in [None, Some(4500)] {
            let segments = [(4090, 40), (8191, 1), (255, 1)];
            let batch = check(rig, shape, &segments, Scores { window, ..shape.scores() });
            apart(rig, &batch, &segments);
        }
    }
}

/// Rows, positions and page tables that copies put in place just before are those that attention reads.
pub(super) fn reads_what_copies_put_there<D: Ops>(rig: &mut Rig<D>) {
    let shape = Shape { heads: 4, kv_heads: 2, dim: 64, page_tokens: 16, dtype: DType::BF16 };
    let segments: [&Segments; 2] = [&[(300, 1), (9, 1), (31, 2)], &[(5, 2), (300, 1), (40, 1)]];
    let batches = segments.map(|segments| Batch::new(rig, shape, segments, shape.scores()));
    let count = batches[0].rows();
    let want = batches.each_ref().map(|batch| rig.output((0, count), &batch.part()));
    let [row_seq, positions] = [(); 2].map(|()| rig.blank(count * 4));
    let page_table = rig.blank(batches[0].table.len() * 4);
    let outs = [(); 6].map(|()| rig.blank_f32(count * shape.heads * shape.dim));
    let args = batches.each_ref().map(|batch| batch.part()(rig, 0, count).0);
    for (out, args) in outs.into_iter().zip(args.iter().cycle()) {
        let copies = [(args.kv.page_table, page_table), (args.row_seq, row_seq), (args.positions, positions)];
        for (from, to) in copies {
            rig.enqueued(rig.device.copy_promptly(rig.stream, from, to));
        }
        let kv = KvPages { page_table, ..args.kv };
        rig.enqueue(Attention { row_seq, positions, kv, out, ..*args });
    }
    for (out, want) in outs.into_iter().zip(want.iter().cycle()) {
        same_bits("attention after copies", &rig.download::<f32>(out), want);
    }
    rig.clear();
}

/// A product that alone reads what attention gives has the bits that it has otherwise: of rows with one unit of keys and with
/// several, and in tiles.
pub(super) fn is_read_by_a_product_alone<D: Ops>(rig: &mut Rig<D>) {
    for dtype in DTYPES {
        let shape = Shape { heads: 4, kv_heads: 2, dim: 64, page_tokens: 16, dtype };
        for segments in [&[(0, 70)][..], &[(300, 40), (9, 1)], &[(700, 1); 20]] {
            let batch = Batch::new(rig, shape, segments, shape.scores());
            let (count, part) = (batch.rows(), batch.part());
            let case = linear::Case::new(rig, [count, 256, 24], dtype, None);
            let mut run = |alone: bool| {
                let (args, between) = part(rig, 0, count);
                let out = rig.blank_f32(count * 24);
                let product = case.tile(rig, [between, out], 0, 24);
                rig.enqueue(Attention { read_by: Some(linear::read_by(&product, alone)), ..args });
                rig.enqueue(product);
                rig.take(out)
            };
            same_bits(&format!("a product of {} {segments:?}", batch.name()), &run(true), &run(false));
        }
    }
}

/// Windows of one position, less than a page, across pages, of whole pages, and longer than every context; rows
/// on both sides of a window's end, of pages and of a device's pieces; long runs and single rows at once.
pub(super) fn windows_match_the_reference<D: Ops>(rig: &mut Rig<D>) {
    let cases: [(&[u32], &Segments); 3] = [
        (&[1, 64, 129, 400], &[(127, 1), (128, 1), (129, 1), (300, 1), (0, 1)]),
        (&[257, 400], &[(255, 3), (700, 1), (511, 1)]),
        (&[7, 64, 100], &[(0, 70), (5, 3), (95, 40), (256, 1)]),
    ];
    for shape in shapes().chain(int8_shapes(rig).skip(1).take(1)) {
        for (windows, segments) in cases {
            for &window in windows {
                check(rig, shape, segments, shape.windowed(window));
            }
        }
    }
}

/// Rows that a window hides nothing from have the bits that they have without it.
pub(super) fn windows_that_hide_nothing_change_nothing<D: Ops>(rig: &mut Rig<D>) {
    for shape in shapes() {
        for segments in [&[(0, 140)][..], &[(120, 9)], &[(200, 1), (3, 2)]] {
            let mut batch = Batch::new(rig, shape, segments, shape.scores());
            let all = rig.output((0, batch.rows()), &batch.part());
            for window in [130, 1000] {
                batch.scores = shape.windowed(window);
                let (got, row) = (rig.output((0, batch.rows()), &batch.part()), shape.heads * shape.dim);
                for (r, _) in batch.positions.iter().enumerate().filter(|(_, p)| **p < window) {
                    same_bits(
                        &format!("row {r} of {}", batch.name()),
                        rows(&got, row, r, 1),
                        rows(&all, row, r, 1),
                    );
                }
            }
        }
    }
}

/// Rows alone and in batches; sequences alone and beside others.
fn scores_are_invariant<D: Ops>(rig: &mut Rig<D>, shape: Shape, scores: Scores) {
    invariant(rig, shape, scores);
    let batch = Batch::new(rig, shape, &mixed(255), scores);
    apart(rig, &batch, &mixed(255));
}

pub(super) fn windows_are_batch_invariant<D: Ops>(rig: &mut Rig<D>) {
    for shape in shapes() {
        for window in [1, 50, 300] {
            scores_are_invariant(rig, shape, shape.windowed(window));
        }
    }
}

/// Slopes of heads in a power of two and in other numbers.
fn biased_shapes(dtype: DType) -> [Shape; 3] {
    [
        Shape { heads: 71, kv_heads: 71, dim: 64, page_tokens: 8, dtype },
        Shape { heads: 12, kv_heads: 12, dim: 64, page_tokens: 16, dtype },
        Shape { heads: 1, kv_heads: 1, dim: 20, page_tokens: 5, dtype },
    ]
}

pub(super) fn biases_match_the_reference<D: Ops>(rig: &mut Rig<D>) {
    for dtype in DTYPES {
        let [many, some, one] = biased_shapes(dtype);
        for window in [None, Some(1), Some(20)] {
            check(rig, many, &[(0, 34), (20, 1)], many.biased(window));
            check(rig, some, &[(0, 70), (129, 2)], some.biased(window));
            check(rig, one, &[(0, 70), (129, 1), (300, 2)], one.biased(window));
        }
    }
    // Groups that share a key head, each query head with a slope of its own.
    for shape in shapes() {
        check(rig, shape, &[(0, 40), (129, 1)], shape.biased(None));
    }
}

pub(super) fn biases_are_batch_invariant<D: Ops>(rig: &mut Rig<D>) {
    for dtype in DTYPES {
        let [_, some, one] = biased_shapes(dtype);
        scores_are_invariant(rig, some, some.biased(None));
        scores_are_invariant(rig, one, one.biased(Some(50)));
    }
}

/// Falcon's 71 queries to one key and 29 to each of 8, GPT-J's heads of 256, GPT-2's 12 of 64.
pub(super) fn serves_unusual_heads<D: Ops>(rig: &mut Rig<D>) {
    for dtype in DTYPES {
        for (heads, kv_heads, dim) in [(71, 1, 64), (232, 8, 64), (16, 16, 256), (12, 12, 64)] {
            let shape = Shape { heads, kv_heads, dim, page_tokens: 16, dtype };
            let segments = [(0, 34), (if dim == 256 { 39 } else { 129 }, 1)];
            let batch = check(rig, shape, &segments, shape.scores());
            let all = rig.output((0, 35), &batch.part());
            rig.parts_of(&all, &batch.name(), 35, &[(34, 1)], batch.part());
        }
    }
}

/// Values whose rounding is delicate: ties, the edges of f16, subnormals.
const DELICATE: [f32; 12] = [
    0.0,
    -0.0,
    1.000_488_3,
    1.001_464_8,
    1.003_906_3,
    1.011_718_8,
    65519.9,
    65520.0,
    -70000.0,
    6.0e-8,
    2.9e-8,
    1.0e-40,
];

/// Vectors that int8 stores in ways of their own: ties, numbers too small for a scale, the largest, and numbers that are not
/// finite.
const INT8_DELICATE: [[f32; 4]; 6] = [
    [127.0, 0.5, -1.5, 2.5],
    [1.0e-37, -1.0e-40, 0.0, -0.0],
    [f32::MAX, 1.0, -f32::MAX, 0.3],
    [1.0, f32::NAN, 0.0, -1.0],
    [0.0, 1.0, f32::INFINITY, 2.0],
    [f32::NEG_INFINITY, f32::NAN, 1.0, 0.0],
];

pub(super) fn writes_the_cache_exactly<D: Ops>(rig: &mut Rig<D>) {
    for shape in shapes().chain(int8_shapes(rig)) {
        let mut batch = Batch::new(rig, shape, &[(60, 9), (0, 17), (129, 1)], shape.scores());
        for (i, x) in batch.qkv.iter_mut().enumerate().filter(|(i, _)| i % 3 == 0) {
            *x = DELICATE[i / 3 % DELICATE.len()];
        }
        if shape.dtype == DType::Int8 {
            for (row, numbers) in batch.qkv.chunks_exact_mut(shape.width()).zip(INT8_DELICATE) {
                let key = &mut row[shape.heads * shape.dim..][..shape.dim];
                key.iter_mut().zip(numbers.iter().cycle()).for_each(|(x, number)| *x = *number);
            }
        }
        let write = batch.write(rig);
        rig.run(write);
        rig.matches(&format!("kv_write {}", shape.name()), shape.dtype);
    }
}

/// The pair of operations gives the bits of one after the other.
pub(super) fn rotates_and_writes_at_once<D: Ops>(rig: &mut Rig<D>) {
    for (i, shape) in shapes().chain(int8_shapes(rig)).enumerate() {
        let batch = Batch::new(rig, shape, &[(60, 9), (0, 17), (129, 1)], shape.scores());
        let rotary = if i % 2 == 0 { shape.dim / 2 * 2 } else { (shape.dim / 4 * 2).max(2) };
        let table = rig.random.floats(batch.rows() * rotary);
        let style = [RopeStyle::Half, RopeStyle::Interleaved][i % 2];
        let mut run = |at_once: bool| {
            let write = batch.write(rig);
            let KvWrite { qkv, kv, heads, rows, .. } = write;
            let (table, rotary_dim) = (rig.upload(&table), rotary as u32);
            let rope = Rope {
                qkv,
                table,
                heads,
                kv_heads: kv.kv_heads,
                head_dim: kv.head_dim,
                rotary_dim,
                style,
                rows,
            };
            if at_once {
                rope.check();
                write.check();
                rig.enqueued(rig.device.rope_kv_write(rig.stream, &rope, &write));
            } else {
                rig.enqueue(rope);
                rig.enqueue(write);
            }
            let both: (Vec<f32>, Vec<u8>) = (rig.download(qkv), rig.download(kv.pages));
            rig.clear();
            both
        };
        let (want, got) = (run(false), run(true));
        let name = format!("rope_kv_write {}", shape.name());
        same_bits(&format!("qkv of {name}"), &got.0, &want.0);
        assert!(got.1 == want.1, "{name}: other bytes in the cache");
    }
}
