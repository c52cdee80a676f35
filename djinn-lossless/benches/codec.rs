//! Both directions of the lossless encoding on one core, in bytes of plain values.

use divan::Bencher;
use divan::counter::BytesCount;
use djinn_lossless::{LosslessRow, SixteenBit};
use std::hint::black_box;

const COLUMNS: usize = 4096;
const ROWS: usize = 256;

/// Sums of four uniform numbers, near a normal distribution: weights as training leaves them.
fn weights() -> Vec<u8> {
    let mut state = 1u64;
    let mut uniform = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    let mut value = move || (uniform() + uniform() + uniform() + uniform()) * 0.04;
    (0..ROWS * COLUMNS).flat_map(|_| ((value().to_bits() >> 16) as u16).to_le_bytes()).collect()
}

fn encode_into(row: LosslessRow, plain: &[u8], packed: &mut [u8]) -> bool {
    let rows = plain.chunks_exact(COLUMNS * 2).zip(packed.chunks_exact_mut(row.bytes()));
    rows.fold(true, |all, (plain, packed)| all & row.encode(SixteenBit::BF16, plain, packed))
}

/// The form of a row, plain weights, and the same encoded.
fn encoded() -> (LosslessRow, Vec<u8>, Vec<u8>) {
    let row = LosslessRow::new(COLUMNS).expect("a row");
    let plain = weights();
    let mut packed = vec![0; ROWS * row.bytes()];
    assert!(encode_into(row, &plain, &mut packed), "the weights are encoded");
    (row, plain, packed)
}

#[divan::bench]
fn encode(bencher: Bencher<'_, '_>) {
    let (row, plain, mut packed) = encoded();
    bencher
        .counter(BytesCount::new(plain.len()))
        .bench_local(|| encode_into(row, black_box(&plain), &mut packed));
}

#[divan::bench]
fn decode(bencher: Bencher<'_, '_>) {
    let (row, plain, packed) = encoded();
    let mut back = vec![0; plain.len()];
    bencher.counter(BytesCount::new(plain.len())).bench_local(|| {
        for (packed, out) in packed.chunks_exact(row.bytes()).zip(back.chunks_exact_mut(COLUMNS * 2)) {
            row.decode(SixteenBit::BF16, black_box(packed), out);
        }
    });
    assert!(back == plain, "the weights come back");
}

#[divan::bench]
fn check(bencher: Bencher<'_, '_>) {
    let (row, plain, packed) = encoded();
    bencher.counter(BytesCount::new(plain.len())).bench_local(|| {
        black_box(&packed).chunks_exact(row.bytes()).all(|bytes| row.check(SixteenBit::BF16, bytes).is_ok())
    });
}

fn main() {
    divan::main();
}
