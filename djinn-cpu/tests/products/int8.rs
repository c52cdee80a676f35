//! Products with activations of 8 bits: every instruction set gives the same bits, and what is rounded is the activations
//! alone.

use super::{Rig, Stored, bits, error, noise, padded};
use djinn_cpu::Math;
use djinn_device::{BlockFormat, DType, Encoding};

/// Elements of a run of activations.
const RUN: usize = 32;
/// Elements that are unpacked at once.
const GROUP: usize = 256;

/// Formats whose weights are integers.
fn formats() -> impl Iterator<Item = BlockFormat> {
    let is_float = |format| matches!(format, BlockFormat::FP8_G32 | BlockFormat::FP8_G128);
    BlockFormat::ALL.into_iter().filter(move |&format| !is_float(format))
}

/// `n` rows of `k` elements in blocks that look random.
fn matrix(format: BlockFormat, [k, n]: [usize; 2]) -> Vec<u8> {
    padded(format, &super::blocks(format, n * k / format.elements() as usize, 7), k)
}

fn stored(format: BlockFormat, blocks: &[u8]) -> Stored<'_> {
    Stored(Encoding::Blocks(format), DType::F32, blocks)
}

/// With activations rounded, and without.
fn both() -> [Rig; 2] {
    [Math::Int8, Math::Fast].map(|math| Rig::new(math, None, 1))
}

#[test]
fn all_instruction_sets_give_the_same_bits_for_every_batch() {
    let sets = Math::Int8.instruction_sets();
    let rigs = |threads| sets.iter().map(move |&set| (set, Rig::new(Math::Int8, Some(set), threads)));
    let (alone, many): (Vec<_>, Vec<_>) = (rigs(1).collect(), rigs(3).collect());
    let (_, portable) = alone.last().unwrap();
    for format in formats() {
        let elements = format.elements() as usize;
        for (rows, blocks_of_row, n) in [(1, 11, 5), (18, 3, 37)] {
            let (k, x) = (blocks_of_row * elements, noise(rows * blocks_of_row * elements, 1));
            let (blocks, bias) = (matrix(format, [k, n]), noise(n, 3));
            let product = |rig: &Rig, x| bits(&rig.product(x, stored(format, &blocks), Some(&bias), [k, n]));
            let want = product(portable, &x);
            for ((set, alone), (_, many)) in alone.iter().zip(&many) {
                assert!(product(many, &x) == want, "{set} {format:?} {rows}x{k}x{n}");
                let last = product(alone, &x[(rows - 1) * k..]);
                assert!(last == want[(rows - 1) * n..], "{set} {format:?}: the batch changes bits");
            }
        }
    }
}

#[test]
fn only_activations_are_rounded() {
    let rigs = both();
    for format in formats() {
        let (rows, n, k) = (2, 19, 3 * format.elements() as usize);
        let (blocks, bias) = (matrix(format, [k, n]), noise(n, 3));
        let products = |x: &[f32]| {
            rigs.each_ref().map(|rig| rig.product(x, stored(format, &blocks), Some(&bias), [k, n]))
        };
        // Any numbers: 8 bits of each run's largest.
        let x = noise(rows * k, 1);
        let [int8, float] = products(&x);
        let rounded = error(&int8, &float);
        assert!((1e-4..1.2e-2).contains(&rounded), "{format:?}: {rounded:e}");
        // Integers that need no rounding.
        let mut x: Vec<f32> = x.iter().map(|x| (x * 127.0).round() / 64.0).collect();
        x.iter_mut().step_by(RUN).for_each(|x| *x = -127.0 / 64.0);
        let [int8, float] = products(&x);
        let exact = error(&int8, &float);
        assert!(exact < 2e-6, "{format:?}: {exact:e}");
    }
}

#[test]
fn products_are_those_of_ggml() {
    // What ggml's own products say, which differ in the order of sums: `scripts/make_quant_dots.py`.
    let (mut tested, [rig, _]) = (0, both());
    for line in include_str!("ggml.txt").lines() {
        let (name, numbers) = line.split_once(' ').unwrap();
        let format = formats().find(|format| format!("{format:?}") == name).unwrap();
        let want: Vec<f32> = numbers.split(' ').map(|number| number.parse().unwrap()).collect();
        let (k, n) = (2 * GROUP, 4);
        let blocks = matrix(format, [k, n]);
        let mut x = noise(k, 1);
        x.extend_from_within(..);
        x[k..].iter_mut().for_each(|x| *x /= 512.0);
        let out = rig.product(&x, stored(format, &blocks), None, [k, n]);
        for (got, want) in out.chunks(n).zip(want.chunks_exact(n)) {
            assert!(error(got, want) < 1e-6, "{name}: {got:?} instead of {want:?}");
            tested += 1;
        }
    }
    assert_eq!(tested, 2 * 12);
}

#[test]
fn scales_beyond_f16_are_kept_in_f32() {
    let (format, k, n) = (BlockFormat::Q4_1, GROUP, 3);
    let (blocks, bias) = (matrix(format, [k, n]), noise(n, 3));
    let large: Vec<f32> = noise(k, 1).iter().map(|x| x * 1e9).collect();
    let [int8, float] = both().map(|rig| rig.product(&large, stored(format, &blocks), Some(&bias), [k, n]));
    assert!(error(&int8, &float) < 1.2e-2, "{int8:?} instead of {float:?}");
}

#[test]
fn what_is_not_finite_stays_in_its_row() {
    let (format, k, n) = (BlockFormat::Q4_1, GROUP, 9);
    let (blocks, bias) = (matrix(format, [k, n]), noise(n, 3));
    for set in Math::Int8.instruction_sets() {
        let rig = Rig::new(Math::Int8, Some(set), 1);
        let product = |x: &[f32]| rig.product(x, stored(format, &blocks), Some(&bias), [k, n]);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = noise(3 * k, 1);
            x[k + 40] = bad;
            let out = product(&x);
            for (r, row) in out.chunks(n).enumerate() {
                assert!(row.iter().all(|x| x.is_finite() == (r != 1)), "{set} row {r}: {row:?}");
            }
        }
        // Zeros, and the smallest numbers.
        for tiny in [0.0, f32::from_bits(1), 1e-39] {
            let out = product(&vec![tiny; k]);
            assert!(out.iter().all(|x| x.is_finite()));
        }
    }
}
