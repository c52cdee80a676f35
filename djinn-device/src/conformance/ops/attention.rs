//! Checks of [`Attention`] and [`KvWrite`].

pub(super) mod scores;

use super::rig::{DTYPES, Rig, Stored, same_bits};
use crate::args::{Attention, KvPages, KvWrite, Rope};
use crate::kernels::element::ElementsMut;
use crate::kernels::{data, reference};
use crate::{DType, Ops, RopeStyle};
use djinn_srg::Scores;

const LAYERS: usize = 3;
const LAYER: usize = 1;

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
        (LAYERS * 2 * self.kv_heads * self.page_tokens * self.dim).next_multiple_of(8)
    }

    fn width(self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.dim
    }
}

/// A batch: rows of several sequences over one cache.
struct Batch {
    shape: Shape,
    scores: Scores,
    qkv: Vec<f32>,
    pages: Stored,
    table: Vec<u32>,
    table_width: usize,
    row_seq: Vec<u32>,
    positions: Vec<u32>,
}

impl Batch {
    /// `segments` are sequences in order: the first row's position, and rows. Slots of the cache that no row
    /// may read hold NaN.
    fn new<D: Ops>(rig: &mut Rig<D>, shape: Shape, segments: &[(usize, usize)]) -> Batch {
        Batch::scored(rig, shape, segments, Scores::scaled(scale(shape)))
    }

    /// With other scores. Pages that a window hides from all rows of their sequence do not exist.
    fn scored<D: Ops>(rig: &mut Rig<D>, shape: Shape, segments: &[(usize, usize)], scores: Scores) -> Batch {
        let longest = segments.iter().map(|(first, rows)| first + rows).max().expect("a sequence");
        let table_width = longest.div_ceil(shape.page_tokens);
        let mut table = rig.random.permutation(segments.len() * table_width);
        let (mut row_seq, mut positions) = (Vec::new(), Vec::new());
        let mut cache = vec![f32::NAN; table.len() * shape.page_elements()];
        for (sequence, &(first, rows)) in segments.iter().enumerate() {
            row_seq.extend(vec![sequence as u32; rows]);
            positions.extend((first as u32)..(first + rows) as u32);
            let layout = layout(shape, &table, table_width);
            for position in unseen(scores, first)..first + rows {
                for head in 0..shape.kv_heads {
                    for part in [data::Part::Keys, data::Part::Values] {
                        let at = layout.offset(sequence, position, part, head);
                        cache[at..at + shape.dim].copy_from_slice(&rig.random.floats(shape.dim));
                    }
                }
            }
        }
        for (entries, &(first, _)) in table.chunks_exact_mut(table_width).zip(segments) {
            entries[..unseen(scores, first) / shape.page_tokens].fill(u32::MAX);
        }
        let qkv = rig.random.floats(positions.len() * shape.width());
        let pages = Stored::round(&cache, shape.dtype);
        Batch { shape, scores, qkv, pages, table, table_width, row_seq, positions }
    }

    fn kv<D: Ops>(&self, rig: &mut Rig<D>) -> KvPages {
        let shape = self.shape;
        KvPages {
            pages: rig.upload(self.pages.bytes()),
            dtype: shape.dtype,
            page_bytes: shape.page_elements() as u64 * shape.dtype.bytes(),
            page_tokens: shape.page_tokens as u32,
            layer: LAYER as u32,
            kv_heads: shape.kv_heads as u32,
            head_dim: shape.dim as u32,
            page_table: rig.upload(&self.table),
            table_width: self.table_width as u32,
        }
    }

    /// The device's result for `count` rows from `first`.
    fn run<D: Ops>(&self, rig: &mut Rig<D>, first: usize, count: usize) -> Vec<f32> {
        let (shape, rows) = (self.shape, first..first + count);
        let out = rig.blank_f32(count * shape.heads * shape.dim);
        let args = Attention {
            qkv: rig.upload(&self.qkv[first * shape.width()..rows.end * shape.width()]),
            kv: self.kv(rig),
            row_seq: rig.upload(&self.row_seq[rows.clone()]),
            positions: rig.upload(&self.positions[rows]),
            out,
            heads: shape.heads as u32,
            scale: self.scores.scale,
            window: self.scores.window,
            alibi: self.scores.alibi,
            rows: count as u32,
        };
        args.check();
        rig.enqueued(rig.device.attention(rig.stream, &args));
        let got = rig.download(out);
        rig.free_all();
        got
    }

