//! Generated from kernels/djinn.h by scripts/bindgen.sh; do not edit.

pub const djinn_dtype_DJINN_F32: djinn_dtype = 0;
pub const djinn_dtype_DJINN_F16: djinn_dtype = 1;
pub const djinn_dtype_DJINN_BF16: djinn_dtype = 2;
pub const djinn_dtype_DJINN_INT8: djinn_dtype = 3;
pub type djinn_dtype = ::std::os::raw::c_uint;
pub const djinn_encoding_DJINN_PLAIN: djinn_encoding = 0;
pub const djinn_encoding_DJINN_LOSSLESS: djinn_encoding = 1;
pub const djinn_encoding_DJINN_Q4_0: djinn_encoding = 2;
pub const djinn_encoding_DJINN_Q4_1: djinn_encoding = 3;
pub const djinn_encoding_DJINN_Q5_0: djinn_encoding = 4;
pub const djinn_encoding_DJINN_Q5_1: djinn_encoding = 5;
pub const djinn_encoding_DJINN_Q8_0: djinn_encoding = 6;
pub const djinn_encoding_DJINN_Q2_K: djinn_encoding = 7;
pub const djinn_encoding_DJINN_Q3_K: djinn_encoding = 8;
pub const djinn_encoding_DJINN_Q4_K: djinn_encoding = 9;
pub const djinn_encoding_DJINN_Q5_K: djinn_encoding = 10;
pub const djinn_encoding_DJINN_Q6_K: djinn_encoding = 11;
pub const djinn_encoding_DJINN_IQ4_NL: djinn_encoding = 12;
pub const djinn_encoding_DJINN_IQ4_XS: djinn_encoding = 13;
pub const djinn_encoding_DJINN_MXFP4: djinn_encoding = 14;
pub const djinn_encoding_DJINN_INT4_G32: djinn_encoding = 15;
pub const djinn_encoding_DJINN_INT4_G128: djinn_encoding = 16;
pub const djinn_encoding_DJINN_FP8_G32: djinn_encoding = 17;
pub const djinn_encoding_DJINN_FP8_G128: djinn_encoding = 18;
pub type djinn_encoding = ::std::os::raw::c_uint;
pub const djinn_rope_style_DJINN_ROPE_HALF: djinn_rope_style = 0;
pub const djinn_rope_style_DJINN_ROPE_INTERLEAVED: djinn_rope_style = 1;
pub type djinn_rope_style = ::std::os::raw::c_uint;
pub const djinn_gelu_form_DJINN_GELU_ERF: djinn_gelu_form = 0;
pub const djinn_gelu_form_DJINN_GELU_TANH: djinn_gelu_form = 1;
pub type djinn_gelu_form = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_rounded {
    pub at: *mut ::std::os::raw::c_void,
    pub dtype: u32,
    pub alone: u32,
}
unsafe extern "C" {
    pub fn djinn_error_string(code: ::std::os::raw::c_int) -> *const ::std::os::raw::c_char;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_embed_args {
    pub tokens: *const u32,
    pub table: *const ::std::os::raw::c_void,
    pub out: *mut f32,
    pub table_dtype: u32,
    pub first_row: u32,
    pub table_rows: u32,
    pub width: u32,
    pub rows: u32,
    pub encoding: u32,
    pub row_bytes: u32,
}
unsafe extern "C" {
    pub fn djinn_embed(
        args: *const djinn_embed_args,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_rope_table_args {
    pub positions: *const u32,
    pub inv_freq: *const f32,
    pub out: *mut f32,
    pub half: u32,
    pub scale: f32,
    pub rows: u32,
}
unsafe extern "C" {
    pub fn djinn_rope_table(
        args: *const djinn_rope_table_args,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_rms_norm_args {
    pub x: *const f32,
    pub weight: *const ::std::os::raw::c_void,
    pub out: *mut f32,
    pub weight_dtype: u32,
    pub eps: f32,
    pub width: u32,
    pub rows: u32,
    pub rounded: djinn_rounded,
}
unsafe extern "C" {
    pub fn djinn_rms_norm(
        args: *const djinn_rms_norm_args,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_layer_norm_args {
    pub x: *const f32,
    pub weight: *const ::std::os::raw::c_void,
    pub bias: *const ::std::os::raw::c_void,
    pub out: *mut f32,
    pub weight_dtype: u32,
    pub bias_dtype: u32,
    pub eps: f32,
    pub width: u32,
    pub rows: u32,
}
unsafe extern "C" {
    pub fn djinn_layer_norm(
        args: *const djinn_layer_norm_args,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_add_rms_norm_args {
    pub a: *const f32,
    pub b: *const f32,
    pub sum: *mut f32,
    pub norm: djinn_rms_norm_args,
}
unsafe extern "C" {
    pub fn djinn_add_rms_norm(
        args: *const djinn_add_rms_norm_args,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_head_norm_args {
    pub qkv: *mut f32,
    pub query: *const ::std::os::raw::c_void,
    pub key: *const ::std::os::raw::c_void,
    pub weight_dtype: u32,
    pub eps: f32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub rows: u32,
}
unsafe extern "C" {
    pub fn djinn_head_norm(
        args: *const djinn_head_norm_args,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int;
}
pub const DJINN_LINEAR_ROWS: _bindgen_ty_1 = 256;
pub const DJINN_LINEAR_TILES: _bindgen_ty_1 = 32;
pub const DJINN_EXPERT_TILES: _bindgen_ty_1 = 128;
pub type _bindgen_ty_1 = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_linear_args {
    pub x: *const f32,
    pub weights: [*const ::std::os::raw::c_void; 32usize],
    pub bias: *const ::std::os::raw::c_void,
    pub out: *mut f32,
    pub rounded: *const ::std::os::raw::c_void,
    pub weight_dtype: u32,
    pub bias_dtype: u32,
    pub k: u32,
    pub n: u32,
    pub tile_rows: u32,
    pub out_width: u32,
    pub out_column: u32,
    pub rows: u32,
    pub encoding: u32,
    pub row_bytes: u32,
    pub fresh: u32,
    pub gated: *mut f32,
    pub gated_rounded: *mut ::std::os::raw::c_void,
    pub adds: u32,
}
unsafe extern "C" {
    pub fn djinn_linear(
        args: *const djinn_linear_args,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int;
}
unsafe extern "C" {
    pub fn djinn_linear_gated(rows: u32, k: u32, n: u32, tile_rows: u32, dtype: u32) -> u32;
}
unsafe extern "C" {
    pub fn djinn_linear_adds(
        rows: u32,
        k: u32,
        n: u32,
        tile_rows: u32,
        dtype: u32,
        encoding: u32,
        out_width: u32,
        out: *const f32,
    ) -> u32;
}
unsafe extern "C" {
    pub fn djinn_forget_contexts();
}
unsafe extern "C" {
    pub fn djinn_linear_rows() -> u32;
}
unsafe extern "C" {
    pub fn djinn_linear_rounded(rows: u32, k: u32, weight_dtype: u32, encoding: u32)
    -> ::std::os::raw::c_int;
}
unsafe extern "C" {
    pub fn djinn_linear_direct(encoding: u32, weight_dtype: u32, k: u32, row_bytes: u32) -> u32;
}
unsafe extern "C" {
    pub fn djinn_linear_decodes(
        rows: u32,
        k: u32,
        n: u32,
        tile_rows: u32,
        encoding: u32,
        dtype: u32,
        row_bytes: u32,
    ) -> u32;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_decode_args {
    pub encoded: *const ::std::os::raw::c_void,
    pub out: *mut ::std::os::raw::c_void,
    pub encoding: u32,
    pub dtype: u32,
    pub k: u32,
    pub row_bytes: u32,
    pub rows: u32,
}
unsafe extern "C" {
    pub fn djinn_decode(
        args: *const djinn_decode_args,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_convert_args {
    pub x: *const f32,
    pub out: *mut ::std::os::raw::c_void,
    pub out_dtype: u32,
    pub len: u64,
}
unsafe extern "C" {
    pub fn djinn_convert(
        args: *const djinn_convert_args,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_add_bias_args {
    pub out: *mut f32,
    pub bias: *const ::std::os::raw::c_void,
    pub bias_dtype: u32,
    pub n: u32,
    pub out_width: u32,
    pub out_column: u32,
    pub rows: u32,
}
unsafe extern "C" {
    pub fn djinn_add_bias(
        args: *const djinn_add_bias_args,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_rope_args {
    pub qkv: *mut f32,
    pub table: *const f32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub rotary_dim: u32,
    pub style: u32,
    pub rows: u32,
}
unsafe extern "C" {
    pub fn djinn_rope(
        args: *const djinn_rope_args,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_kv_pages {
    pub pages: *mut ::std::os::raw::c_void,
    pub page_table: *const u32,
    pub page_bytes: u64,
    pub dtype: u32,
    pub page_tokens: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub table_width: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_kv_write_args {
    pub qkv: *const f32,
    pub row_seq: *const u32,
    pub positions: *const u32,
    pub kv: djinn_kv_pages,
    pub heads: u32,
    pub rows: u32,
}
unsafe extern "C" {
    pub fn djinn_kv_write(
        args: *const djinn_kv_write_args,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_rope_kv_write_args {
    pub rope: djinn_rope_args,
    pub write: djinn_kv_write_args,
}
unsafe extern "C" {
    pub fn djinn_rope_kv_write(
        args: *const djinn_rope_kv_write_args,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int;
}
pub const DJINN_PREFILL_RUN: _bindgen_ty_2 = 32;
pub const DJINN_ATTENTION_COUNTERS: _bindgen_ty_2 = 16384;
pub const DJINN_MOST_HEAD_DIM: _bindgen_ty_2 = 256;
pub type _bindgen_ty_2 = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_attention_args {
    pub qkv: *const f32,
    pub row_seq: *const u32,
    pub positions: *const u32,
    pub out: *mut f32,
    pub workspace: *mut f32,
    pub workspace_bytes: u64,
    pub counters: *mut u32,
    pub kv: djinn_kv_pages,
    pub heads: u32,
    pub scale: f32,
    pub window: u32,
    pub alibi: u32,
    pub rows: u32,
    pub short_runs: u32,
    pub rounded: djinn_rounded,
}
unsafe extern "C" {
    pub fn djinn_attention(
        args: *const djinn_attention_args,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_silu_mul_args {
    pub x: *const f32,
    pub out: *mut f32,
    pub width: u32,
    pub rows: u32,
    pub rounded: djinn_rounded,
}
unsafe extern "C" {
    pub fn djinn_silu_mul(
        args: *const djinn_silu_mul_args,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_gelu_args {
    pub x: *const f32,
    pub out: *mut f32,
    pub form: u32,
    pub len: u64,
}
unsafe extern "C" {
    pub fn djinn_gelu(
        args: *const djinn_gelu_args,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_add_args {
    pub a: *const f32,
    pub b: *const f32,
    pub out: *mut f32,
    pub len: u64,
}
unsafe extern "C" {
    pub fn djinn_add(
        args: *const djinn_add_args,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_select_rows_args {
    pub x: *const f32,
    pub indices: *const u32,
    pub out: *mut f32,
    pub width: u32,
    pub rows: u32,
}
unsafe extern "C" {
    pub fn djinn_select_rows(
        args: *const djinn_select_rows_args,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_edit_rows_args {
    pub x: *mut f32,
    pub indices: *const u32,
    pub direction: *const f32,
    pub add: *const f32,
    pub scale: f32,
    pub along: f32,
    pub low: f32,
    pub high: f32,
    pub column: u32,
    pub width: u32,
    pub x_width: u32,
    pub rows: u32,
    pub add_rows: u32,
}
unsafe extern "C" {
    pub fn djinn_edit_rows(
        args: *const djinn_edit_rows_args,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_route_args {
    pub logits: *const f32,
    pub weights: *mut f32,
    pub ids: *mut u32,
    pub experts: u32,
    pub top_k: u32,
    pub renormalise: u32,
    pub rows: u32,
}
unsafe extern "C" {
    pub fn djinn_route(
        args: *const djinn_route_args,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_cpu_slots {
    pub top_k: u32,
    pub first: u32,
    pub begin: u32,
    pub end: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_group_args {
    pub ids: *const u32,
    pub order: *mut u32,
    pub starts: *mut u32,
    pub experts: u32,
    pub slots: u32,
    pub cpu: djinn_cpu_slots,
    pub of_cpu: u32,
}
unsafe extern "C" {
    pub fn djinn_group(
        args: *const djinn_group_args,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_route_group_args {
    pub route: djinn_route_args,
    pub group: djinn_group_args,
}
unsafe extern "C" {
    pub fn djinn_route_group(
        args: *const djinn_route_group_args,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_expert_linear_args {
    pub linear: djinn_linear_args,
    pub order: *const u32,
    pub starts: *const u32,
    pub workspace: *mut ::std::os::raw::c_void,
    pub workspace_bytes: u64,
    pub weights: [*const ::std::os::raw::c_void; 128usize],
    pub ids: [u32; 128usize],
    pub chosen: u32,
    pub experts: u32,
    pub slots_per_row: u32,
    pub settled: u32,
}
unsafe extern "C" {
    pub fn djinn_expert_linear(
        args: *const djinn_expert_linear_args,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_combine_args {
    pub y: *const f32,
    pub weights: *const f32,
    pub ids: *const u32,
    pub cpu_y: *const f32,
    pub cpu: djinn_cpu_slots,
    pub out: *mut f32,
    pub top_k: u32,
    pub width: u32,
    pub rows: u32,
}
unsafe extern "C" {
    pub fn djinn_combine(
        args: *const djinn_combine_args,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_choose_args {
    pub logits: *mut f32,
    pub draws: *const u32,
    pub changes: *mut u32,
    pub earlier: *const u32,
    pub drawn: *mut u32,
    pub vocab: u32,
    pub rows: u32,
}
unsafe extern "C" {
    pub fn djinn_choose(
        args: *const djinn_choose_args,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_copy_args {
    pub src: *const ::std::os::raw::c_void,
    pub dst: *mut ::std::os::raw::c_void,
    pub bytes: u64,
}
unsafe extern "C" {
    pub fn djinn_copy(
        args: *const djinn_copy_args,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int;
}
pub const DJINN_COPIES: _bindgen_ty_3 = 64;
pub type _bindgen_ty_3 = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_expert_copy {
    pub src: *const ::std::os::raw::c_void,
    pub dst: *mut ::std::os::raw::c_void,
    pub moved: *mut u32,
    pub bytes: u64,
    pub expert: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_copy_experts_args {
    pub starts: *const u32,
    pub count: u32,
    pub copies: [djinn_expert_copy; 64usize],
}
unsafe extern "C" {
    pub fn djinn_copy_experts(
        args: *const djinn_copy_experts_args,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct djinn_checksum_args {
    pub src: *const ::std::os::raw::c_void,
    pub out: *mut u64,
    pub bytes: u64,
}
unsafe extern "C" {
    pub fn djinn_checksum(
        args: *const djinn_checksum_args,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int;
}
