//! One typed launch for each kernel: spans become addresses, and the launcher's code an error.
#![allow(unsafe_code, reason = "calls the launchers of the kernels")]

use crate::experts::Experts;
use crate::present::memory::{Memory, Place};
use crate::present::stream::RawStream;
use crate::{Error, Result};
use djinn_cuda_sys as sys;
use djinn_device::args::{self, CpuSlots, KvPages, Linear};
use djinn_device::{BlockFormat, DType, Encoding, GeluForm, RopeStyle, Span};
use std::ffi::{CStr, c_void};
use std::ops::Range;
use std::ptr;

/// The most tiles of a weight that one launch of a product takes.
pub(crate) const TILES: usize = sys::DJINN_LINEAR_TILES as usize;

/// The most tiles of experts that one call takes. Those of one expert are at most [`TILES`].
pub(crate) const EXPERT_TILES: usize = sys::DJINN_EXPERT_TILES as usize;

/// The most copies of experts that one launch takes.
pub(crate) const COPIES: usize = sys::DJINN_COPIES as usize;

/// The most rows for which a product reads the weight once, on the card of the current context.
pub(crate) fn rows_at_once() -> u32 {
    // SAFETY: asks the driver, and has no other effect.
    unsafe { sys::djinn_linear_rows() }
}

/// The type of a weight's elements, as products read or decode them.
pub(crate) fn decoded_dtype(weight: args::Weight) -> DType {
    type_read(weight.dtype, weight.encoding)
}

/// The same, by the weight's type and encoding.
pub(crate) fn type_read(dtype: DType, encoding: Encoding) -> DType {
    match encoding {
        Encoding::Blocks(_) => DType::F16,
        _ => dtype,
    }
}

/// The most rows for which a product reads an encoded weight as it is, on the card of the current context; 0 if none
/// does. If it is not 0, products of experts read the weight as it is for any number of slots.
pub(crate) fn rows_read_directly(weight: args::Weight, k: u32, n: u32) -> u32 {
    let (encoding, dtype) = (encoding(weight.encoding), dtype(decoded_dtype(weight)));
    // SAFETY: asks the driver, and has no other effect.
    unsafe { sys::djinn_linear_direct(encoding, dtype, k, row_bytes(weight, n)) }
}

/// Whether Djinn's kernel for a product with all tiles of an encoded weight, for more rows than it
/// [reads directly](rows_read_directly), decodes the weight while it multiplies, in less time than if it were decoded
/// before, on the card of the current context.
pub(crate) fn decodes_meanwhile(tiles: &[Linear]) -> bool {
    let (first, n) = (&tiles[0], tiles.iter().map(|tile| tile.n).sum());
    let (weight, bytes) = (first.weight, row_bytes(first.weight, first.n));
    let (encoding, dtype) = (encoding(weight.encoding), dtype(decoded_dtype(weight)));
    // SAFETY: as above.
    unsafe { sys::djinn_linear_decodes(first.rows, first.k, n, first.n, encoding, dtype, bytes) != 0 }
}

/// Whether Djinn's kernel for a product of this many rows, or slots of experts, takes its activations rounded, on the
/// card of the current context. The weight is read as it is stored, or `decoded`.
pub(crate) fn wants_rounded(rows: u32, k: u32, weight: args::Weight, decoded: bool) -> bool {
    takes_rounded(rows, k, decoded_dtype(weight), if decoded { Encoding::Plain } else { weight.encoding })
}

/// The same for a weight whose elements are read as type `read`.
pub(crate) fn takes_rounded(rows: u32, k: u32, read: DType, stored: Encoding) -> bool {
    // SAFETY: as above.
    unsafe { sys::djinn_linear_rounded(rows, k, dtype(read), encoding(stored)) != 0 }
}

/// Whether one launch can compute a product of all tiles of a weight that is plain, decoded or
/// [decoded meanwhile](decodes_meanwhile), and SiLU of its first half times the second, on the card of the current context.
pub(crate) fn can_gate(tiles: &[Linear]) -> bool {
    let (first, n) = (&tiles[0], tiles.iter().map(|tile| tile.n).sum());
    // SAFETY: as above.
    let can = unsafe {
        sys::djinn_linear_gated(first.rows, first.k, n, first.n, dtype(decoded_dtype(first.weight)))
    };
    first.bias.is_none() && can != 0
}

