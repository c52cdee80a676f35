//! One typed launch for each kernel: spans become addresses, and the launcher's code an error.
#![allow(unsafe_code, reason = "calls the launchers of the kernels")]

use crate::memory::{Memory, Place};
use crate::stream::RawStream;
use crate::{Error, Result};
use djinn_cuda_sys as sys;
use djinn_device::args::{
    Add, Argmax, Attention, Checksum, Combine, CopyExpert, CopyPages, Embed, ExpertLinear, Gelu, Group,
    HeadNorm, KvPages, KvWrite, LayerNorm, Linear, RmsNorm, Rope, RopeTable, Route, SelectRows, SiluMul,
};
use djinn_device::{DType, RopeStyle, Span};
use std::ffi::{CStr, c_void};
use std::ops::Range;

/// Tiles of a weight that one launch of a product takes.
pub(crate) const TILES: usize = sys::DJINN_LINEAR_TILES as usize;

/// Most rows for which a product reads the weight once, on the card of the current context.
pub(crate) fn rows_at_once() -> u32 {
    // SAFETY: asks the driver, and has no other effect.
    unsafe { sys::djinn_linear_rows() }
}

/// Whether the own kernel for a product of this many rows, or slots of experts, takes its activations rounded, on the
/// card of the current context.
pub(crate) fn wants_rounded(rows: u32, k: u32, weight: DType) -> bool {
    // SAFETY: as above.
    unsafe { sys::djinn_linear_rounded(rows, k, dtype(weight)) != 0 }
}

/// A stream, and the memory that arguments refer to.
#[derive(Clone, Copy)]
pub(crate) struct Launch<'a> {
    pub(crate) memory: &'a Memory,
    pub(crate) stream: &'a RawStream,
}

/// Calls a launcher with its arguments.
macro_rules! kernel {
    ($launcher:ident, $args:expr, $stream:expr) => {{
        let args = $args;
        // SAFETY: every pointer is the address of a `Place`, i.e. of live memory of the size that the
        // operation's `check` demands, kept until the work is done by the device's contract; the launcher
        // reads `args` during the call; the stream is alive and its context current.
        let code = unsafe { sys::$launcher(&args, $stream.raw().cast::<c_void>()) };
        outcome(stringify!($launcher), code)
    }};
}

