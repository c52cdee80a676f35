//! Checks of the operations on rows.

use super::rig::{DTYPES, Rig, Stored, same_bits};
use crate::args::{Add, Checksum, Embed, HeadNorm, RmsNorm, Rope, RopeTable, SelectRows, SiluMul, Weight};
use crate::kernels::{data, reference};
use crate::{DType, Ops, RopeStyle, Span};

/// Parts of 33 rows that must give the same bits as all of them.
const PARTS: [(usize, usize); 6] = [(0, 1), (32, 1), (4, 2), (11, 5), (3, 16), (17, 16)];

const NAN: f32 = f32::from_bits(u32::MAX);

pub(super) fn embeds_the_rows_of_its_tile<D: Ops>(rig: &mut Rig<D>) {
    for dtype in DTYPES {
        for (width, on_host) in [(1, false), (17, true), (576, false), (64, true)] {
            let table = Stored::round(&rig.random.floats(10 * width), dtype);
            let tokens: Vec<u32> = (0..29).map(|_| rig.random.below(24) as u32).collect();
            let mut want = vec![NAN; tokens.len() * width];
            let (first_row, table_rows) = (7, 10);
            let mut op = data::Embed {
                tokens: &tokens,
                table: table.elements(),
                first_row,
                table_rows,
                width,
                out: &mut [],
            };
            op.out = &mut want;
            reference::embed(op);
            let span = if on_host { rig.upload_host(table.bytes()) } else { rig.weight(&table).span };
            let out = rig.blank_f32(want.len());
            let args = Embed {
                tokens: rig.upload(&tokens),
                table: Weight { span, dtype },
                first_row,
                table_rows,
                width: width as u32,
                out,
                rows: tokens.len() as u32,
            };
            args.check();
            rig.enqueued(rig.device.embed(rig.stream, &args));
            let got = rig.download(out);
            rig.free_all();
            same_bits(&format!("embed {width} {}", dtype.name()), &got, &want);
        }
    }
}

pub(super) fn tabulates_rotations<D: Ops>(rig: &mut Rig<D>) {
    for (half, scale) in [(32, 1.0), (1, 1.0), (7, 1.25)] {
        let inv_freq: Vec<f32> = (0..half).map(|i| 10_000_f32.powf(-(i as f32) / half as f32)).collect();
        let positions = [0, 1, 2, 63, 511, 4096, 131_071];
        let mut want = vec![NAN; positions.len() * 2 * half];
        reference::rope_table(data::RopeTable {
            positions: &positions,
            inv_freq: &inv_freq,
            scale,
            out: &mut want,
        });
        let out = rig.blank_f32(want.len());
        let args = RopeTable {
            positions: rig.upload(&positions),
            inv_freq: rig.upload(&inv_freq),
            out,
            half: half as u32,
            scale,
            rows: positions.len() as u32,
        };
        args.check();
        rig.enqueued(rig.device.rope_table(rig.stream, &args));
        let got = rig.download(out);
        rig.free_all();
        rig.compare(&format!("rope_table {half}"), &got, &want, DType::F32);
    }
}

/// `rms_norm` of `x` on the device.
fn norm<D: Ops>(rig: &mut Rig<D>, x: &[f32], weight: &Stored, width: usize, in_place: bool) -> Vec<f32> {
    let x_span = rig.upload(x);
    let out = if in_place { x_span } else { rig.blank_f32(x.len()) };
    let args = RmsNorm {
        x: x_span,
        weight: rig.weight(weight),
        out,
        eps: 1e-5,
        width: width as u32,
        rows: (x.len() / width) as u32,
    };
    args.check();
    rig.enqueued(rig.device.rms_norm(rig.stream, &args));
    let got = rig.download(out);
    rig.free_all();
    got
}

pub(super) fn normalises<D: Ops>(rig: &mut Rig<D>) {
    for dtype in DTYPES {
        for (i, width) in [1, 16, 17, 33, 100, 576, 577].into_iter().enumerate() {
            let rows = [1, 2, 5, 33][i % 4];
            let x = rig.random.floats(rows * width);
            let weight = Stored::round(&rig.random.floats(width), dtype);
            let mut want = vec![NAN; x.len()];
            let elements = weight.elements();
            reference::rms_norm(data::RmsNorm {
                x: Some(&x),
                weight: elements,
                eps: 1e-5,
                width,
                out: &mut want,
            });
            for in_place in [false, true] {
                let got = norm(rig, &x, &weight, width, in_place);
                rig.compare(&format!("rms_norm {rows}x{width} {}", dtype.name()), &got, &want, dtype);
            }
        }
    }
}