/// Whether one launch can add a product of all tiles of a weight and 16-bit activations to `sum` in place, on the card of
/// the current context. The weight is plain, `decoded`, or [decoded meanwhile](decodes_meanwhile).
pub(crate) fn can_add(tiles: &[Linear], decoded: bool, sum: Place) -> bool {
    let (first, n) = (&tiles[0], tiles.iter().map(|tile| tile.n).sum());
    // SAFETY: as above; it follows no address.
    let can = unsafe {
        sys::djinn_linear_adds(
            first.rows,
            first.k,
            n,
            first.n,
            dtype(decoded_dtype(first.weight)),
            encoding(if decoded { Encoding::Plain } else { first.weight.encoding }),
            first.out_width,
            sum.output(),
        )
    };
    first.bias.is_none() && first.out_column == 0 && can != 0
}

/// Where an operation stores its output in a 16-bit type.
#[derive(Clone, Copy)]
pub(crate) struct Rounding {
    pub(crate) at: Place,
    pub(crate) dtype: DType,
    /// Whether it is stored nowhere else.
    pub(crate) alone: bool,
}

/// A stream, and the memory that arguments refer to.
#[derive(Clone, Copy)]
pub(crate) struct Launch<'a> {
    pub(crate) memory: &'a Memory,
    pub(crate) stream: &'a RawStream,
    /// Where norms, activation functions and attention store their output in a 16-bit type, if they do.
    pub(crate) rounded: Option<Rounding>,
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

/// Arguments of a launcher, by the name of the operation.
trait Raw {
    type Args;
    fn raw(&self, launch: Launch<'_>) -> Self::Args;
}

/// Defines launches whose arguments have the names of the operation's: addresses of what is read and written, weights
/// with their types, numbers as they are, and the rest by an expression.
macro_rules! launches {
    ($($op:ident: $Args:ident = $launcher:ident($Raw:ident) {
        read [$($read:ident),*], write [$($write:ident),*], weights [$($weight:ident $dtype:ident),*],
        same [$($same:ident),*], $(|$args:ident, $launch:ident| [$($field:ident: $value:expr),*],)?
    })*) => {
        $(impl Raw for args::$Args {
            type Args = sys::$Raw;

            fn raw(&self, launch: Launch<'_>) -> sys::$Raw {
                $(let ($args, $launch) = (self, launch);)?
                sys::$Raw {
                    $($read: launch.memory.resolve(self.$read).input(),)*
                    $($write: launch.memory.resolve(self.$write).output(),)*
                    $($weight: launch.memory.resolve(self.$weight.span).input(), $dtype: dtype(self.$weight.dtype),)*
                    $($same: self.$same,)*
                    $($($field: $value,)*)?
                }
            }
        })*

        impl Launch<'_> {
            $(pub(crate) fn $op(self, args: &args::$Args) -> Result<()> {
                kernel!($launcher, args.raw(self), self.stream)
            })*
        }
    };
}