impl Launch<'_> {
    pub(crate) fn embed(self, args: &Embed) -> Result<()> {
        let raw = sys::djinn_embed_args {
            tokens: self.memory.resolve(args.tokens).input(),
            table: self.memory.resolve(args.table.span).input(),
            out: self.memory.resolve(args.out).output(),
            table_dtype: dtype(args.table.dtype),
            first_row: args.first_row,
            table_rows: args.table_rows,
            width: args.width,
            rows: args.rows,
        };
        kernel!(djinn_embed, raw, self.stream)
    }

    pub(crate) fn rope_table(self, args: &RopeTable) -> Result<()> {
        let raw = sys::djinn_rope_table_args {
            positions: self.memory.resolve(args.positions).input(),
            inv_freq: self.memory.resolve(args.inv_freq).input(),
            out: self.memory.resolve(args.out).output(),
            half: args.half,
            scale: args.scale,
            rows: args.rows,
        };
        kernel!(djinn_rope_table, raw, self.stream)
    }

    pub(crate) fn rms_norm(self, args: &RmsNorm) -> Result<()> {
        kernel!(djinn_rms_norm, self.norm(args), self.stream)
    }

    pub(crate) fn add_rms_norm(self, add: &Add, norm: &RmsNorm) -> Result<()> {
        let raw = sys::djinn_add_rms_norm_args {
            a: self.memory.resolve(add.a).input(),
            b: self.memory.resolve(add.b).input(),
            sum: self.memory.resolve(add.out).output(),
            norm: self.norm(norm),
        };
        kernel!(djinn_add_rms_norm, raw, self.stream)
    }

    pub(crate) fn layer_norm(self, args: &LayerNorm) -> Result<()> {
        let raw = sys::djinn_layer_norm_args {
            x: self.memory.resolve(args.x).input(),
            weight: self.memory.resolve(args.weight.span).input(),
            bias: self.memory.resolve(args.bias.span).input(),
            out: self.memory.resolve(args.out).output(),
            weight_dtype: dtype(args.weight.dtype),
            bias_dtype: dtype(args.bias.dtype),
            eps: args.eps,
            width: args.width,
            rows: args.rows,
        };
        kernel!(djinn_layer_norm, raw, self.stream)
    }

    pub(crate) fn head_norm(self, args: &HeadNorm) -> Result<()> {
        let raw = sys::djinn_head_norm_args {
            qkv: self.memory.resolve(args.qkv).output(),
            query: self.memory.resolve(args.query.span).input(),
            key: self.memory.resolve(args.key.span).input(),
            weight_dtype: dtype(args.query.dtype),
            eps: args.eps,
            heads: args.heads,
            kv_heads: args.kv_heads,
            head_dim: args.head_dim,
            rows: args.rows,
        };
        kernel!(djinn_head_norm, raw, self.stream)
    }

    /// Some rows of a product. `rounded` are those of the activations in the weight's type, where
    /// [`wants_rounded`] says so; results do not depend on it.
    ///
    /// `tiles` are up to [`TILES`] successive tiles of one weight, of as many rows each but for the last.
    pub(crate) fn linear(self, tiles: &[Linear], rows: Range<u32>, rounded: Option<Place>) -> Result<()> {
        let args = &tiles[0];
        let mut weights = [std::ptr::null(); TILES];
        for (weight, tile) in weights.iter_mut().zip(tiles) {
            *weight = self.memory.resolve(tile.weight.span).input();
        }
        let bias = args.bias.map(|bias| (self.memory.resolve(bias.span).input(), dtype(bias.dtype)));
        let (bias, bias_dtype) = bias.unwrap_or((std::ptr::null(), dtype(DType::F32)));
        let part = |span: Span, width: u32| {
            let row = u64::from(width) * 4;
            let place = self.memory.resolve(span);
            place.slice(u64::from(rows.start) * row, rows.len() as u64 * row)
        };
        let raw = sys::djinn_linear_args {
            x: part(args.x, args.k).input(),
            weights,
            bias,
            out: part(args.out, args.out_width).output(),
            rounded: rounded.map_or(std::ptr::null(), Place::input),
            weight_dtype: dtype(args.weight.dtype),
            bias_dtype,
            k: args.k,
            n: tiles.iter().map(|tile| tile.n).sum(),
            tile_rows: args.n,
            out_width: args.out_width,
            out_column: args.out_column,
            rows: rows.len() as u32,
        };
        kernel!(djinn_linear, raw, self.stream)
    }

    /// Rounds f32 elements to a 16-bit type; `out` holds as many of them as `x`.
    pub(crate) fn convert(self, x: Place, out: Place, to: DType) -> Result<()> {
        debug_assert_eq!(out.len(), x.len() / 2);
        let len = x.len() / 4;
        let raw = sys::djinn_convert_args { x: x.input(), out: out.output(), out_dtype: dtype(to), len };
        kernel!(djinn_convert, raw, self.stream)
    }

    /// Adds the bias of a product that was computed without one.
    pub(crate) fn add_bias(self, args: &Linear) -> Result<()> {
        let Some(bias) = args.bias else { return Ok(()) };
        let raw = sys::djinn_add_bias_args {
            out: self.memory.resolve(args.out).output(),
            bias: self.memory.resolve(bias.span).input(),
            bias_dtype: dtype(bias.dtype),
            n: args.n,
            out_width: args.out_width,
            out_column: args.out_column,
            rows: args.rows,
        };
        kernel!(djinn_add_bias, raw, self.stream)
    }

    pub(crate) fn rope(self, args: &Rope) -> Result<()> {
        kernel!(djinn_rope, self.rotation(args), self.stream)
    }

    pub(crate) fn kv_write(self, args: &KvWrite) -> Result<()> {
        kernel!(djinn_kv_write, self.writing(args), self.stream)
    }

    pub(crate) fn rope_kv_write(self, rope: &Rope, write: &KvWrite) -> Result<()> {
        let raw = sys::djinn_rope_kv_write_args { rope: self.rotation(rope), write: self.writing(write) };
        kernel!(djinn_rope_kv_write, raw, self.stream)
    }

    /// With `workspace` for the partial results of long contexts; results do not depend on it.
    pub(crate) fn attention(self, args: &Attention, workspace: Place) -> Result<()> {
        let raw = sys::djinn_attention_args {
            qkv: self.memory.resolve(args.qkv).input(),
            row_seq: self.memory.resolve(args.row_seq).input(),
            positions: self.memory.resolve(args.positions).input(),
            out: self.memory.resolve(args.out).output(),
            workspace: workspace.output(),
            workspace_bytes: workspace.len(),
            kv: self.pages(&args.kv),
            heads: args.heads,
            scale: args.scale,
            window: args.window.unwrap_or(0),
            alibi: args.alibi.into(),
            rows: args.rows,
            exact: 0,
        };
        kernel!(djinn_attention, raw, self.stream)
    }

    pub(crate) fn silu_mul(self, args: &SiluMul) -> Result<()> {
        let raw = sys::djinn_silu_mul_args {
            x: self.memory.resolve(args.x).input(),
            out: self.memory.resolve(args.out).output(),
            width: args.width,
            rows: args.rows,
        };
        kernel!(djinn_silu_mul, raw, self.stream)
    }

    pub(crate) fn gelu(self, args: &Gelu) -> Result<()> {
        let form = match args.form {
            djinn_device::Gelu::Erf => sys::djinn_gelu_form_DJINN_GELU_ERF,
            djinn_device::Gelu::Tanh => sys::djinn_gelu_form_DJINN_GELU_TANH,
        };
        let raw = sys::djinn_gelu_args {
            x: self.memory.resolve(args.x).input(),
            out: self.memory.resolve(args.out).output(),
            form,
            len: args.len,
        };
        kernel!(djinn_gelu, raw, self.stream)
    }

    pub(crate) fn add(self, args: &Add) -> Result<()> {
        let raw = sys::djinn_add_args {
            a: self.memory.resolve(args.a).input(),
            b: self.memory.resolve(args.b).input(),
            out: self.memory.resolve(args.out).output(),
            len: args.len,
        };
        kernel!(djinn_add, raw, self.stream)
    }

    pub(crate) fn select_rows(self, args: &SelectRows) -> Result<()> {
        let raw = sys::djinn_select_rows_args {
            x: self.memory.resolve(args.x).input(),
            indices: self.memory.resolve(args.indices).input(),
            out: self.memory.resolve(args.out).output(),
            width: args.width,
            rows: args.rows,
        };
        kernel!(djinn_select_rows, raw, self.stream)
    }

    pub(crate) fn argmax(self, args: &Argmax) -> Result<()> {
        let raw = sys::djinn_argmax_args {
            x: self.memory.resolve(args.x).input(),
            out: self.memory.resolve(args.out).output(),
            width: args.width,
            rows: args.rows,
        };
        kernel!(djinn_argmax, raw, self.stream)
    }

    pub(crate) fn copy_pages(self, args: &CopyPages) -> Result<()> {
        let list = |span: Option<Span>| span.map_or(std::ptr::null(), |s| self.memory.resolve(s).input());
        let raw = sys::djinn_copy_pages_args {
            src: self.memory.resolve(args.src).input(),
            dst: self.memory.resolve(args.dst).bytes(),
            src_pages: list(args.src_pages),
            dst_pages: list(args.dst_pages),
            page_bytes: args.page_bytes,
            count: args.count,
        };
        kernel!(djinn_copy_pages, raw, self.stream)
    }

    pub(crate) fn route(self, args: &Route) -> Result<()> {
        let raw = sys::djinn_route_args {
            logits: self.memory.resolve(args.logits).input(),
            weights: self.memory.resolve(args.weights).output(),
            ids: self.memory.resolve(args.ids).output(),
            experts: args.experts,
            top_k: args.top_k,
            renormalise: args.renormalise.into(),
            rows: args.rows,
        };
        kernel!(djinn_route, raw, self.stream)
    }

    pub(crate) fn group(self, args: &Group) -> Result<()> {
        let raw = sys::djinn_group_args {
            ids: self.memory.resolve(args.ids).input(),
            order: self.memory.resolve(args.order).output(),
            starts: self.memory.resolve(args.starts).output(),
            experts: args.experts,
            slots: args.slots,
        };
        kernel!(djinn_group, raw, self.stream)
    }

    /// With a workspace for rounded activations where [`wants_rounded`] says so; results do not depend on it.
    pub(crate) fn expert_linear(self, args: &ExpertLinear, workspace: Option<Place>) -> Result<()> {
        let mut weights = [std::ptr::null(); TILES];
        weights[0] = self.memory.resolve(args.weight.span).input();
        let linear = sys::djinn_linear_args {
            x: self.memory.resolve(args.x).input(),
            weights,
            bias: std::ptr::null(),
            out: self.memory.resolve(args.out).output(),
            rounded: std::ptr::null(),
            weight_dtype: dtype(args.weight.dtype),
            bias_dtype: dtype(DType::F32),
            k: args.k,
            n: args.n,
            tile_rows: args.n,
            out_width: args.out_width,
            out_column: args.out_column,
            rows: args.slots,
        };
        let raw = sys::djinn_expert_linear_args {
            linear,
            order: self.memory.resolve(args.order).input(),
            starts: self.memory.resolve(args.starts).input(),
            workspace: workspace.map_or(std::ptr::null_mut(), Place::bytes),
            workspace_bytes: workspace.map_or(0, Place::len),
            expert: args.expert,
            slots_per_row: args.slots_per_row,
        };
        kernel!(djinn_expert_linear, raw, self.stream)
    }

    pub(crate) fn combine(self, args: &Combine) -> Result<()> {
        let raw = sys::djinn_combine_args {
            y: self.memory.resolve(args.y).input(),
            weights: self.memory.resolve(args.weights).input(),
            out: self.memory.resolve(args.out).output(),
            top_k: args.top_k,
            width: args.width,
            rows: args.rows,
        };
        kernel!(djinn_combine, raw, self.stream)
    }

    pub(crate) fn copy(self, src: Place, dst: Place) -> Result<()> {
        let raw = sys::djinn_copy_args { src: src.input(), dst: dst.bytes(), bytes: src.len() };
        kernel!(djinn_copy, raw, self.stream)
    }

    pub(crate) fn copy_expert(self, args: &CopyExpert) -> Result<()> {
        let raw = sys::djinn_copy_expert_args {
            src: self.memory.resolve(args.src).input(),
            dst: self.memory.resolve(args.dst).bytes(),
            starts: self.memory.resolve(args.starts).input(),
            moved: self.memory.resolve(args.moved).output(),
            bytes: args.src.len(),
            expert: args.expert,
        };
        kernel!(djinn_copy_expert, raw, self.stream)
    }

    pub(crate) fn checksum(self, args: &Checksum) -> Result<()> {
        let raw = sys::djinn_checksum_args {
            src: self.memory.resolve(args.src).input(),
            out: self.memory.resolve(args.out).output(),
            bytes: args.src.len(),
        };
        kernel!(djinn_checksum, raw, self.stream)
    }

    fn norm(self, args: &RmsNorm) -> sys::djinn_rms_norm_args {
        sys::djinn_rms_norm_args {
            x: self.memory.resolve(args.x).input(),
            weight: self.memory.resolve(args.weight.span).input(),
            out: self.memory.resolve(args.out).output(),
            weight_dtype: dtype(args.weight.dtype),
            eps: args.eps,
            width: args.width,
            rows: args.rows,
        }
    }

    fn rotation(self, args: &Rope) -> sys::djinn_rope_args {
        let style = match args.style {
            RopeStyle::Half => sys::djinn_rope_style_DJINN_ROPE_HALF,
            RopeStyle::Interleaved => sys::djinn_rope_style_DJINN_ROPE_INTERLEAVED,
        };
        sys::djinn_rope_args {
            qkv: self.memory.resolve(args.qkv).output(),
            table: self.memory.resolve(args.table).input(),
            heads: args.heads,
            kv_heads: args.kv_heads,
            head_dim: args.head_dim,
            rotary_dim: args.rotary_dim,
            style,
            rows: args.rows,
        }
    }

    fn writing(self, args: &KvWrite) -> sys::djinn_kv_write_args {
        sys::djinn_kv_write_args {
            qkv: self.memory.resolve(args.qkv).input(),
            row_seq: self.memory.resolve(args.row_seq).input(),
            positions: self.memory.resolve(args.positions).input(),
            kv: self.pages(&args.kv),
            heads: args.heads,
            rows: args.rows,
        }
    }

    fn pages(self, kv: &KvPages) -> sys::djinn_kv_pages {
        sys::djinn_kv_pages {
            pages: self.memory.resolve(kv.pages).bytes(),
            page_table: self.memory.resolve(kv.page_table).input(),
            page_bytes: kv.page_bytes,
            dtype: dtype(kv.dtype),
            page_tokens: kv.page_tokens,
            layer: kv.layer,
            kv_heads: kv.kv_heads,
            head_dim: kv.head_dim,
            table_width: kv.table_width,
        }
    }
}

fn dtype(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => sys::djinn_dtype_DJINN_F32,
        DType::F16 => sys::djinn_dtype_DJINN_F16,
        DType::BF16 => sys::djinn_dtype_DJINN_BF16,
        DType::U32 => unreachable!("no type of weights or caches"),
    }
}

fn outcome(kernel: &'static str, code: i32) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: any code is allowed.
    let text = unsafe { sys::djinn_error_string(code) };
    // SAFETY: the text is static and ends with NUL.
    let text = unsafe { CStr::from_ptr(text) };
    Err(Error::Launch { kernel, code, text: text.to_string_lossy().into_owned() })
}
