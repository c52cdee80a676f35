//! Checks of the operations on rows.

use super::rig::{DTYPES, PARTS, Rig, rows, same_bits};
use crate::args::{
    Add, Checksum, EditRows, Embed, Gelu, HeadNorm, LayerNorm, RmsNorm, Rope, RopeTable, SelectRows, SiluMul,
    Weight,
};
use crate::reference::encode;
use crate::{DType, GeluForm, Ops, RopeStyle, Space, Span};

/// Numbers of rows that cases take by turns.
const ROWS: [usize; 4] = [1, 2, 5, 33];

pub(super) fn embeds_the_rows_of_its_tile<D: Ops>(rig: &mut Rig<D>) {
    for dtype in DTYPES {
        let spaces = [Space::Device, Space::Host];
        for (i, width) in [1, 17, 576, 64].into_iter().enumerate() {
            let table = encode(&rig.random.floats(10 * width), dtype);
            let tokens = rig.random.indices(29, 24);
            let args = Embed {
                tokens: rig.upload(&tokens),
                table: Weight::plain(rig.upload_to(spaces[i % 2], table), dtype),
                first_row: 7,
                table_rows: 10,
                width: width as u32,
                out: rig.blank_f32(tokens.len() * width),
                rows: tokens.len() as u32,
            };
            rig.run(args);
            rig.matches(&format!("embed {width} {}", dtype.name()), dtype);
        }
    }
}

pub(super) fn tabulates_rotations<D: Ops>(rig: &mut Rig<D>) {
    for (half, scale) in [(32, 1.0), (1, 1.0), (7, 1.25)] {
        let inv_freq: Vec<f32> = (0..half).map(|i| 10_000_f32.powf(-(i as f32) / half as f32)).collect();
        let positions = [0_u32, 1, 2, 63, 511, 4096, 131_071];
        let args = RopeTable {
            positions: rig.upload(&positions),
            inv_freq: rig.upload(&inv_freq),
            out: rig.blank_f32(positions.len() * 2 * half),
            half: half as u32,
            scale,
            rows: positions.len() as u32,
        };
        rig.run(args);
        rig.matches(&format!("rope_table {half}"), DType::F32);
    }
}

/// `x` on the device, and an output, which may be the same memory.
fn in_and_out<D: Ops>(rig: &mut Rig<D>, x: &[f32], in_place: bool) -> (Span, Span) {
    let x_span = rig.upload(x);
    (x_span, if in_place { x_span } else { rig.blank_f32(x.len()) })
}

/// Some rows through `rms_norm`, by a weight of a type.
fn rms_norm<D: Ops>(
    x: &[f32],
    (weight, dtype): (&[f32], DType),
    in_place: bool,
) -> impl Fn(&mut Rig<D>, usize, usize) -> (RmsNorm, Span) {
    move |rig, first, count| {
        let (x, out) = in_and_out(rig, rows(x, weight.len(), first, count), in_place);
        let (width, rows) = (weight.len() as u32, count as u32);
        let (weight, eps) = (rig.weight(weight, dtype), 1e-5);
        (RmsNorm { x, weight, out, eps, width, rows, read_by: None }, out)
    }
}

pub(super) fn normalises<D: Ops>(rig: &mut Rig<D>) {
    for dtype in DTYPES {
        for (i, width) in [1, 16, 17, 33, 100, 576, 577].into_iter().enumerate() {
            let rows = ROWS[i % 4];
            let (x, weight) = (rig.random.floats(rows * width), rig.random.floats(width));
            let name = format!("rms_norm {rows}x{width} {}", dtype.name());
            for in_place in [false, true] {
                rig.agrees(&name, dtype, rows, rms_norm(&x, (&weight, dtype), in_place));
            }
        }
    }
}

pub(super) fn norms_are_batch_invariant<D: Ops>(rig: &mut Rig<D>) {
    let (x, weight) = (rig.random.floats(33 * 577), rig.random.floats(577));
    rig.invariant("rms_norm", 33, &PARTS, rms_norm(&x, (&weight, DType::BF16), false));
}