launches! {
    embed: Embed = djinn_embed(djinn_embed_args) {
        read [tokens], write [out], weights [], same [first_row, table_rows, width, rows],
        |args, launch| [
            table: launch.memory.resolve(args.table.span).input(),
            table_dtype: dtype(decoded_dtype(args.table)),
            encoding: encoding(args.table.encoding),
            row_bytes: row_bytes(args.table, args.table_rows)
        ],
    }
    rope_table: RopeTable = djinn_rope_table(djinn_rope_table_args) {
        read [positions, inv_freq], write [out], weights [], same [half, scale, rows],
    }
    rms_norm: RmsNorm = djinn_rms_norm(djinn_rms_norm_args) {
        read [x], write [out], weights [weight weight_dtype], same [eps, width, rows],
        |_args, launch| [rounded: launch.rounded()],
    }
    layer_norm: LayerNorm = djinn_layer_norm(djinn_layer_norm_args) {
        read [x], write [out], weights [weight weight_dtype, bias bias_dtype], same [eps, width, rows],
    }
    head_norm: HeadNorm = djinn_head_norm(djinn_head_norm_args) {
        read [], write [qkv], weights [query weight_dtype], same [eps, heads, kv_heads, head_dim, rows],
        |args, launch| [key: launch.memory.resolve(args.key.span).input()],
    }
    rope: Rope = djinn_rope(djinn_rope_args) {
        read [table], write [qkv], weights [], same [heads, kv_heads, head_dim, rotary_dim, rows],
        |args, _launch| [style: match args.style {
            RopeStyle::Half => sys::djinn_rope_style_DJINN_ROPE_HALF,
            RopeStyle::Interleaved => sys::djinn_rope_style_DJINN_ROPE_INTERLEAVED,
        }],
    }
    kv_write: KvWrite = djinn_kv_write(djinn_kv_write_args) {
        read [qkv, row_seq, positions], write [], weights [], same [heads, rows],
        |args, launch| [kv: pages(&args.kv, launch.memory)],
    }
    silu_mul: SiluMul = djinn_silu_mul(djinn_silu_mul_args) {
        read [x], write [out], weights [], same [width, rows],
        |_args, launch| [rounded: launch.rounded()],
    }
    gelu: Gelu = djinn_gelu(djinn_gelu_args) {
        read [x], write [out], weights [], same [len],
        |args, _launch| [form: match args.form {
            GeluForm::Erf => sys::djinn_gelu_form_DJINN_GELU_ERF,
            GeluForm::Tanh => sys::djinn_gelu_form_DJINN_GELU_TANH,
        }],
    }
    add: Add = djinn_add(djinn_add_args) {
        read [a, b], write [out], weights [], same [len],
    }
    select_rows: SelectRows = djinn_select_rows(djinn_select_rows_args) {
        read [x, indices], write [out], weights [], same [width, rows],
    }
    edit_rows: EditRows = djinn_edit_rows(djinn_edit_rows_args) {
        read [indices, direction, add], write [x], weights [],
        same [scale, along, low, high, column, width, x_width, rows, add_rows],
    }
    route: Route = djinn_route(djinn_route_args) {
        read [logits], write [weights, ids], weights [], same [experts, top_k, rows],
        |args, _launch| [renormalise: args.renormalise.into()],
    }
    group: Group = djinn_group(djinn_group_args) {
        read [ids], write [order, starts], weights [], same [experts, slots],
        |args, _launch| [cpu: cpu_slots(&args.cpu), of_cpu: args.of_cpu.into()],
    }
    combine: Combine = djinn_combine(djinn_combine_args) {
        read [y, weights], write [out], weights [], same [top_k, width, rows],
        |args, launch| [
            ids: args.ids.map_or(ptr::null(), |ids| launch.memory.resolve(ids).input()),
            cpu_y: args.cpu_y.map_or(ptr::null(), |y| launch.memory.resolve(y).input()),
            cpu: cpu_slots(&args.cpu)
        ],
    }
    choose: Choose = djinn_choose(djinn_choose_args) {
        read [draws, earlier], write [logits, changes, drawn], weights [], same [vocab, rows],
    }
    checksum: Checksum = djinn_checksum(djinn_checksum_args) {
        read [src], write [out], weights [], same [],
        |args, _launch| [bytes: args.src.len()],
    }
}

fn cpu_slots(slots: &CpuSlots) -> sys::djinn_cpu_slots {
    let &CpuSlots { top_k, first, begin, end } = slots;
    sys::djinn_cpu_slots { top_k, first, begin, end }
}

