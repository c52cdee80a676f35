//! Checks of matrices in every encoding that the device says it computes from.

use super::rig::{PARTS, Rig, rows, same_bits};
use super::routing::group;
use crate::args::{Embed, ExpertLinear, Linear, Weight};
use crate::{DType, Encoding, Ops, Space, Span};

/// Random rows of an encoding.
struct Matrix {
    encoding: Encoding,
    rows: usize,
    columns: usize,
    bytes: Vec<u8>,
}

impl Matrix {
    /// Rows of `blocks` blocks each.
    fn new<D: Ops>(rig: &mut Rig<D>, encoding: Encoding, rows: usize, blocks: usize) -> Matrix {
        let Encoding::Blocks(format) = encoding else { panic!("no random rows of {encoding}") };
        let columns = blocks * format.elements() as usize;
        let mut bytes = rig.random.bytes(rows * blocks * format.bytes() as usize);
        for block in bytes.chunks_mut(format.bytes() as usize) {
            format.set_scales(block, || rig.random.floats(1)[0] / 64.0);
        }
        Matrix { encoding, rows, columns, bytes }
    }

    /// `count` of its rows from `first` on, in a buffer of their own.
    fn upload<D: Ops>(&self, rig: &mut Rig<D>, space: Space, first: usize, count: usize) -> Weight {
        let row = self.bytes.len() / self.rows;
        let bytes = self.bytes[first * row..(first + count) * row].to_vec();
        Weight { span: rig.upload_to(space, bytes), dtype: DType::F32, encoding: self.encoding }
    }

    fn name(&self, what: &str) -> String {
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

/// Every encoding, with shapes of ragged tiles.
fn each<D: Ops>(rig: &mut Rig<D>, mut check: impl FnMut(&mut Rig<D>, Matrix)) {
    for &encoding in rig.device.info().encodings {
        for (rows, blocks) in [(1, 1), (37, 3), (130, 2)] {
            let matrix = Matrix::new(rig, encoding, rows, blocks);
            check(rig, matrix);
        }
    }
}

pub(super) fn products_match_the_reference<D: Ops>(rig: &mut Rig<D>) {
    each(rig, |rig, matrix| {
        for rows in [1, 7, 64] {
            let x = rig.random.floats(rows * matrix.columns);
            rig.agrees(&matrix.name(&format!("linear {rows} x")), DType::F32, rows, matrix.product(&x));
        }
    });
}

pub(super) fn products_are_batch_invariant<D: Ops>(rig: &mut Rig<D>) {
    each(rig, |rig, matrix| {
        let x = rig.random.floats(33 * matrix.columns);
        rig.invariant(&matrix.name("linear 33 x"), 33, &PARTS, matrix.product(&x));
    });
}

pub(super) fn embeds_rows_exactly<D: Ops>(rig: &mut Rig<D>) {
    each(rig, |rig, matrix| {
        for space in [Space::Device, Space::Host] {
            let tokens = rig.random.indices(29, matrix.rows + 14);
            let args = Embed {
                tokens: rig.upload(&tokens),
                table: matrix.upload(rig, space, 0, matrix.rows),
                first_row: 7,
                table_rows: matrix.rows as u32,
                width: matrix.columns as u32,
                out: rig.blank_f32(tokens.len() * matrix.columns),
                rows: tokens.len() as u32,
            };
            rig.run(args);
            rig.matches(&matrix.name("embed"), DType::F32);
        }
    });
}

/// An expert's product against the reference, and its slots against `linear` of their rows alone.
pub(super) fn experts_match_the_reference<D: Ops>(rig: &mut Rig<D>) {
    each(rig, |rig, matrix| {
        let (slots, n, k) = (12, matrix.rows, matrix.columns);
        let (ids, x) = (rig.random.indices(slots, 2), rig.random.floats(slots * k));
        let span = rig.upload(&ids);
        let group = group(rig, span, 2);
        rig.run(group);
        let args = ExpertLinear {
            x: rig.upload(&x),
            weight: matrix.upload(rig, Space::Device, 0, n),
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
        rig.matches(&name, DType::F32);
        for slot in (0..slots).filter(|&slot| ids[slot] == 1) {
            let alone = rig.output((slot, 1), &matrix.product(&x));
            same_bits(&format!("slot {slot} of {name}"), &got[slot * n..][..n], &alone[2..2 + n]);
        }
    });
}
