//! The conformance suite on every instruction set of the machine is in `tests/`; here is what it cannot see.

use super::{Fast, Kernels, Math, data, element, reference, simd};
use element::Elements;
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn names_say_what_computes() {
    let name = |math, threads| Kernels::new(math, threads).unwrap().name();
    assert_eq!(name(Math::Reference, 4), "scalar reference, 1 thread");
    assert!(name(Math::Fast, 1).starts_with("1 thread, "));
    assert!(name(Math::Fast, 2).starts_with("2 threads, "));
    let all = std::thread::available_parallelism().unwrap().get();
    assert!(name(Math::Fast, 0).starts_with(&format!("{all} thread")));
}

/// The norm of the difference over that of the reference.
fn error(got: &[f32], want: &[f32]) -> f64 {
    let sum = |x: Vec<f32>| x.into_iter().map(|x| f64::from(x).powi(2)).sum::<f64>();
    let difference = got.iter().zip(want).map(|(a, b)| a - b).collect();
    (sum(difference) / sum(want.to_vec())).sqrt()
}

/// Some rows that are activated, by any arithmetic.
fn silu(x: &[f32], width: usize, run: impl Fn(data::SiluMul<'_>)) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.len() / 2];
    run(data::SiluMul { x, width, out: &mut out });
    out
}

/// Some rows that are normalised, by any arithmetic.
fn norm(x: &[f32], width: usize, run: impl Fn(data::RmsNorm<'_>)) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.len()];
    let weight = Elements::F32(&x[..width]);
    run(data::RmsNorm { x: Some(x), weight, eps: 1e-5, width, out: &mut out });
    out
}

/// Some elements through GELU, by any arithmetic.
fn gelu(x: &[f32], form: crate::Gelu, run: impl Fn(data::Gelu<'_>)) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.len()];
    run(data::Gelu { x: Some(x), form, out: &mut out });
    out
}

/// Some rows that are centred and normalised, by any arithmetic.
fn centre(x: &[f32], width: usize, run: impl Fn(data::LayerNorm<'_>)) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.len()];
    let (weight, bias) = (Elements::F32(&x[..width]), Elements::F32(&x[width..2 * width]));
    run(data::LayerNorm { x: Some(x), weight, bias, eps: 1e-5, width, out: &mut out });
    out
}

#[test]
fn row_operations_on_all_instruction_sets() {
    let (rows, width) = (70, 301);
    let x: Vec<f32> = (0..rows * 2 * width).map(|i| (i as f32 * 0.37).sin() * 5.0).collect();
    for isa in simd::Isa::available() {
        let fast = Fast::new(isa, 2).unwrap();
        let got = silu(&x, width, |op| fast.silu_mul(op));
        assert!(error(&got, &silu(&x, width, reference::silu_mul)) < 1e-6, "{}", isa.name());
        for form in [crate::Gelu::Erf, crate::Gelu::Tanh] {
            let got = gelu(&x, form, |op| fast.gelu(op));
            let want = gelu(&x, form, reference::gelu);
            let worst = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-6, "{} {form:?}: {worst:e}", isa.name());
        }
        let got = centre(&x, width, |op| fast.layer_norm(op));
        assert!(error(&got, &centre(&x, width, reference::layer_norm)) < 1e-6, "{}", isa.name());
        let got = norm(&x, width, |op| fast.rms_norm(op));
        assert!(error(&got, &norm(&x, width, reference::rms_norm)) < 1e-6, "{}", isa.name());
        let bytes = bytemuck::cast_slice::<f32, u8>(&x);
        for len in [0, 1, 6, bytes.len()] {
            assert_eq!(fast.checksum(&bytes[..len]), reference::checksum(&bytes[..len]));
        }
    }
}

/// A prefill of 100 rows, by any arithmetic.
fn attention(window: Option<usize>, alibi: bool, run: impl Fn(data::Attention<'_>)) -> Vec<f32> {
    let (heads, kv_heads, head_dim, page_tokens, rows) = (6, 2, 24, 8, 100);
    let page_table: Vec<u32> = (0..13).rev().collect();
    let page_elements = 2 * kv_heads * page_tokens * head_dim;
    let values = |n: usize| (0..n).map(|i| (i as f32 * 0.731).sin() * 3.0).collect::<Vec<f32>>();
    let (pages, qkv) = (values(13 * page_elements), values(rows * (heads + 2 * kv_heads) * head_dim));
    let positions: Vec<u32> = (0..rows as u32).collect();
    let mut out = vec![f32::NAN; rows * heads * head_dim];
    run(data::Attention {
        qkv: &qkv,
        pages: Elements::F32(&pages),
        layout: data::KvLayout {
            page_elements,
            page_tokens,
            layer: 0,
            kv_heads,
            head_dim,
            page_table: &page_table,
            table_width: 13,
        },
        row_seq: &vec![0; rows],
        positions: &positions,
        heads,
        scale: 0.4,
        window,
        alibi,
        out: &mut out,
    });
    out
}

#[test]
fn attention_on_all_instruction_sets() {
    for (window, alibi) in
        [(None, false), (Some(1), false), (Some(37), false), (Some(64), true), (None, true)]
    {
        let want = attention(window, alibi, reference::attention);
        for isa in simd::Isa::available() {
            for threads in [1, 2] {
                let fast = Fast::new(isa, threads).unwrap();
                let error = error(&attention(window, alibi, |op| fast.attention(op)), &want);
                assert!(error < 1e-6, "{} {window:?} {alibi}: {error:e}", isa.name());
            }
        }
    }
}

#[test]
fn a_window_that_hides_nothing_changes_nothing() {
    for isa in simd::Isa::available() {
        let fast = Fast::new(isa, 2).unwrap();
        for alibi in [false, true] {
            let run = |window| attention(window, alibi, |op| fast.attention(op));
            let bits = |x: Vec<f32>| x.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            let (all, windowed) = (bits(run(None)), bits(run(Some(60))));
            assert_eq!(bits(run(Some(100))), all, "{}", isa.name());
            // Heads of 24, six in a row: rows up to the 60th see everything.
            assert_eq!(windowed[..60 * 144], all[..60 * 144], "{}", isa.name());
            assert_ne!(windowed[60 * 144..61 * 144], all[60 * 144..61 * 144], "{}", isa.name());
        }
    }
}

/// What a caller must rule out is a panic on both paths, not a write elsewhere.
#[test]
fn pages_and_experts_out_of_range_panic() {
    let fast = Fast::new(simd::Isa::detect(), 2).unwrap();
    let copy = |src_page: u32, dst_page: u32, run: &dyn Fn(data::CopyPages<'_>)| {
        let mut dst = [0; 64];
        run(data::CopyPages {
            src: &[1; 64],
            dst: &mut dst,
            src_pages: Some(&[src_page]),
            dst_pages: Some(&[dst_page]),
            page_bytes: 16,
            count: 1,
        });
    };
    let group = |id: u32, run: &dyn Fn(data::Group<'_>)| {
        run(data::Group { ids: &[0, id], order: &mut [0; 2], starts: &mut [0; 4] });
    };
    let panics = |work: &dyn Fn()| catch_unwind(AssertUnwindSafe(work)).is_err();
    let copies: [&dyn Fn(data::CopyPages<'_>); 2] = [&reference::copy_pages, &|op| fast.copy_pages(op)];
    for run in copies {
        assert!(!panics(&|| copy(3, 3, run)));
        assert!(panics(&|| copy(4, 3, run)) && panics(&|| copy(3, 4, run)));
    }
    let groups: [&dyn Fn(data::Group<'_>); 2] = [&reference::routing::group, &|op| fast.group(op)];
    for run in groups {
        assert!(!panics(&|| group(2, run)));
        assert!(panics(&|| group(3, run)));
    }
}