impl Launch<'_> {
    fn rounded(self) -> sys::djinn_rounded {
        match self.rounded {
            Some(to) => {
                sys::djinn_rounded { at: to.at.output(), dtype: dtype(to.dtype), alone: to.alone.into() }
            }
            None => sys::djinn_rounded { at: std::ptr::null_mut(), dtype: dtype(DType::F16), alone: 0 },
        }
    }

    pub(crate) fn add_rms_norm(self, add: &args::Add, norm: &args::RmsNorm) -> Result<()> {
        let raw = sys::djinn_add_rms_norm_args {
            a: self.memory.resolve(add.a).input(),
            b: self.memory.resolve(add.b).input(),
            sum: self.memory.resolve(add.out).output(),
            norm: norm.raw(self),
        };
        kernel!(djinn_add_rms_norm, raw, self.stream)
    }

    pub(crate) fn rope_kv_write(self, rope: &args::Rope, write: &args::KvWrite) -> Result<()> {
        let raw = sys::djinn_rope_kv_write_args { rope: rope.raw(self), write: write.raw(self) };
        kernel!(djinn_rope_kv_write, raw, self.stream)
    }

    pub(crate) fn route_group(self, route: &args::Route, group: &args::Group) -> Result<()> {
        let raw = sys::djinn_route_group_args { route: route.raw(self), group: group.raw(self) };
        kernel!(djinn_route_group, raw, self.stream)
    }

    /// Some rows of a product. `rounded` has these rows of the activations in the weight's type, if [`wants_rounded`]
    /// asks for them; results do not depend on it.
    ///
    /// `tiles` are up to [`TILES`] successive tiles of one weight, with equal numbers of rows except for a smaller last
    /// one; or one tile whose weight lies `decoded` in a workspace. With `gated`, which [`can_gate`] allows, SiLU of the
    /// product's first half times the second is stored instead of the product: as f32 at the first place, if there is
    /// one, and in the weight's type at the second.
    pub(crate) fn linear(
        self,
        tiles: &[Linear],
        rows: Range<u32>,
        rounded: Option<Place>,
        decoded: Option<Place>,
        gated: Option<(Option<Place>, Place)>,
    ) -> Result<()> {
        let raw = sys::djinn_linear_args {
            gated: gated.and_then(|(out, _)| out).map_or(std::ptr::null_mut(), Place::output),
            gated_rounded: gated.map_or(std::ptr::null_mut(), |(_, rounded)| rounded.output()),
            ..self.linear_args(tiles, rows, rounded, decoded)
        };
        kernel!(djinn_linear, raw, self.stream)
    }

    /// Adds a product, which [`can_add`] allows, to `sum` in place. The rest is as for [`linear`](Launch::linear).
    pub(crate) fn linear_add(
        self,
        tiles: &[Linear],
        rounded: Place,
        decoded: Option<Place>,
        sum: Place,
    ) -> Result<()> {
        let args = self.linear_args(tiles, 0..tiles[0].rows, Some(rounded), decoded);
        kernel!(djinn_linear, sys::djinn_linear_args { out: sum.output(), adds: 1, ..args }, self.stream)
    }

    fn linear_args(
        self,
        tiles: &[Linear],
        rows: Range<u32>,
        rounded: Option<Place>,
        decoded: Option<Place>,
    ) -> sys::djinn_linear_args {
        let args = &tiles[0];
        let weights = self.weights(tiles.iter().map(|tile| tile.weight), decoded);
        let (encoding, row_bytes) = how_it_lies(args.weight, args.n, decoded);
        let bias = args.bias.map(|bias| (self.memory.resolve(bias.span).input(), dtype(bias.dtype)));
        let (bias, bias_dtype) = bias.unwrap_or((std::ptr::null(), dtype(DType::F32)));
        let part = |span: Span, width: u32| {
            let row = u64::from(width) * 4;
            let place = self.memory.resolve(span);
            place.slice(u64::from(rows.start) * row, rows.len() as u64 * row)
        };
        sys::djinn_linear_args {
            x: part(args.x, args.k).input(),
            weights,
            bias,
            out: part(args.out, args.out_width).output(),
            rounded: rounded.map_or(std::ptr::null(), Place::input),
            weight_dtype: dtype(decoded_dtype(args.weight)),
            bias_dtype,
            k: args.k,
            n: tiles.iter().map(|tile| tile.n).sum(),
            tile_rows: args.n,
            out_width: args.out_width,
            out_column: args.out_column,
            rows: rows.len() as u32,
            encoding,
            row_bytes,
            fresh: decoded.is_some().into(),
            gated: std::ptr::null_mut(),
            gated_rounded: std::ptr::null_mut(),
            adds: 0,
        }
    }

    /// The addresses of weights, or of the `decoded` rows of the first.
    fn weights<const N: usize>(
        self,
        tiles: impl Iterator<Item = args::Weight>,
        decoded: Option<Place>,
    ) -> [*const c_void; N] {
        let mut weights = [std::ptr::null(); N];
        for (weight, tile) in weights.iter_mut().zip(tiles) {
            *weight = decoded.unwrap_or_else(|| self.memory.resolve(tile.span)).input();
        }
        weights
    }

    /// Decodes `rows` of an encoded weight of `n` rows and `k` columns to `out`, which holds them.
    pub(crate) fn decode(
        self,
        weight: args::Weight,
        [n, k]: [u32; 2],
        rows: Range<u32>,
        out: Place,
    ) -> Result<()> {
        debug_assert_eq!(out.len(), rows.len() as u64 * u64::from(k) * 2);
        let row_bytes = row_bytes(weight, n);
        let bytes = u64::from(row_bytes);
        let encoded = self.memory.resolve(weight.span);
        let encoded = encoded.slice(u64::from(rows.start) * bytes, rows.len() as u64 * bytes);
        let raw = sys::djinn_decode_args {
            encoded: encoded.input(),
            out: out.bytes(),
            encoding: encoding(weight.encoding),
            dtype: dtype(decoded_dtype(weight)),
            k,
            row_bytes,
            rows: rows.len() as u32,
        };
        kernel!(djinn_decode, raw, self.stream)
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

    /// `workspace` is for the partial results of long contexts; results do not depend on it.
    pub(crate) fn attention(self, args: &args::Attention, workspace: Place, counters: Place) -> Result<()> {
        let raw = sys::djinn_attention_args {
            qkv: self.memory.resolve(args.qkv).input(),
            row_seq: self.memory.resolve(args.row_seq).input(),
            positions: self.memory.resolve(args.positions).input(),
            out: self.memory.resolve(args.out).output(),
            workspace: workspace.output(),
            workspace_bytes: workspace.len(),
            counters: counters.output(),
            kv: pages(&args.kv, self.memory),
            heads: args.heads,
            scale: args.scale,
            window: args.window.unwrap_or(0),
            alibi: args.alibi.into(),
            rows: args.rows,
            short_runs: args.short_runs.into(),
            rounded: self.rounded(),
        };
        kernel!(djinn_attention, raw, self.stream)
    }

    /// Products of experts. `workspace` is for rounded activations, if [`wants_rounded`] asks for them; results do not
    /// depend on it. A weight that is one tile may lie `decoded` in a workspace. `settled`: see `djinn.h`.
    pub(crate) fn expert_linear(
        self,
        experts: &Experts,
        workspace: Option<Place>,
        decoded: Option<Place>,
        settled: bool,
    ) -> Result<()> {
        let Experts { products, tiles } = experts;
        let args = &products[0];
        let weights = self.weights(products.iter().map(|product| product.weight), decoded);
        let mut ids = [0; EXPERT_TILES];
        for (id, product) in ids.iter_mut().zip(products.iter().step_by(*tiles)) {
            *id = product.expert;
        }
        let (encoding, row_bytes) = how_it_lies(args.weight, args.n, decoded);
        let linear = sys::djinn_linear_args {
            x: self.memory.resolve(args.x).input(),
            weights: [std::ptr::null(); TILES],
            bias: std::ptr::null(),
            out: self.memory.resolve(args.out).output(),
            rounded: std::ptr::null(),
            weight_dtype: dtype(decoded_dtype(args.weight)),
            bias_dtype: dtype(DType::F32),
            k: args.k,
            n: products[..*tiles].iter().map(|tile| tile.n).sum(),
            tile_rows: args.n,
            out_width: args.out_width,
            out_column: args.out_column,
            rows: args.slots,
            encoding,
            row_bytes,
            fresh: decoded.is_some().into(),
            gated: std::ptr::null_mut(),
            gated_rounded: std::ptr::null_mut(),
            adds: 0,
        };
        let raw = sys::djinn_expert_linear_args {
            linear,
            order: self.memory.resolve(args.order).input(),
            starts: self.memory.resolve(args.starts).input(),
            workspace: workspace.map_or(std::ptr::null_mut(), Place::bytes),
            workspace_bytes: workspace.map_or(0, Place::len),
            weights,
            ids,
            chosen: (products.len() / tiles) as u32,
            experts: (args.starts.len() / 4 - 1) as u32,
            slots_per_row: args.slots_per_row,
            settled: settled.into(),
        };
        kernel!(djinn_expert_linear, raw, self.stream)
    }

    /// Copies of experts, at most [`COPIES`].
    pub(crate) fn copy_experts(self, copies: &[args::CopyExpert]) -> Result<()> {
        let none = sys::djinn_expert_copy {
            src: std::ptr::null(),
            dst: std::ptr::null_mut(),
            moved: std::ptr::null_mut(),
            bytes: 0,
            expert: 0,
        };
        let starts = self.memory.resolve(copies[0].starts).input();
        let mut raw =
            sys::djinn_copy_experts_args { starts, count: copies.len() as u32, copies: [none; COPIES] };
        for (raw, copy) in raw.copies.iter_mut().zip(copies) {
            *raw = sys::djinn_expert_copy {
                src: self.memory.resolve(copy.src).input(),
                dst: self.memory.resolve(copy.dst).bytes(),
                moved: self.memory.resolve(copy.moved).output(),
                bytes: copy.src.len(),
                expert: copy.expert,
            };
        }
        kernel!(djinn_copy_experts, raw, self.stream)
    }

    pub(crate) fn copy(self, src: Place, dst: Place) -> Result<()> {
        let raw = sys::djinn_copy_args { src: src.input(), dst: dst.bytes(), bytes: src.len() };
        kernel!(djinn_copy, raw, self.stream)
    }
}

