//! Every instruction set gives the same bits, and what is rounded is the activations alone.

use super::quantise::narrow;
use super::{ByteIsa, GROUP, RUN, has_integers};
use crate::kernels::Fast;
use crate::kernels::data::Linear;
use crate::kernels::element::{Elements, Matrix};
use crate::kernels::linear::tests::{blocks, noise};
use crate::kernels::simd::Isa;
use djinn_device::BlockFormat;
use half::f16;

fn fast(int8: Option<ByteIsa>, threads: usize) -> Fast {
    Fast { int8, ..Fast::new(Isa::detect(), threads).unwrap() }
}

/// `x` times the transpose of `n` rows of `k` elements in blocks, with a bias, as bits.
fn product(fast: &Fast, x: &[f32], format: BlockFormat, stored: &[u8], k: usize, n: usize) -> Vec<f32> {
    let bias = noise(n, 3);
    let mut out = vec![f32::NAN; x.len() / k * n];
    let (weight, bias) = (Matrix::Blocks(format, stored), Some(Elements::F32(&bias)));
    fast.linear(Linear { x, weight, bias, k, n, out_width: n, out_column: 0, out: &mut out });
    out
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// The size of the difference, as a share of the size of `want`.
fn error(got: &[f32], want: &[f32]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    norm(&mut got.iter().zip(want).map(|(a, b)| a - b)) / norm(&mut want.iter().copied())
}

fn formats() -> impl Iterator<Item = BlockFormat> {
    BlockFormat::ALL.into_iter().filter(|&format| has_integers(format))
}

#[test]
fn all_instruction_sets_give_the_same_bits_for_every_batch() {
    let portable = fast(ByteIsa::available().last().copied(), 1);
    for format in formats() {
        let elements = format.elements() as usize;
        for (rows, blocks_of_row, n) in [(1, 11, 5), (18, 3, 37)] {
            let (k, x) = (blocks_of_row * elements, noise(rows * blocks_of_row * elements, 1));
            let stored = blocks(format, n * blocks_of_row, 7);
            let want = bits(&product(&portable, &x, format, &stored, k, n));
            for isa in ByteIsa::available() {
                let name = isa.name();
                let got = bits(&product(&fast(Some(isa), 3), &x, format, &stored, k, n));
                assert!(got == want, "{name} {format:?} {rows}x{k}x{n}");
                let last = product(&fast(Some(isa), 1), &x[(rows - 1) * k..], format, &stored, k, n);
                assert!(bits(&last) == want[(rows - 1) * n..], "{name} {format:?}: the batch changes bits");
            }
        }
    }
}

#[test]
fn only_activations_are_rounded() {
    for format in formats() {
        let (rows, n, k) = (2, 19, 3 * format.elements() as usize);
        let stored = blocks(format, n * 3, 7);
        let [int8, float] = [Some(ByteIsa::detect()), None].map(|isa| {
            let (fast, stored) = (fast(isa, 1), &stored);
            move |x: &[f32]| product(&fast, x, format, stored, k, n)
        });
        // Any numbers: 8 bits of each run's largest.
        let x = noise(rows * k, 1);
        let rounded = error(&int8(&x), &float(&x));
        assert!((1e-4..1.2e-2).contains(&rounded), "{format:?}: {rounded:e}");
        // Integers that need no rounding.
        let mut x: Vec<f32> = x.iter().map(|x| (x * 127.0).round() / 64.0).collect();
        x.iter_mut().step_by(RUN).for_each(|x| *x = -127.0 / 64.0);
        let exact = error(&int8(&x), &float(&x));
        assert!(exact < 2e-6, "{format:?}: {exact:e}");
    }
}

#[test]
fn products_are_those_of_ggml() {
    // What ggml's own products say, which differ in the order of sums: `scripts/make_quant_dots.py`.
    let mut tested = 0;
    for line in include_str!("ggml.txt").lines() {
        let (name, numbers) = line.split_once(' ').unwrap();
        let format = formats().find(|format| format!("{format:?}") == name).unwrap();
        let want: Vec<f32> = numbers.split(' ').map(|number| number.parse().unwrap()).collect();
        let (k, n) = (2 * GROUP, 4);
        let stored = blocks(format, n * k / format.elements() as usize, 7);
        let mut x = noise(k, 1);
        x.extend_from_within(..);
        x[k..].iter_mut().for_each(|x| *x /= 512.0);
        let mut out = vec![f32::NAN; 2 * n];
        let weight = Matrix::Blocks(format, &stored);
        let op = Linear { x: &x, weight, bias: None, k, n, out_width: n, out_column: 0, out: &mut out };
        fast(Some(ByteIsa::detect()), 1).linear(op);
        for (got, want) in out.chunks(n).zip(want.chunks_exact(n)) {
            assert!(error(got, want) < 1e-6, "{name}: {got:?} instead of {want:?}");
            tested += 1;
        }
    }
    assert_eq!(tested, 2 * 12);
}

#[test]
fn numbers_are_rounded_to_f16() {
    for number in 0..0x7c00 {
        let [low, high] = [number, number + 1].map(|bits| f16::from_bits(bits).to_f32());
        let between = if high.is_finite() { low + (high - low) / 2.0 } else { 65519.0 };
        for x in [low, low.next_up(), between.next_down(), between, between.next_up()] {
            let want = f16::from_f32(x).to_f32();
            let want = if want.is_finite() { want } else { x };
            assert_eq!([narrow(x), narrow(-x)].map(f32::to_bits), [want, -want].map(f32::to_bits), "{x:e}");
        }
    }
    for x in [65519.99, 65520.0, 1e9, f32::MAX, f32::INFINITY] {
        let want = if x < 65520.0 { 65504.0 } else { x };
        assert_eq!([narrow(x), narrow(-x)], [want, -want]);
    }
    assert!(narrow(f32::NAN).is_nan());
}

#[test]
fn scales_beyond_f16_are_kept_in_f32() {
    let (format, k, n) = (BlockFormat::Q4_1, GROUP, 3);
    let stored = blocks(format, n * k / RUN, 7);
    let x = noise(k, 1);
    let large: Vec<f32> = x.iter().map(|x| x * 1e9).collect();
    let [int8, float] =
        [Some(ByteIsa::detect()), None].map(|isa| product(&fast(isa, 1), &large, format, &stored, k, n));
    assert!(error(&int8, &float) < 1.2e-2, "{int8:?} instead of {float:?}");
}

#[test]
fn what_is_not_finite_stays_in_its_row() {
    let (format, k, n) = (BlockFormat::Q4_1, GROUP, 9);
    let stored = blocks(format, n * k / RUN, 7);
    for isa in ByteIsa::available() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = noise(3 * k, 1);
            x[k + 40] = bad;
            let out = product(&fast(Some(isa), 1), &x, format, &stored, k, n);
            for (r, row) in out.chunks(n).enumerate() {
                assert!(row.iter().all(|x| x.is_finite() == (r != 1)), "{} row {r}: {row:?}", isa.name());
            }
        }
        // Zeros, and the smallest numbers.
        for tiny in [0.0, f32::from_bits(1), 1e-39] {
            let out = product(&fast(Some(isa), 1), &vec![tiny; k], format, &stored, k, n);
            assert!(out.iter().all(|x| x.is_finite()));
        }
    }
}