pub(super) fn norms_are_batch_invariant<D: Ops>(rig: &mut Rig<D>) {
    let width = 577;
    let x = rig.random.floats(33 * width);
    let weight = Stored::round(&rig.random.floats(width), DType::BF16);
    let all = norm(rig, &x, &weight, width, false);
    for (first, count) in PARTS {
        let part = first * width..(first + count) * width;
        let got = norm(rig, &x[part.clone()], &weight, width, false);
        same_bits(&format!("rows {first}+{count} of rms_norm"), &got, &all[part]);
    }
}

/// The pair of operations gives the bits of one after the other, wherever its outputs lie.
pub(super) fn adds_and_normalises_at_once<D: Ops>(rig: &mut Rig<D>) {
    for dtype in DTYPES {
        for (rows, width) in [(1, 64), (3, 577), (16, 5120), (2, 9001), (5, 8192 + 4)] {
            let (a, b) = (rig.random.floats(rows * width), rig.random.floats(rows * width));
            let weight = Stored::round(&rig.random.floats(width), dtype);
            let mut run = |sum_is_a: bool, out_is_b: bool, at_once: bool| {
                let (a, b) = (rig.upload(&a), rig.upload(&b));
                let sum = if sum_is_a { a } else { rig.blank_f32(rows * width) };
                let out = if out_is_b { b } else { rig.blank_f32(rows * width) };
                let add = Add { a, b, out: sum, len: (rows * width) as u64 };
                let (weight, width, rows) = (rig.weight(&weight), width as u32, rows as u32);
                let norm = RmsNorm { x: sum, weight, out, eps: 1e-5, width, rows };
                add.check();
                norm.check();
                if at_once {
                    rig.enqueued(rig.device.add_rms_norm(rig.stream, &add, &norm));
                } else {
                    rig.enqueued(rig.device.add(rig.stream, &add));
                    rig.enqueued(rig.device.rms_norm(rig.stream, &norm));
                }
                let both: (Vec<f32>, Vec<f32>) = (rig.download(sum), rig.download(out));
                rig.free_all();
                both
            };
            let (sum, out) = run(false, false, false);
            for (sum_is_a, out_is_b) in [(false, false), (true, false), (false, true), (true, true)] {
                let (got_sum, got_out) = run(sum_is_a, out_is_b, true);
                let name = format!("add_rms_norm {rows}x{width} {}", dtype.name());
                same_bits(&format!("the sum of {name}"), &got_sum, &sum);
                same_bits(&name, &got_out, &out);
            }
        }
    }
}

/// A shape to rotate.
#[derive(Clone, Copy)]
struct Heads {
    heads: usize,
    kv_heads: usize,
    dim: usize,
    rotary: usize,
    style: RopeStyle,
}

impl Heads {
    fn width(self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.dim
    }

    /// `rope` on the device.
    fn run<D: Ops>(self, rig: &mut Rig<D>, x: &[f32], table: &[f32]) -> Vec<f32> {
        let qkv = rig.upload(x);
        let args = Rope {
            qkv,
            table: rig.upload(table),
            heads: self.heads as u32,
            kv_heads: self.kv_heads as u32,
            head_dim: self.dim as u32,
            rotary_dim: self.rotary as u32,
            style: self.style,
            rows: (x.len() / self.width()) as u32,
        };
        args.check();
        rig.enqueued(rig.device.rope(rig.stream, &args));
        let got = rig.download(qkv);
        rig.free_all();
        got
    }
}

/// Whole and partial rotations, both pairings.
fn all_heads() -> Vec<Heads> {
    let mut all = Vec::new();
    for style in [RopeStyle::Half, RopeStyle::Interleaved] {
        for (heads, kv_heads, dim, rotary) in [(9, 3, 64, 64), (2, 1, 20, 10), (1, 1, 6, 2), (4, 4, 128, 128)]
        {
            all.push(Heads { heads, kv_heads, dim, rotary, style });
        }
    }
    // GPT-J's.
    all.push(Heads { heads: 16, kv_heads: 16, dim: 256, rotary: 64, style: RopeStyle::Interleaved });
    all
}