/// The pair of operations gives the bits of one after the other, wherever its outputs lie.
pub(super) fn adds_and_normalises_at_once<D: Ops>(rig: &mut Rig<D>) {
    for dtype in DTYPES {
        for (rows, width) in [(1, 64), (3, 577), (16, 5120), (2, 9001), (5, 8192 + 4)] {
            let len = rows * width;
            let (a, b, weight) = (rig.random.floats(len), rig.random.floats(len), rig.random.floats(width));
            let name = format!("add_rms_norm {rows}x{width} {}", dtype.name());
            let mut run = |sum_is_a: bool, out_is_b: bool, at_once: bool| {
                let (a, b) = (rig.upload(&a), rig.upload(&b));
                let sum = if sum_is_a { a } else { rig.blank_f32(len) };
                let out = if out_is_b { b } else { rig.blank_f32(len) };
                let add = Add { a, b, out: sum, len: len as u64 };
                let (weight, width, rows) = (rig.weight(&weight, dtype), width as u32, rows as u32);
                let norm = RmsNorm { x: sum, weight, out, eps: 1e-5, width, rows, read_by: None };
                if at_once {
                    add.check();
                    norm.check();
                    rig.enqueued(rig.device.add_rms_norm(rig.stream, &add, &norm));
                } else {
                    rig.enqueue(add);
                    rig.enqueue(norm);
                }
                rig.expect(add);
                rig.expect(norm);
                let both: [Vec<f32>; 2] = [sum, out].map(|span| rig.download(span));
                rig.matches(&name, dtype);
                both
            };
            let apart = run(false, false, false);
            for (sum_is_a, out_is_b) in [(false, false), (true, false), (false, true), (true, true)] {
                let at_once = run(sum_is_a, out_is_b, true);
                same_bits(&format!("the sum of {name}"), &at_once[0], &apart[0]);
                same_bits(&name, &at_once[1], &apart[1]);
            }
        }
    }
}

/// Some rows through `layer_norm`, by a weight and a bias of a type each.
fn layer_norm<'a, D: Ops>(
    x: &'a [f32],
    affine: &'a [Vec<f32>; 2],
    [weight, bias]: [DType; 2],
    in_place: bool,
) -> impl Fn(&mut Rig<D>, usize, usize) -> (LayerNorm, Span) + 'a {
    move |rig, first, count| {
        let width = affine[0].len();
        let (x, out) = in_and_out(rig, rows(x, width, first, count), in_place);
        let (weight, bias) = (rig.weight(&affine[0], weight), rig.weight(&affine[1], bias));
        (LayerNorm { x, weight, bias, out, eps: 1e-5, width: width as u32, rows: count as u32 }, out)
    }
}

/// Rows far from zero, whose variance would cancel in a mean of squares; all pairs of types.
pub(super) fn centres_and_normalises<D: Ops>(rig: &mut Rig<D>) {
    let widths = [1, 16, 17, 33, 100, 576, 577, 4544, 9001, 14_848];
    for (i, width) in widths.into_iter().enumerate() {
        for dtypes in DTYPES.into_iter().flat_map(|weight| DTYPES.map(|bias| [weight, bias])) {
            let (rows, far) = (ROWS[i % 4], [0.0, 3.0, -40.0][i % 3]);
            let x: Vec<f32> = rig.random.floats(rows * width).iter().map(|x| x + far).collect();
            let affine = [(); 2].map(|()| rig.random.floats(width));
            let name = format!("layer_norm {rows}x{width} {}", dtypes.map(DType::name).join(" + "));
            for in_place in [false, true] {
                rig.agrees(&name, dtypes[0], rows, layer_norm(&x, &affine, dtypes, in_place));
            }
        }
    }
}