fn pages(kv: &KvPages, memory: &Memory) -> sys::djinn_kv_pages {
    sys::djinn_kv_pages {
        pages: memory.resolve(kv.pages.slice(kv.offset, kv.pages.len() - kv.offset)).bytes(),
        page_table: memory.resolve(kv.page_table).input(),
        page_bytes: kv.page_bytes,
        dtype: dtype(kv.dtype),
        page_tokens: kv.page_tokens,
        kv_heads: kv.kv_heads,
        head_dim: kv.head_dim,
        table_width: kv.table_width,
    }
}

/// The encoding and the bytes of a stored row, as kernels take them.
fn how_it_lies(weight: args::Weight, n: u32, decoded: Option<Place>) -> (u32, u32) {
    match decoded {
        Some(_) => (sys::djinn_encoding_DJINN_PLAIN, 0),
        None => (encoding(weight.encoding), row_bytes(weight, n)),
    }
}

/// Bytes of a stored row of an encoded weight of `n` rows; 0 for plain ones.
fn row_bytes(weight: args::Weight, n: u32) -> u32 {
    match weight.encoding {
        Encoding::Plain => 0,
        _ => (weight.span.len() / u64::from(n)) as u32,
    }
}

fn encoding(encoding: Encoding) -> u32 {
    match encoding {
        Encoding::Plain => sys::djinn_encoding_DJINN_PLAIN,
        Encoding::Lossless => sys::djinn_encoding_DJINN_LOSSLESS,
        Encoding::Blocks(BlockFormat::Q4_0) => sys::djinn_encoding_DJINN_Q4_0,
        Encoding::Blocks(BlockFormat::Q4_1) => sys::djinn_encoding_DJINN_Q4_1,
        Encoding::Blocks(BlockFormat::Q5_0) => sys::djinn_encoding_DJINN_Q5_0,
        Encoding::Blocks(BlockFormat::Q5_1) => sys::djinn_encoding_DJINN_Q5_1,
        Encoding::Blocks(BlockFormat::Q8_0) => sys::djinn_encoding_DJINN_Q8_0,
        Encoding::Blocks(BlockFormat::Q2_K) => sys::djinn_encoding_DJINN_Q2_K,
        Encoding::Blocks(BlockFormat::Q3_K) => sys::djinn_encoding_DJINN_Q3_K,
        Encoding::Blocks(BlockFormat::Q4_K) => sys::djinn_encoding_DJINN_Q4_K,
        Encoding::Blocks(BlockFormat::Q5_K) => sys::djinn_encoding_DJINN_Q5_K,
        Encoding::Blocks(BlockFormat::Q6_K) => sys::djinn_encoding_DJINN_Q6_K,
        Encoding::Blocks(BlockFormat::IQ4_NL) => sys::djinn_encoding_DJINN_IQ4_NL,
        Encoding::Blocks(BlockFormat::IQ4_XS) => sys::djinn_encoding_DJINN_IQ4_XS,
        Encoding::Blocks(BlockFormat::MXFP4) => sys::djinn_encoding_DJINN_MXFP4,
        Encoding::Blocks(BlockFormat::INT4_G32) => sys::djinn_encoding_DJINN_INT4_G32,
        Encoding::Blocks(BlockFormat::INT4_G128) => sys::djinn_encoding_DJINN_INT4_G128,
        Encoding::Blocks(BlockFormat::FP8_G32) => sys::djinn_encoding_DJINN_FP8_G32,
        Encoding::Blocks(BlockFormat::FP8_G128) => sys::djinn_encoding_DJINN_FP8_G128,
        other => unreachable!("{other} is none of the device's encodings"),
    }
}

fn dtype(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => sys::djinn_dtype_DJINN_F32,
        DType::F16 => sys::djinn_dtype_DJINN_F16,
        DType::BF16 => sys::djinn_dtype_DJINN_BF16,
        DType::Int8 => sys::djinn_dtype_DJINN_INT8,
        DType::U32 => unreachable!("no type of weights or caches"),
    }
}

fn outcome(kernel: &'static str, code: i32) -> Result<()> {
    /// `cudaErrorNoKernelImageForDevice`.
    const NO_CODE: i32 = 209;
    match code {
        0 => return Ok(()),
        NO_CODE => return Err(Error::NoCode),
        _ => {}
    }
    // SAFETY: any code is allowed.
    let text = unsafe { sys::djinn_error_string(code) };
    // SAFETY: the text is static and ends with NUL.
    let text = unsafe { CStr::from_ptr(text) };
    Err(Error::Launch { kernel, code, text: text.to_string_lossy().into_owned() })
}
