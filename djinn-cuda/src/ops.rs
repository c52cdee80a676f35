//! The operations: which kernel or library computes each.

use crate::device::{CudaDevice, Form, Prepared};
use crate::launch::{Launch, TILES};
use crate::matmul::Shape;
use djinn_device::args::{
    Add, Argmax, Attention, Checksum, Combine, CopyExpert, CopyPages, Embed, ExpertLinear, Gelu, Group,
    HeadNorm, KvWrite, LayerNorm, Linear, RmsNorm, Rope, RopeTable, Route, SelectRows, SiluMul, Weight,
};
use djinn_device::{DType, Ops, Result, Stream};

/// Up to so many rows an own kernel computes a product, and a row's bits do not depend on the others; beyond,
/// cuBLASLt computes it.
pub(crate) const ROWS_ALONE: u32 = djinn_cuda_sys::DJINN_LINEAR_ROWS;

/// Rows of one launch of the own kernels.
pub(crate) const SMALL_BATCH: u32 = 16;

/// Rows of a piece are a multiple of this, where so many fit.
const PIECE: u64 = 64;

impl CudaDevice {
    /// A product of many rows; whether the library could do it. `known` says what the workspace holds already:
    /// tiles of one weight follow one another, and share their activations.
    fn large_linear(
        &self,
        launch: Launch<'_>,
        args: &Linear,
        known: Option<Prepared>,
    ) -> crate::Result<bool> {
        let (dtype, rows, k) = (args.weight.dtype, u64::from(args.rows), u64::from(args.k));
        let (x, out) = (launch.memory.resolve(args.x), launch.memory.resolve(args.out));
        let weight = launch.memory.resolve(args.weight.span);
        let workspace = self.scratch.cublas();
        let shape = Shape {
            rows: args.rows,
            k: args.k,
            n: args.n,
            out_width: args.out_width,
            out_column: args.out_column,
            dtype,
        };
        if dtype == DType::F32 {
            if !self.matmul.product(launch.stream, shape, [x, weight, out, workspace])? {
                return Ok(false);
            }
            launch.add_bias(args)?;
            return Ok(true);
        }
        let (row, out_row) = (k * 2, u64::from(args.out_width) * 4);
        let fit = self.scratch.activations().len() / row;
        let step = if fit >= PIECE { fit - fit % PIECE } else { fit };
        if step == 0 {
            return Ok(false);
        }
        for first in (0..rows).step_by(step as usize) {
            let count = step.min(rows - first);
            let rounded = self.scratch.activations().slice(0, count * row);
            if count < rows || known.is_none_or(|known| !known.is(args, Form::Rounded)) {
                launch.convert(x.slice(first * row * 2, count * row * 2), rounded, dtype)?;
            }
            let (shape, out) =
                (Shape { rows: count as u32, ..shape }, out.slice(first * out_row, count * out_row));
            if !self.matmul.product(launch.stream, shape, [rounded, weight, out, workspace])? {
                return Ok(false);
            }
        }
        launch.add_bias(args)?;
        Ok(true)
    }

    /// A product with tiles that one launch takes ([`at_once`]), or with one tile.
    fn product(&self, stream: Stream, tiles: &[Linear]) -> Result<()> {
        let args = &tiles[0];
        if args.rows <= SMALL_BATCH {
            return self.launch(stream, |launch| launch.linear(tiles, None, false));
        }
        let known = self.prepared.take().filter(|known| known.stream == stream);
        self.claim_scratch(stream)?;
        let (workspace, mut form) = (self.scratch.activations(), None);
        self.launch(stream, |launch| {
            if args.rows <= ROWS_ALONE {
                form = Some(Form::Split);
                let is_split = known.is_some_and(|known| known.is(args, Form::Split));
                return launch.linear(tiles, Some(workspace), is_split);
            }
            if !self.large_linear(launch, args, known)? {
                return launch.linear(tiles, Some(workspace), false);
            }
            let fits = u64::from(args.rows) * u64::from(args.k) * 2 <= workspace.len();
            form = (args.weight.dtype != DType::F32 && fits).then_some(Form::Rounded);
            Ok(())
        })?;
        // Left out where the output overwrites what was prepared.
        let prepared = form.map(|form| Prepared::new(stream, args, form));
        self.prepared.set(prepared.filter(|_| !args.x.overlaps(args.out)));
        Ok(())
    }

