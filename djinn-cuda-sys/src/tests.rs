//! The bindings are those of the header, and the launchers answer.

/// Refused before anything is launched, so that these hold with and without a driver.
#[cfg(feature = "cuda")]
mod launchers {
    #![allow(unsafe_code, reason = "calls launchers")]

    use crate::{djinn_attention_args, djinn_convert_args, djinn_kv_pages};
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
            layer: 0,
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
            kv,
            heads: 4,
            scale: 1.0,
            window: 0,
            alibi: 0,
            rows,
            exact: 0,
        }
    }

    #[test]
    fn an_unknown_type_is_refused() {
        let convert = djinn_convert_args { x: null(), out: null_mut(), out_dtype: 7, len: 1 };
        // SAFETY: no kernel serves the type, so nothing is read.
        let code = unsafe { crate::djinn_convert(&convert, null_mut()) };
        assert_eq!(code, INVALID_VALUE);
        // SAFETY: as above.
        let code = unsafe { crate::djinn_attention(&attention(1, 64), null_mut()) };
        assert_eq!(code, INVALID_VALUE);
        // SAFETY: any code is allowed.
        let text = unsafe { crate::djinn_error_string(code) };
        // SAFETY: the text is static and ends with NUL.
        assert_eq!(unsafe { CStr::from_ptr(text) }, c"invalid argument");
    }

    #[test]
    fn the_workspace_holds_every_split_of_every_row() {
        // SAFETY: pointers are not read.
        let bytes = |rows| unsafe { crate::djinn_attention_workspace(&attention(rows, 64)) };
        // 1600 positions are 7 splits of 256; each keeps a maximum, a sum and a vector for each head.
        assert_eq!(bytes(1), 7 * 4 * (64 + 2) * 4);
        assert_eq!(bytes(64), 64 * bytes(1));
        assert_eq!(bytes(500), bytes(64));
        // 258 positions touch three splits where the first is the last of one; a single one needs no workspace.
        let windowed = |window| djinn_attention_args { window, ..attention(1, 64) };
        // SAFETY: as above.
        let bytes = |window| unsafe { crate::djinn_attention_workspace(&windowed(window)) };
        assert_eq!(bytes(257), 2 * 4 * (64 + 2) * 4);
        assert_eq!(bytes(258), 3 * 4 * (64 + 2) * 4);
        assert_eq!((bytes(1), bytes(100_000)), (0, 7 * 4 * (64 + 2) * 4));
    }
}

/// FNV-1a of the header that the bindings were made from; `scripts/bindgen.sh` writes it.
const HEADER: &str = include_str!("header.hash");

fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ b as u64).wrapping_mul(0x0100_0000_01b3))
}

#[test]
fn bindings_are_those_of_the_header() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/djinn.h");
    let header = std::fs::read_to_string(path).expect("the header lies beside the kernels");
    let found = format!("{:016x}", hash(&header));
    assert_eq!(found, HEADER.trim(), "kernels/djinn.h changed: run scripts/bindgen.sh");
}
