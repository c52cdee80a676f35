//! Operations on rows, one by one: norm, rotation, activation, sums, gathers and scatters.

mod kernels;

use super::Fast;
use super::blocks::{DecodeBlocks, row_bytes};
use super::buffer::Shared;
use super::data::{
    Add, EditRows, Embed, Gelu, HeadNorm, KvWrite, LayerNorm, Part, RmsNorm, Rope, RopeTable, SelectRows,
    SiluMul,
};
use super::element::{CacheMut, Element, Matrix, with_elements};
use super::lossless::Lossless;
use djinn_device::args;
use djinn_lossless::SixteenBit;
use half::{bf16, f16};
use kernels::{AddRows, CentreRows, GeluRows, NormRows, RotateRows, RoundVector, SiluRows, WidenRow};

/// Elements below which a share of the rows is not worth another thread.
const LEAST_ELEMENTS: usize = 1 << 13;

impl Fast {
    /// Calls `each` with the index of the first and the slice of shares of `out`'s rows, in parallel.
    pub(super) fn each_share(&self, out: &mut [f32], width: usize, each: impl Fn(usize, &mut [f32]) + Sync) {
        let rows = out.len() / width;
        let share = rows.div_ceil(4 * self.pool.threads()).max(LEAST_ELEMENTS.div_ceil(width));
        let out = Shared::new(out);
        self.pool.run(rows.div_ceil(share), |task| {
            let first = task * share;
            let count = share.min(rows - first);
            // SAFETY: shares are disjoint.
            #[allow(unsafe_code, reason = "rows are written in parallel")]
            let out = unsafe { out.slice(first * width, count * width) };
            each(first, out);
        });
    }

    /// See [`djinn_device::args::Embed`].
    pub(crate) fn embed(&self, op: Embed<'_>) {
        let Embed { tokens, table, first_row, table_rows, width, out } = op;
        let rows = Embed { tokens, table, first_row, table_rows, width, out: &mut [] };
        self.each_share(out, width, |first, out| {
            for (&token, out) in tokens[first..].iter().zip(out.chunks_exact_mut(width)) {
                let Some(row) = rows.row_of(token) else { continue };
                match table {
                    Matrix::Plain(table) => with_elements!(Elements, table, table => {
                        self.isa.run(WidenRow { from: &table[row * width..][..width], out });
                    }),
                    Matrix::Lossless(table) => match table.form {
                        SixteenBit::BF16 => self.widen_lossless::<bf16>(table, row, out),
                        SixteenBit::F16 => self.widen_lossless::<f16>(table, row, out),
                    },
                    Matrix::Blocks(format, table) => {
                        let bytes = row_bytes(format, width);
                        let blocks = &table[row * bytes..][..bytes];
                        self.isa.run(DecodeBlocks { format, k: width, blocks, out });
                    }
                }
            }
        });
    }

    fn widen_lossless<E: Element>(&self, table: Lossless<'_>, row: usize, out: &mut [f32]) {
        let mut plain = vec![E::zeroed(); out.len()];
        self.isa.run(table.decode(row..row + 1, &mut plain));
        self.isa.run(WidenRow { from: &plain, out });
    }

    /// See [`djinn_device::args::RopeTable`].
    pub(crate) fn rope_table(&self, op: RopeTable<'_>) {
        let half = op.inv_freq.len();
        self.each_share(op.out, 2 * half, |first, out| {
            for (&position, out) in op.positions[first..].iter().zip(out.chunks_exact_mut(2 * half)) {
                let (cos, sin) = out.split_at_mut(half);
                for (&inv_freq, (cos, sin)) in op.inv_freq.iter().zip(cos.iter_mut().zip(sin)) {
                    (*cos, *sin) = args::RopeTable::pair(position, inv_freq, op.scale);
                }
            }
        });
    }

    /// See [`djinn_device::args::RmsNorm`].
    pub(crate) fn rms_norm(&self, op: RmsNorm<'_>) {
        let (x, eps, width, weight) = (op.x, op.eps, op.width, op.weight.to_vec());
        self.each_share(op.out, width, |first, out| {
            if let Some(x) = x {
                out.copy_from_slice(&x[first * width..][..out.len()]);
            }
            self.isa.run(NormRows { x: out, weight: &weight, eps });
        });
    }

    /// See [`djinn_device::args::LayerNorm`].
    pub(crate) fn layer_norm(&self, op: LayerNorm<'_>) {
        let (x, eps, width) = (op.x, op.eps, op.width);
        let (weight, bias) = (op.weight.to_vec(), op.bias.to_vec());
        self.each_share(op.out, width, |first, out| {
            if let Some(x) = x {
                out.copy_from_slice(&x[first * width..][..out.len()]);
            }
            self.isa.run(CentreRows { x: out, weight: &weight, bias: &bias, eps });
        });
    }