pub(super) fn rotates<D: Ops>(rig: &mut Rig<D>) {
    for (i, heads) in all_heads().into_iter().enumerate() {
        let rows = [1, 2, 7, 33][i % 4];
        let x = rig.random.floats(rows * heads.width());
        let table = rig.random.floats(rows * heads.rotary);
        let mut want = x.clone();
        reference::rope(data::Rope {
            qkv: &mut want,
            table: &table,
            heads: heads.heads,
            kv_heads: heads.kv_heads,
            head_dim: heads.dim,
            rotary_dim: heads.rotary,
            style: heads.style,
        });
        let got = heads.run(rig, &x, &table);
        let name = format!("rope {rows}x{} of {}, {:?}", heads.rotary, heads.dim, heads.style);
        rig.compare(&name, &got, &want, DType::F32);
        let rotated = (heads.heads + heads.kv_heads) * heads.dim;
        for (got, x) in got.chunks(heads.width()).zip(x.chunks(heads.width())) {
            same_bits(&format!("values of {name}"), &got[rotated..], &x[rotated..]);
            for (got, x) in got[..rotated].chunks(heads.dim).zip(x.chunks(heads.dim)) {
                same_bits(&format!("the rest of {name}"), &got[heads.rotary..], &x[heads.rotary..]);
            }
        }
    }
}

pub(super) fn rotations_are_batch_invariant<D: Ops>(rig: &mut Rig<D>) {
    for heads in all_heads() {
        let x = rig.random.floats(33 * heads.width());
        let table = rig.random.floats(33 * heads.rotary);
        let all = heads.run(rig, &x, &table);
        for (first, count) in PARTS {
            let end = first + count;
            let part = first * heads.width()..end * heads.width();
            let got = heads.run(rig, &x[part.clone()], &table[first * heads.rotary..end * heads.rotary]);
            same_bits(&format!("rows {first}+{count} of rope"), &got, &all[part]);
        }
    }
}

/// `head_norm` on the device, by `weights` of queries and keys.
fn head_norm<D: Ops>(rig: &mut Rig<D>, heads: Heads, x: &[f32], weights: &[Stored; 2]) -> Vec<f32> {
    let qkv = rig.upload(x);
    let args = HeadNorm {
        qkv,
        query: rig.weight(&weights[0]),
        key: rig.weight(&weights[1]),
        eps: 1e-6,
        heads: heads.heads as u32,
        kv_heads: heads.kv_heads as u32,
        head_dim: heads.dim as u32,
        rows: (x.len() / heads.width()) as u32,
    };
    args.check();
    rig.enqueued(rig.device.head_norm(rig.stream, &args));
    let got = rig.download(qkv);
    rig.free_all();
    got
}

pub(super) fn normalises_heads<D: Ops>(rig: &mut Rig<D>) {
    for dtype in DTYPES {
        for (i, heads) in all_heads().into_iter().take(4).enumerate() {
            let rows = [1, 2, 7, 33][i % 4];
            let x = rig.random.floats(rows * heads.width());
            let weights = [(); 2].map(|()| Stored::round(&rig.random.floats(heads.dim), dtype));
            let mut want = x.clone();
            reference::head_norm(data::HeadNorm {
                qkv: &mut want,
                query: weights[0].elements(),
                key: weights[1].elements(),
                eps: 1e-6,
                heads: heads.heads,
                kv_heads: heads.kv_heads,
                head_dim: heads.dim,
            });
            let got = head_norm(rig, heads, &x, &weights);
            let name = format!("head_norm {rows} rows, heads of {} {}", heads.dim, dtype.name());
            rig.compare(&name, &got, &want, dtype);
            let values = (heads.heads + heads.kv_heads) * heads.dim;
            for (got, x) in got.chunks(heads.width()).zip(x.chunks(heads.width())) {
                same_bits(&format!("values of {name}"), &got[values..], &x[values..]);
            }
        }
    }
}

pub(super) fn head_norms_are_batch_invariant<D: Ops>(rig: &mut Rig<D>) {
    for heads in all_heads().into_iter().take(4) {
        let x = rig.random.floats(33 * heads.width());
        let weights = [(); 2].map(|()| Stored::round(&rig.random.floats(heads.dim), DType::BF16));
        let all = head_norm(rig, heads, &x, &weights);
        for (first, count) in PARTS {
            let part = first * heads.width()..(first + count) * heads.width();
            let got = head_norm(rig, heads, &x[part.clone()], &weights);
            same_bits(&format!("rows {first}+{count} of head_norm"), &got, &all[part]);
        }
    }
}

