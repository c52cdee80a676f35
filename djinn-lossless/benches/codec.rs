//! Both directions of the lossless encoding on one core, in bytes of plain values.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
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

fn codec(c: &mut Criterion) {
    let row = LosslessRow::new(COLUMNS).expect("a row");
    let plain = weights();
    let mut packed = vec![0; ROWS * row.bytes()];
    let mut back = vec![0; plain.len()];
    let encode = |packed: &mut [u8]| {
        let rows = plain.chunks_exact(COLUMNS * 2).zip(packed.chunks_exact_mut(row.bytes()));
        rows.fold(true, |all, (plain, packed)| all & row.encode(SixteenBit::BF16, black_box(plain), packed))
    };
    assert!(encode(&mut packed), "the weights are encoded");
    let mut group = c.benchmark_group("lossless");
    group.throughput(Throughput::Bytes(plain.len() as u64));
    group.bench_function("decode", |b| {
        b.iter(|| {
            for (packed, out) in packed.chunks_exact(row.bytes()).zip(back.chunks_exact_mut(COLUMNS * 2)) {
                row.decode(SixteenBit::BF16, black_box(packed), out);
            }
        });
    });
    group.bench_function("check", |b| {
        b.iter(|| {
            packed.chunks_exact(row.bytes()).all(|row_bytes| row.check(SixteenBit::BF16, row_bytes).is_ok())
        });
    });
    assert!(back == plain, "the weights come back");
    let mut packed = vec![0; ROWS * row.bytes()];
    group.bench_function("encode", |b| b.iter(|| encode(&mut packed)));
    group.finish();
}

criterion_group!(benches, codec);
criterion_main!(benches);