    /// See [`djinn_device::args::HeadNorm`].
    pub(crate) fn head_norm(&self, op: HeadNorm<'_>) {
        let HeadNorm { qkv, query, key, eps, heads, kv_heads, head_dim } = op;
        let (query, key, width) = (query.to_vec(), key.to_vec(), (heads + 2 * kv_heads) * head_dim);
        self.each_share(qkv, width, |_, rows| {
            for row in rows.chunks_exact_mut(width) {
                let (queries, rest) = row.split_at_mut(heads * head_dim);
                self.isa.run(NormRows { x: queries, weight: &query, eps });
                self.isa.run(NormRows { x: &mut rest[..kv_heads * head_dim], weight: &key, eps });
            }
        });
    }

    /// See [`djinn_device::args::Rope`].
    pub(crate) fn rope(&self, op: Rope<'_>) {
        let Rope { qkv, table, heads, kv_heads, head_dim, rotary_dim, style } = op;
        self.each_share(qkv, (heads + 2 * kv_heads) * head_dim, |first, x| {
            let table = &table[first * rotary_dim..];
            self.isa.run(RotateRows { x, table, heads, kv_heads, head_dim, rotary_dim, style });
        });
    }

    /// See [`djinn_device::args::KvWrite`].
    pub(crate) fn kv_write(&self, op: KvWrite<'_>) {
        let KvWrite { qkv, pages, layout, row_seq, positions, heads } = op;
        let dim = layout.head_dim;
        let width = (heads + 2 * layout.kv_heads) * dim;
        // Each vector, its first element in the pages, and its position.
        let each = |write: &mut dyn FnMut(&[f32], usize, usize)| {
            for (r, (&sequence, &position)) in row_seq.iter().zip(positions).enumerate() {
                let row = &qkv[r * width..][..width];
                for head in 0..layout.kv_heads {
                    for (part, first) in [(Part::Keys, heads), (Part::Values, heads + layout.kv_heads)] {
                        let to = layout.offset(sequence as usize, position as usize, part, head);
                        write(&row[(first + head) * dim..][..dim], to, position as usize);
                    }
                }
            }
        };
        match pages {
            CacheMut::Plain(pages) => with_elements!(ElementsMut, pages, pages => {
                each(&mut |from, to, _| round_row(from, &mut pages[to..][..dim]));
            }),
            CacheMut::Int8(pages) => each(&mut |from, to, position| {
                let mut scale = 0.0;
                let integers = bytemuck::cast_slice_mut(&mut pages[to..][..dim]);
                self.isa.run(RoundVector { from, to: integers, scale: &mut scale });
                let at = layout.scale(to, position);
                pages[at..][..size_of::<f32>()].copy_from_slice(&scale.to_le_bytes());
            }),
        }
    }

    /// See [`djinn_device::args::SiluMul`].
    pub(crate) fn silu_mul(&self, op: SiluMul<'_>) {
        self.each_share(op.out, op.width, |first, out| {
            let x = &op.x[first * 2 * op.width..][..2 * out.len()];
            self.isa.run(SiluRows { x, width: op.width, out });
        });
    }

    /// See [`djinn_device::args::Gelu`].
    pub(crate) fn gelu(&self, op: Gelu<'_>) {
        self.each_share(op.out, 1, |first, out| {
            if let Some(x) = op.x {
                out.copy_from_slice(&x[first..][..out.len()]);
            }
            self.isa.run(GeluRows { x: out, form: op.form });
        });
    }

    /// See [`djinn_device::args::Add`].
    pub(crate) fn add(&self, op: Add<'_>) {
        self.each_share(op.out, 1, |first, out| {
            let range = first..first + out.len();
            let (a, b) = (op.a.map(|a| &a[range.clone()]), op.b.map(|b| &b[range.clone()]));
            self.isa.run(AddRows { a, b, out });
        });
    }

    /// See [`djinn_device::args::SelectRows`].
    pub(crate) fn select_rows(&self, op: SelectRows<'_>) {
        let width = op.width;
        self.each_share(op.out, width, |first, out| {
            for (&index, out) in op.indices[first..].iter().zip(out.chunks_exact_mut(width)) {
                out.copy_from_slice(&op.x[index as usize * width..][..width]);
            }
        });
    }

    /// See [`djinn_device::args::EditRows`]. Rows are few: one thread edits them.
    pub(crate) fn edit_rows(&self, op: EditRows<'_>) {
        let EditRows { x, indices, direction, add, args } = op;
        let (width, x_width) = (args.width as usize, args.x_width as usize);
        for (&index, add) in indices.iter().zip(add.chunks_exact(width).cycle()) {
            let row = &mut x[index as usize * x_width + args.column as usize..][..width];
            let products = row.iter().zip(direction).map(|(&y, &d)| f64::from(y) * f64::from(d));
            let dot = if args.along == 0.0 { 0.0 } else { products.sum::<f64>() as f32 };
            for ((y, &direction), &add) in row.iter_mut().zip(direction).zip(add) {
                *y = args.element(*y, dot, direction, add);
            }
        }
    }
}

/// Rounds a row of f32 to the pages' type.
fn round_row<E: Element>(from: &[f32], to: &mut [E]) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to = E::narrow(from);
    }
}