    fn reference(&self) -> Vec<f32> {
        let shape = self.shape;
        let mut out = vec![f32::NAN; self.positions.len() * shape.heads * shape.dim];
        reference::attention(data::Attention {
            qkv: &self.qkv,
            pages: self.pages.elements(),
            layout: layout(shape, &self.table, self.table_width),
            row_seq: &self.row_seq,
            positions: &self.positions,
            heads: shape.heads,
            scale: self.scores.scale,
            window: self.scores.window.map(|window| window as usize),
            alibi: self.scores.alibi,
            out: &mut out,
        });
        out
    }
}

/// Positions that are hidden from a row at `position`.
fn unseen(scores: Scores, position: usize) -> usize {
    data::first_seen(scores.window.map(|window| window as usize), position)
}

fn layout(shape: Shape, table: &[u32], table_width: usize) -> data::KvLayout<'_> {
    data::KvLayout {
        page_elements: shape.page_elements(),
        page_tokens: shape.page_tokens,
        layer: LAYER,
        kv_heads: shape.kv_heads,
        head_dim: shape.dim,
        page_table: table,
        table_width,
    }
}

/// Larger than usual, so that the softmax is far from uniform.
fn scale(shape: Shape) -> f32 {
    4.0 / (shape.dim as f32).sqrt()
}

/// Multi-head, grouped and multi-query; ragged dimensions and pages.
fn shapes(dtype: DType) -> [Shape; 5] {
    [
        Shape { heads: 9, kv_heads: 3, dim: 64, page_tokens: 16, dtype },
        Shape { heads: 2, kv_heads: 2, dim: 20, page_tokens: 5, dtype },
        Shape { heads: 5, kv_heads: 1, dim: 33, page_tokens: 64, dtype },
        Shape { heads: 4, kv_heads: 2, dim: 128, page_tokens: 32, dtype },
        Shape { heads: 1, kv_heads: 1, dim: 8, page_tokens: 1, dtype },
    ]
}

impl Shape {
    /// For messages.
    fn name(self) -> String {
        format!("{}/{}x{} {}", self.heads, self.kv_heads, self.dim, self.dtype.name())
    }
}

pub(super) fn matches_the_reference<D: Ops>(rig: &mut Rig<D>) {
    for dtype in DTYPES {
        for shape in shapes(dtype) {
            let batches: [&[(usize, usize)]; 5] = [
                &[(0, 1)],
                &[(0, 70)],
                &[(63, 1), (64, 1), (65, 1), (150, 1), (0, 1)],
                &[(60, 9), (0, 17), (129, 1)],
                &[(255, 2), (600, 1), (31, 1), (1023, 2)],
            ];
            for segments in batches {
                let batch = Batch::new(rig, shape, segments);
                let got = batch.run(rig, 0, batch.positions.len());
                let name = format!("attention {} {segments:?}", shape.name());
                rig.compare(&name, &got, &batch.reference(), dtype);
            }
        }
    }
}

pub(super) fn is_batch_invariant<D: Ops>(rig: &mut Rig<D>) {
    for dtype in DTYPES {
        for shape in shapes(dtype) {
            let batch = Batch::new(rig, shape, &[(58, 19), (127, 3), (0, 11)]);
            let row = shape.heads * shape.dim;
            let rows = batch.positions.len();
            let all = rig.in_batches(rows, |rig, first, count| batch.run(rig, first, count));
            let parts = [(0, 1), (5, 1), (6, 2), (18, 1), (20, 1), (21, 5), (32, 1), (3, 16), (17, 16)];
            for (first, count) in parts {
                let got = batch.run(rig, first, count);
                let name = format!("rows {first}+{count} of attention {} {}", shape.dim, dtype.name());
                same_bits(&name, &got, &all[first * row..(first + count) * row]);
            }
        }
    }
}