pub(super) fn centred_norms_are_batch_invariant<D: Ops>(rig: &mut Rig<D>) {
    for width in [577, 4544] {
        let (x, affine) = (rig.random.floats(33 * width), [(); 2].map(|()| rig.random.floats(width)));
        let make = layer_norm(&x, &affine, [DType::BF16, DType::F32], false);
        rig.invariant(&format!("layer_norm {width}"), 33, &PARTS, make);
    }
}

/// A shape of queries, keys and values.
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

    /// Some rows through `rope`.
    fn rope<D: Ops>(self, x: &[f32], table: &[f32]) -> impl Fn(&mut Rig<D>, usize, usize) -> (Rope, Span) {
        move |rig, first, count| {
            let qkv = rig.upload(rows(x, self.width(), first, count));
            let table = rig.upload(rows(table, self.rotary, first, count));
            let [heads, kv_heads, head_dim, rotary_dim] =
                [self.heads, self.kv_heads, self.dim, self.rotary].map(|n| n as u32);
            let (style, rows) = (self.style, count as u32);
            (Rope { qkv, table, heads, kv_heads, head_dim, rotary_dim, style, rows }, qkv)
        }
    }

    /// Some rows through `head_norm`, by weights of queries and keys.
    fn norm<D: Ops>(
        self,
        x: &[f32],
        weights: &[Vec<f32>; 2],
        dtype: DType,
    ) -> impl Fn(&mut Rig<D>, usize, usize) -> (HeadNorm, Span) {
        move |rig, first, count| {
            let qkv = rig.upload(rows(x, self.width(), first, count));
            let [query, key] = [0, 1].map(|i| rig.weight(&weights[i], dtype));
            let [heads, kv_heads, head_dim] = [self.heads, self.kv_heads, self.dim].map(|n| n as u32);
            (HeadNorm { qkv, query, key, eps: 1e-6, heads, kv_heads, head_dim, rows: count as u32 }, qkv)
        }
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
        let (x, table) = (rig.random.floats(rows * heads.width()), rig.random.floats(rows * heads.rotary));
        let name = format!("rope {rows}x{} of {}, {:?}", heads.rotary, heads.dim, heads.style);
        rig.agrees(&name, DType::F32, rows, heads.rope(&x, &table));
    }
}

pub(super) fn rotations_are_batch_invariant<D: Ops>(rig: &mut Rig<D>) {
    for heads in all_heads() {
        let (x, table) = (rig.random.floats(33 * heads.width()), rig.random.floats(33 * heads.rotary));
        rig.invariant("rope", 33, &PARTS, heads.rope(&x, &table));
    }
}

pub(super) fn normalises_heads<D: Ops>(rig: &mut Rig<D>) {
    for dtype in DTYPES {
        for (i, heads) in all_heads().into_iter().take(4).enumerate() {
            let rows = [1, 2, 7, 33][i % 4];
            let x = rig.random.floats(rows * heads.width());
            let weights = [(); 2].map(|()| rig.random.floats(heads.dim));
            let name = format!("head_norm {rows} rows, heads of {} {}", heads.dim, dtype.name());
            rig.agrees(&name, dtype, rows, heads.norm(&x, &weights, dtype));
        }
    }
}

pub(super) fn head_norms_are_batch_invariant<D: Ops>(rig: &mut Rig<D>) {
    for heads in all_heads().into_iter().take(4) {
        let x = rig.random.floats(33 * heads.width());
        let weights = [(); 2].map(|()| rig.random.floats(heads.dim));
        rig.invariant("head_norm", 33, &PARTS, heads.norm(&x, &weights, DType::BF16));
    }
}

/// Some rows through `silu_mul`.
fn silu_mul<D: Ops>(x: &[f32], width: usize) -> impl Fn(&mut Rig<D>, usize, usize) -> (SiluMul, Span) {
    move |rig, first, count| {
        let (x, out) = (rig.upload(rows(x, 2 * width, first, count)), rig.blank_f32(count * width));
        (SiluMul { x, out, width: width as u32, rows: count as u32, read_by: None }, out)
    }
}

