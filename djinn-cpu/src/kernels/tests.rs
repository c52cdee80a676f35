//! What the conformance suite cannot see, on every instruction set of the machine.
//!
//! Products, and all operations at once, are tested from outside, in `djinn-cpu/tests`: what is called here is compiled
//! a second time.

use super::{Fast, data, element, simd};
use djinn_device::args::CpuSlots;
use element::{Cache, Elements};
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn layer_norms_on_all_instruction_sets() {
    let (rows, width) = (70, 301);
    let x: Vec<f32> = (0..rows * width).map(|i| (i as f32 * 0.37).sin() * 5.0).collect();
    let (weight, bias) = (&x[..width], &x[width..2 * width]);
    let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let want = x.chunks(width).flat_map(|row| {
        let row = wide(row);
        let mean = row.iter().sum::<f64>() / width as f64;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
        let affine = wide(weight).into_iter().zip(wide(bias));
        let scaled = row.into_iter().map(move |x| (x - mean) / (variance + 1e-5_f64).sqrt());
        scaled.zip(affine).map(|(x, (weight, bias))| x * weight + bias)
    });
    let want: Vec<f64> = want.collect();
    for isa in simd::Isa::available() {
        let mut out = vec![f32::NAN; x.len()];
        let [weight, bias] = [weight, bias].map(Elements::F32);
        let op = data::LayerNorm { x: Some(&x), weight, bias, eps: 1e-5, width, out: &mut out };
        Fast::new(isa, 2).unwrap().layer_norm(op);
        let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
        let difference = norm(&mut wide(&out).iter().zip(&want).map(|(a, b)| a - b));
        assert!(difference < 1e-6 * norm(&mut want.iter().copied()), "{}: {difference:e}", isa.name());
    }
}

#[test]
fn checksums_on_all_instruction_sets() {
    let bytes: Vec<u8> = (0..600_000_u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
    for isa in simd::Isa::available() {
        let fast = Fast::new(isa, 2).unwrap();
        for len in [0, 1, 6, bytes.len()] {
            assert_eq!(fast.sum(&bytes[..len]), djinn_device::checksum(&bytes[..len]), "{}", isa.name());
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
        pages: Cache::Plain(Elements::F32(&pages)),
        layout: data::KvLayout {
            page_elements,
            page_tokens,
            first: 0,
            kv_heads,
            head_dim,
            plane_elements: page_tokens * head_dim,
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

/// What a caller must rule out is a panic, not a write elsewhere.
#[test]
fn experts_out_of_range_panic() {
    let fast = Fast::new(simd::Isa::detect(), 2).unwrap();
    let group = |id: u32| {
        fast.group(data::Group {
            ids: &[0, id],
            order: &mut [0; 2],
            starts: &mut [0; 4],
            cpu: CpuSlots::NONE,
            of_cpu: false,
        })
    };
    let panics = |id| catch_unwind(AssertUnwindSafe(|| group(id))).is_err();
    assert!(!panics(2) && panics(3));
}
