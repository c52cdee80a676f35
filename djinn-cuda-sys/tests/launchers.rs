//! Launchers refuse what they do not serve before anything is launched, so with and without a driver.
#![cfg(any(feature = "cuda", feature = "cuda-12040"))]
#![allow(unsafe_code, reason = "calls launchers")]

use djinn_cuda_sys::{
    DJINN_COPIES, DJINN_EXPERT_TILES, djinn_attention_args, djinn_convert_args, djinn_copy_experts_args,
    djinn_expert_linear_args, djinn_kv_pages, djinn_linear_args, djinn_rounded,
};
use std::ffi::CStr;
use std::ptr::{null, null_mut};

const INVALID_VALUE: i32 = 1;

fn attention(rows: u32, head_dim: u32) -> djinn_attention_args {
    let kv = djinn_kv_pages {
        pages: null_mut(),
        page_table: null(),
        page_bytes: 0,
        dtype: 7,
        page_tokens: 16,
        kv_heads: 2,
        head_dim,
        table_width: 100,
    };
    djinn_attention_args {
        qkv: null(),
        row_seq: null(),
        positions: null(),
        out: null_mut(),
        workspace: null_mut(),
        workspace_bytes: 0,
        counters: null_mut(),
        kv,
        heads: 4,
        scale: 1.0,
        window: 0,
        alibi: 0,
        rows,
        short_runs: 0,
        rounded: djinn_rounded { at: null_mut(), dtype: 0, alone: 0 },
    }
}

#[test]
fn an_unknown_type_is_refused() {
    let convert = djinn_convert_args { x: null(), out: null_mut(), out_dtype: 7, len: 1 };
    // SAFETY: no kernel serves the type, so nothing is read.
    let code = unsafe { djinn_cuda_sys::djinn_convert(&convert, null_mut()) };
    assert_eq!(code, INVALID_VALUE);
    // SAFETY: as above.
    let code = unsafe { djinn_cuda_sys::djinn_attention(&attention(1, 64), null_mut()) };
    assert_eq!(code, INVALID_VALUE);
    // SAFETY: any code is allowed.
    let text = unsafe { djinn_cuda_sys::djinn_error_string(code) };
    // SAFETY: the text is static and ends with NUL.
    assert_eq!(unsafe { CStr::from_ptr(text) }, c"invalid argument");
}

#[test]
fn copies_that_no_launch_takes_are_refused() {
    // SAFETY: all fields are numbers and pointers, which may be null.
    let none: djinn_copy_experts_args = unsafe { std::mem::zeroed() };
    for count in [0, DJINN_COPIES + 1, u32::MAX] {
        let copies = djinn_copy_experts_args { count, ..none };
        // SAFETY: nothing is launched, so nothing is read.
        let code = unsafe { djinn_cuda_sys::djinn_copy_experts(&copies, null_mut()) };
        assert_eq!(code, INVALID_VALUE, "{count} copies");
    }
}

#[test]
fn experts_that_no_launch_takes_are_refused() {
    const TILES: u32 = DJINN_EXPERT_TILES;
    // SAFETY: all fields are numbers and pointers, which may be null.
    let none: djinn_expert_linear_args = unsafe { std::mem::zeroed() };
    let linear = djinn_linear_args { k: 64, n: 40, tile_rows: 16, rows: 4, out_width: 40, ..none.linear };
    // Three tiles of each expert.
    let good = djinn_expert_linear_args { linear, chosen: 1, experts: 64, slots_per_row: 2, ..none };
    let with = |linear| djinn_expert_linear_args { linear, ..good };
    let bias = [0f32; 40];
    let wrong = [
        djinn_expert_linear_args { chosen: 0, ..good },
        djinn_expert_linear_args { chosen: TILES / 3 + 1, ..good },
        djinn_expert_linear_args { chosen: u32::MAX, ..good },
        djinn_expert_linear_args { experts: 0, ..good },
        djinn_expert_linear_args { slots_per_row: 0, ..good },
        with(djinn_linear_args { n: 0, ..linear }),
        with(djinn_linear_args { rows: 0, ..linear }),
        with(djinn_linear_args { tile_rows: 0, ..linear }),
        with(djinn_linear_args { tile_rows: 1, ..linear }),
        with(djinn_linear_args { rows: u32::MAX, ..linear }),
        with(djinn_linear_args { bias: bias.as_ptr().cast(), ..linear }),
    ];
    for args in wrong {
        // SAFETY: the sizes are refused, so nothing is read.
        let code = unsafe { djinn_cuda_sys::djinn_expert_linear(&args, null_mut()) };
        assert_eq!(code, INVALID_VALUE, "{args:?}");
    }
}