pub(super) fn activates<D: Ops>(rig: &mut Rig<D>) {
    for (i, width) in [1, 8, 17, 33, 576, 1537].into_iter().enumerate() {
        // Gates from the linear part to far beyond where the exponential leaves f32's range.
        let (rows, spread) = (ROWS[i % 4], [1.0, 10.0, 100.0, 400.0][i % 4]);
        let x = rig.random.spread(rows * 2 * width, spread);
        rig.agrees(&format!("silu_mul {rows}x{width}"), DType::F32, rows, silu_mul(&x, width));
    }
}

pub(super) fn activations_are_batch_invariant<D: Ops>(rig: &mut Rig<D>) {
    let x = rig.random.floats(33 * 2 * 577);
    rig.invariant("silu_mul", 33, &PARTS, silu_mul(&x, 577));
}

const FORMS: [GeluForm; 2] = [GeluForm::Erf, GeluForm::Tanh];

/// Some elements through `gelu`.
fn gelu<D: Ops>(
    x: &[f32],
    form: GeluForm,
    in_place: bool,
) -> impl Fn(&mut Rig<D>, usize, usize) -> (Gelu, Span) {
    move |rig, first, count| {
        let (x, out) = in_and_out(rig, &x[first..first + count], in_place);
        (Gelu { x, out, form, len: count as u64 }, out)
    }
}

pub(super) fn has_two_forms_of_gelu<D: Ops>(rig: &mut Rig<D>) {
    for form in FORMS {
        for (i, len) in [1, 15, 16, 577, 4099, 40_000].into_iter().enumerate() {
            // From the curve's middle to far beyond where the exponential leaves f32's range.
            let spread = [1.0, 4.0, 10.0, 1000.0][i % 4];
            let x = rig.random.spread(len, spread);
            let name = format!("gelu {form:?} of {len} up to {spread}");
            for in_place in [false, true] {
                let (op, out) = gelu(&x, form, in_place)(rig, 0, len);
                rig.run(op);
                let (got, want) = rig.results(out);
                // The two forms differ by up to 5e-4, and each is to be right in its tails as well.
                for ((got, want), x) in got.iter().zip(&want).zip(&x) {
                    let allowed = 1e-6 * x.abs().max(1.0);
                    assert!((got - want).abs() <= allowed, "{name}: {got:?} instead of {want:?} at {x}");
                }
                rig.matches(&name, DType::F32);
            }
        }
    }
}

pub(super) fn gelu_is_batch_invariant<D: Ops>(rig: &mut Rig<D>) {
    let x = rig.random.spread(33 * 577, 4.0);
    for form in FORMS {
        let make = gelu(&x, form, false);
        let all = rig.output((0, x.len()), &make);
        rig.parts_of(&all, "gelu's elements", x.len(), &[(0, 577), (577, 1154), (32 * 577, 577)], make);
    }
}

pub(super) fn adds<D: Ops>(rig: &mut Rig<D>) {
    for len in [1, 15, 16, 577, 40_000] {
        let (a, b) = (rig.random.floats(len), rig.random.floats(len));
        // Into memory of its own, over either operand, and an operand onto itself.
        for alias in 0..4 {
            let (a, b, blank) = (rig.upload(&a), rig.upload(&b), rig.blank_f32(len));
            let (b, out) = [(b, blank), (b, a), (b, b), (a, a)][alias];
            rig.run(Add { a, b, out, len: len as u64 });
            rig.matches(&format!("add {len}, aliasing {alias}"), DType::F32);
        }
    }
}