/// `silu_mul` on the device.
fn activate<D: Ops>(rig: &mut Rig<D>, x: &[f32], width: usize) -> Vec<f32> {
    let out = rig.blank_f32(x.len() / 2);
    let rows = (x.len() / 2 / width) as u32;
    let args = SiluMul { x: rig.upload(x), out, width: width as u32, rows };
    args.check();
    rig.enqueued(rig.device.silu_mul(rig.stream, &args));
    let got = rig.download(out);
    rig.free_all();
    got
}

pub(super) fn activates<D: Ops>(rig: &mut Rig<D>) {
    for (i, width) in [1, 8, 17, 33, 576, 1537].into_iter().enumerate() {
        let rows = [1, 2, 5, 33][i % 4];
        // Gates from the linear part to far beyond where the exponential leaves f32's range.
        let spread = [1.0, 10.0, 100.0, 400.0][i % 4];
        let x: Vec<f32> = rig.random.floats(rows * 2 * width).iter().map(|x| x * spread).collect();
        let mut want = vec![NAN; rows * width];
        reference::silu_mul(data::SiluMul { x: &x, width, out: &mut want });
        let got = activate(rig, &x, width);
        rig.compare(&format!("silu_mul {rows}x{width}"), &got, &want, DType::F32);
    }
}

pub(super) fn activations_are_batch_invariant<D: Ops>(rig: &mut Rig<D>) {
    let width = 577;
    let x = rig.random.floats(33 * 2 * width);
    let all = activate(rig, &x, width);
    for (first, count) in PARTS {
        let end = first + count;
        let got = activate(rig, &x[first * 2 * width..end * 2 * width], width);
        same_bits(&format!("rows {first}+{count} of silu_mul"), &got, &all[first * width..end * width]);
    }
}

pub(super) fn adds<D: Ops>(rig: &mut Rig<D>) {
    for len in [1, 15, 16, 577, 40_000] {
        let (a, b) = (rig.random.floats(len), rig.random.floats(len));
        let sum = |a: &[f32], b: &[f32]| -> Vec<f32> { a.iter().zip(b).map(|(a, b)| a + b).collect() };
        // Into memory of its own, over either operand, and an operand onto itself.
        for (alias, want) in [(0, sum(&a, &b)), (1, sum(&a, &b)), (2, sum(&a, &b)), (3, sum(&a, &a))] {
            let (a, b) = (rig.upload(&a), rig.upload(&b));
            let blank = rig.blank_f32(len);
            let (b, out): (Span, Span) = [(b, blank), (b, a), (b, b), (a, a)][alias];
            let args = Add { a, b, out, len: len as u64 };
            args.check();
            rig.enqueued(rig.device.add(rig.stream, &args));
            let got = rig.download(out);
            rig.free_all();
            same_bits(&format!("add {len}, aliasing {alias}"), &got, &want);
        }
    }
}

pub(super) fn selects_rows<D: Ops>(rig: &mut Rig<D>) {
    for (rows, width) in [(1, 1), (5, 17), (33, 576)] {
        let x = rig.random.floats(20 * width);
        let indices: Vec<u32> = (0..rows).map(|_| rig.random.below(20) as u32).collect();
        let mut want = vec![NAN; rows * width];
        reference::select_rows(data::SelectRows { x: &x, indices: &indices, width, out: &mut want });
        let out = rig.blank_f32(want.len());
        let (x, indices) = (rig.upload(&x), rig.upload(&indices));
        let args = SelectRows { x, indices, out, width: width as u32, rows: rows as u32 };
        args.check();
        rig.enqueued(rig.device.select_rows(rig.stream, &args));
        let got = rig.download(out);
        rig.free_all();
        same_bits(&format!("select_rows {rows}x{width}"), &got, &want);
    }
}

pub(super) fn sums_bytes<D: Ops>(rig: &mut Rig<D>) {
    for len in [1, 3, 4, 5, 63, 64, 1023, 262_144, 600_001] {
        let bytes = rig.random.bytes(len);
        let out = rig.blank(8);
        let args = Checksum { src: rig.upload(&bytes), out };
        args.check();
        rig.enqueued(rig.device.checksum(rig.stream, &args));
        let got: Vec<u64> = rig.download(out);
        rig.free_all();
        assert_eq!(got, [reference::checksum(&bytes)], "checksum of {len} bytes");
    }
}
