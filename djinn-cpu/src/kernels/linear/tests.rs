//! Every instruction set, and that neither threads nor cuts change a bit.

use crate::kernels::Fast;
use crate::kernels::data::Linear;
use crate::kernels::element::{Element, Elements, Matrix};
use crate::kernels::simd::Isa;
use djinn_device::BlockFormat;
use half::{bf16, f16};

/// Numbers in -1..1 that look random.
pub(crate) fn noise(len: usize, seed: u32) -> Vec<f32> {
    let next = |state: &u32| Some(state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    std::iter::successors(next(&seed), next)
        .map(|x| (x >> 8) as f32 / (1 << 23) as f32 - 1.0)
        .take(len)
        .collect()
}

fn product(run: impl Fn(Linear<'_>), x: &[f32], weight: Matrix<'_>, k: usize, n: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.len() / k * n];
    run(Linear { x, weight, bias: None, k, n, out_width: n, out_column: 0, out: &mut out });
    out
}

fn check<E: Element>(wrap: for<'a> fn(&'a [E]) -> Elements<'a>) {
    for isa in Isa::available() {
        let fast = Fast::new(isa, 3).unwrap();
        let alone = Fast::new(isa, 1).unwrap();
        // The last does not fit one block of activations.
        for (rows, k, n) in [(1, 1, 1), (5, 33, 6), (13, 100, 33), (7, 577, 130), (200, 1030, 9)] {
            let x = noise(rows * k, 1);
            let weight: Vec<E> = noise(n * k, 2).into_iter().map(E::narrow).collect();
            let stored = Matrix::Plain(wrap(&weight));
            let got = product(|op| fast.linear(op), &x, stored, k, n);
            let want: Vec<f32> = x
                .chunks(k)
                .flat_map(|x| {
                    let dot =
                        |w: &[E]| x.iter().zip(w).map(|(&x, w)| f64::from(x) * f64::from(w.widen())).sum();
                    weight.chunks(k).map(move |w| {
                        let sum: f64 = dot(w);
                        sum as f32
                    })
                })
                .collect();
            let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
            let error =
                norm(&mut got.iter().zip(&want).map(|(a, b)| a - b)) / norm(&mut want.iter().copied());
            assert!(error < 1e-6, "{} {rows}x{k}x{n}: {error:e}", isa.name());
            assert!(got == product(|op| alone.linear(op), &x, stored, k, n), "threads change bits");
            let last = product(|op| alone.linear(op), &x[(rows - 1) * k..], stored, k, n);
            assert!(got[(rows - 1) * n..] == last, "the batch changes bits");
        }
    }
}

#[test]
fn all_instruction_sets_match_the_reference() {
    check::<f32>(|w| Elements::F32(w));
    check::<f16>(|w| Elements::F16(w));
    check::<bf16>(|w| Elements::BF16(w));
}

/// Blocks of any bytes, with scales that are numbers of usual size.
pub(crate) fn blocks(format: BlockFormat, count: usize, seed: u32) -> Vec<u8> {
    let bytes = format.bytes() as usize;
    let mut blocks: Vec<u8> = noise(count * bytes, seed).iter().map(|x| (x * 128.0) as i8 as u8).collect();
    let scales = noise(count * 2, seed + 1);
    for (block, scales) in blocks.chunks_mut(bytes).zip(scales.chunks(2)) {
        let mut scales = scales.iter();
        format.set_scales(block, || scales.next().expect("a block has two scales at most") / 64.0);
    }
    blocks
}

#[test]
fn rows_in_blocks_have_the_bits_of_decoded_ones() {
    for isa in Isa::available() {
        let fast = Fast::new(isa, 3).unwrap();
        for format in BlockFormat::ALL {
            let elements = format.elements() as usize;
            for (rows, blocks_of_row, n) in [(1, 3, 37), (1, 11, 5), (7, 1, 6), (64, 11, 9), (200, 5, 5)] {
                let k = blocks_of_row * elements;
                let stored = blocks(format, n * blocks_of_row, 7);
                let mut decoded = vec![0.0; n * k];
                format.decode(&stored, &mut decoded);
                let x = noise(rows * k, 1);
                let got = product(|op| fast.linear(op), &x, Matrix::Blocks(format, &stored), k, n);
                let decoded = Matrix::Plain(Elements::F32(&decoded));
                let want = product(|op| fast.linear(op), &x, decoded, k, n);
                let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert!(want.iter().all(|x| x.is_finite()));
                assert!(bits(&got) == bits(&want), "{} {rows}x{k}x{n} {format:?}", isa.name());
            }
        }
    }
}