/// Long runs and short ones in one batch: each sequence's rows have the bits that they have alone.
pub(super) fn keeps_sequences_apart<D: Ops>(rig: &mut Rig<D>) {
    for dtype in DTYPES {
        for shape in shapes(dtype) {
            let segments = [(60, 40), (0, 70), (5, 3), (129, 1), (31, 33), (510, 4), (300, 1)];
            let batch = Batch::new(rig, shape, &segments);
            let row = shape.heads * shape.dim;
            let all = batch.run(rig, 0, batch.positions.len());
            let mut first = 0;
            for (position, count) in segments {
                let alone = batch.run(rig, first, count);
                let name =
                    format!("{count} rows from {position} of attention {} {}", shape.dim, dtype.name());
                same_bits(&name, &alone, &all[first * row..(first + count) * row]);
                first += count;
            }
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

pub(super) fn writes_the_cache_exactly<D: Ops>(rig: &mut Rig<D>) {
    for dtype in DTYPES {
        for shape in shapes(dtype) {
            let mut batch = Batch::new(rig, shape, &[(60, 9), (0, 17), (129, 1)]);
            for (i, x) in batch.qkv.iter_mut().enumerate().filter(|(i, _)| i % 3 == 0) {
                *x = DELICATE[i / 3 % DELICATE.len()];
            }
            let kv = batch.kv(rig);
            let args = KvWrite {
                qkv: rig.upload(&batch.qkv),
                kv,
                row_seq: rig.upload(&batch.row_seq),
                positions: rig.upload(&batch.positions),
                heads: shape.heads as u32,
                rows: batch.positions.len() as u32,
            };
            args.check();
            rig.enqueued(rig.device.kv_write(rig.stream, &args));
            let got: Vec<u8> = rig.download(kv.pages);
            rig.free_all();
            let mut want = batch.pages.clone();
            reference::kv_write(data::KvWrite {
                qkv: &batch.qkv,
                pages: match &mut want {
                    Stored::F32(x) => ElementsMut::F32(x),
                    Stored::F16(x) => ElementsMut::F16(x),
                    Stored::BF16(x) => ElementsMut::BF16(x),
                },
                layout: layout(shape, &batch.table, batch.table_width),
                row_seq: &batch.row_seq,
                positions: &batch.positions,
                heads: shape.heads,
            });
            let wrong = got.iter().zip(want.bytes()).position(|(got, want)| got != want);
            assert_eq!(wrong, None, "kv_write {} x{}: a wrong byte there", dtype.name(), shape.dim);
        }
    }
}

/// The pair of operations gives the bits of one after the other.
pub(super) fn rotates_and_writes_at_once<D: Ops>(rig: &mut Rig<D>) {
    for dtype in DTYPES {
        for (i, shape) in shapes(dtype).into_iter().enumerate() {
            let batch = Batch::new(rig, shape, &[(60, 9), (0, 17), (129, 1)]);
            let rows = batch.positions.len();
            let rotary = if i % 2 == 0 { shape.dim / 2 * 2 } else { (shape.dim / 4 * 2).max(2) };
            let table = rig.random.floats(rows * rotary);
            let style = [RopeStyle::Half, RopeStyle::Interleaved][i % 2];
            let mut run = |at_once: bool| {
                let (qkv, kv) = (rig.upload(&batch.qkv), batch.kv(rig));
                let (heads, rows) = (shape.heads as u32, rows as u32);
                let rope = Rope {
                    qkv,
                    table: rig.upload(&table),
                    heads,
                    kv_heads: shape.kv_heads as u32,
                    head_dim: shape.dim as u32,
                    rotary_dim: rotary as u32,
                    style,
                    rows,
                };
                let (row_seq, positions) = (rig.upload(&batch.row_seq), rig.upload(&batch.positions));
                let write = KvWrite { qkv, kv, row_seq, positions, heads, rows };
                rope.check();
                write.check();
                if at_once {
                    rig.enqueued(rig.device.rope_kv_write(rig.stream, &rope, &write));
                } else {
                    rig.enqueued(rig.device.rope(rig.stream, &rope));
                    rig.enqueued(rig.device.kv_write(rig.stream, &write));
                }
                let both: (Vec<f32>, Vec<u8>) = (rig.download(qkv), rig.download(kv.pages));
                rig.free_all();
                both
            };
            let (want, got) = (run(false), run(true));
            let name = format!("rope_kv_write {} x{}", dtype.name(), shape.dim);
            same_bits(&format!("qkv of {name}"), &got.0, &want.0);
            assert!(got.1 == want.1, "{name}: other bytes in the cache");
        }
    }
}