pub(super) fn selects_rows<D: Ops>(rig: &mut Rig<D>) {
    let [host, device] = [Space::Host, Space::Device];
    for (space, rows, width) in [(device, 1, 1), (device, 5, 17), (host, 33, 576), (host, 64, 1)] {
        let (x, indices) = (rig.random.floats(20 * width), rig.random.indices(rows, 20));
        let x = rig.upload_to(space, bytemuck::cast_slice(&x).to_vec());
        let indices = rig.upload_to(space, bytemuck::cast_slice(&indices).to_vec());
        let out = rig.blank_f32(rows * width);
        rig.run(SelectRows { x, indices, out, width: width as u32, rows: rows as u32 });
        rig.matches(&format!("select_rows {rows}x{width}"), DType::F32);
    }
}

/// How rows are edited: set, or scaled, with a part along a direction, within bounds.
const EDITS: [(f32, f32, f32, f32); 5] = [
    (0.0, 0.0, f32::NEG_INFINITY, f32::INFINITY),
    (1.0, 0.0, f32::NEG_INFINITY, f32::INFINITY),
    (0.5, 0.0, -0.25, 0.125),
    (1.0, -1.0, f32::NEG_INFINITY, f32::INFINITY),
    (-2.0, 0.75, -1.0, f32::INFINITY),
];

pub(super) fn edits_rows<D: Ops>(rig: &mut Rig<D>) {
    for (width, column, x_width) in [(1, 0, 1), (17, 3, 20), (576, 0, 576), (64, 128, 256), (4099, 0, 4099)] {
        for ((scale, along, low, high), add_rows) in EDITS.into_iter().zip([3, 1].into_iter().cycle()) {
            // Vectors lie in host memory, and rows are in no order.
            let (x, direction) = (rig.random.floats(7 * x_width), rig.random.floats(width));
            let mut add = rig.random.floats(add_rows as usize * width);
            add[0] = 0.0;
            let host = |rig: &mut Rig<D>, bytes: &[u8]| rig.upload_to(Space::Host, bytes.to_vec());
            let indices = host(rig, bytemuck::cast_slice(&[5_u32, 0, 3]));
            let direction = host(rig, bytemuck::cast_slice(&direction));
            let add = host(rig, bytemuck::cast_slice(&add));
            let x = rig.upload(&x);
            let (column, width, x_width) = (column as u32, width as u32, x_width as u32);
            let edit = EditRows {
                x,
                indices,
                direction,
                add,
                scale,
                along,
                low,
                high,
                column,
                width,
                x_width,
                rows: 3,
                add_rows,
            };
            rig.run(edit);
            rig.matches(&format!("edit_rows {width} of {x_width} by {scale}, {along}"), DType::F32);
        }
    }
}

pub(super) fn edits_are_batch_invariant<D: Ops>(rig: &mut Rig<D>) {
    let width = 577;
    let (x, direction, add) =
        (rig.random.floats(33 * width), rig.random.floats(width), rig.random.floats(33 * width));
    let make = |rig: &mut Rig<D>, first: usize, rows: usize| {
        let part = first * width..(first + rows) * width;
        let out = rig.upload(&x[part.clone()]);
        let indices: Vec<u32> = (0..rows as u32).collect();
        let (indices, direction) = (rig.upload(&indices), rig.upload(&direction));
        let add = rig.upload(&add[part]);
        let (low, high, width, rows) = (-0.5, 0.75, width as u32, rows as u32);
        let edit = EditRows {
            x: out,
            indices,
            direction,
            add,
            scale: 1.5,
            along: -0.5,
            low,
            high,
            column: 0,
            width,
            x_width: width,
            rows,
            add_rows: rows,
        };
        (edit, out)
    };
    let all = rig.output((0, 33), &make);
    rig.parts_of(&all, "edit_rows", 33, &PARTS, make);
}

pub(super) fn sums_bytes<D: Ops>(rig: &mut Rig<D>) {
    for len in [1, 3, 4, 5, 63, 64, 1023, 262_144, 600_001] {
        let bytes = rig.random.bytes(len);
        let (src, out) = (rig.upload(&bytes), rig.blank(8));
        rig.run(Checksum { src, out });
        rig.matches(&format!("checksum of {len} bytes"), DType::F32);
    }
}