    /// `linear` by cuBLASLt, whatever the number of rows; whether it has an algorithm. For measuring: rows of small
    /// batches do not get the bits that `linear` gives.
    ///
    /// # Errors
    /// As for any operation.
    pub fn library_linear(&self, stream: Stream, args: &Linear) -> Result<bool> {
        debug_assert_eq!(args.check(), ());
        self.claim_scratch(stream)?;
        let mut done = false;
        self.launch(stream, |launch| {
            done = self.large_linear(launch, args, None)?;
            Ok(())
        })?;
        Ok(done)
    }
}

/// How many of the leading tiles one launch takes: those that follow one another in the output, of as many rows each
/// but for the last, of the same product of few rows. A bias lies in tiles as well, of which a launch takes one.
fn at_once(tiles: &[Linear]) -> usize {
    let first = &tiles[0];
    if first.rows > ROWS_ALONE || first.bias.is_some() {
        return 1;
    }
    let follows = |(a, b): (&Linear, &Linear)| {
        let (span, out_column) = (b.weight.span, a.out_column + a.n);
        let like_first = Linear { weight: Weight { span, ..first.weight }, out_column, n: b.n, ..*first };
        a.n == first.n && b.n <= first.n && *b == like_first
    };
    1 + tiles.iter().zip(&tiles[1..]).take(TILES - 1).take_while(|&pair| follows(pair)).count()
}

/// Defines operations that are one launch.
macro_rules! launches {
    ($($op:ident: $args:ty),* $(,)?) => {$(
        fn $op(&self, stream: Stream, args: &$args) -> Result<()> {
            debug_assert_eq!(args.check(), ());
            self.launch(stream, |launch| launch.$op(args))
        }
    )*};
}

impl Ops for CudaDevice {
    launches! {
        embed: Embed,
        rope_table: RopeTable,
        rms_norm: RmsNorm,
        layer_norm: LayerNorm,
        head_norm: HeadNorm,
        rope: Rope,
        kv_write: KvWrite,
        silu_mul: SiluMul,
        gelu: Gelu,
        add: Add,
        select_rows: SelectRows,
        argmax: Argmax,
        copy_pages: CopyPages,
        route: Route,
        group: Group,
        expert_linear: ExpertLinear,
        combine: Combine,
        copy_expert: CopyExpert,
        checksum: Checksum,
    }

    fn add_rms_norm(&self, stream: Stream, add: &Add, norm: &RmsNorm) -> Result<()> {
        debug_assert_eq!((add.check(), norm.check()), ((), ()));
        self.launch(stream, |launch| launch.add_rms_norm(add, norm))
    }

    fn rope_kv_write(&self, stream: Stream, rope: &Rope, write: &KvWrite) -> Result<()> {
        debug_assert_eq!((rope.check(), write.check()), ((), ()));
        self.launch(stream, |launch| launch.rope_kv_write(rope, write))
    }

    fn linear(&self, stream: Stream, args: &Linear) -> Result<()> {
        debug_assert_eq!(args.check(), ());
        self.product(stream, std::slice::from_ref(args))
    }

    fn linear_tiles(&self, stream: Stream, mut tiles: &[Linear]) -> Result<()> {
        while !tiles.is_empty() {
            let (run, rest) = tiles.split_at(at_once(tiles));
            run.iter().for_each(|tile| debug_assert_eq!(tile.check(), ()));
            self.product(stream, run)?;
            tiles = rest;
        }
        Ok(())
    }

    fn attention(&self, stream: Stream, args: &Attention) -> Result<()> {
        debug_assert_eq!(args.check(), ());
        self.claim_scratch(stream)?;
        self.launch(stream, |launch| launch.attention(args, self.scratch.activations()))
    }
}
