//! Throughput of layouts and of the ring, on lengths from a fixed seed.

use std::collections::VecDeque;
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use djinn_ringbuf::{CyclicLayout, Ring};

const SEED: u64 = 0x6a69_6e6e;
const ALIGN: u64 = 256;
const CAPACITY: u64 = 4 << 30;

/// Lengths of 1 to 128 MiB, by splitmix64.
fn lens(count: usize) -> Vec<u64> {
    let mut state = SEED;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    (0..count).map(|_| (1 << 20) + next() % (127 << 20)).collect()
}

fn layout(c: &mut Criterion) {
    let mut group = c.benchmark_group("layout");
    for chunks in [10, 100, 1_000, 10_000] {
        let lens = lens(chunks);
        group.throughput(Throughput::Elements(chunks as u64));
        group.bench_function(BenchmarkId::from_parameter(chunks), |b| {
            b.iter(|| CyclicLayout::new(CAPACITY, ALIGN, black_box(&lens)));
        });
    }
    group.finish();
}

/// A full ring in steady state: each reserve is preceded by the retirements that make room for it.
fn reserve_retire_reclaim(c: &mut Criterion) {
    let lens = lens(10_000);
    let mut group = c.benchmark_group("reserve_retire_reclaim");
    group.throughput(Throughput::Elements(lens.len() as u64));
    group.bench_function("steady", |b| {
        let mut ring = Ring::new(CAPACITY);
        let mut held = VecDeque::new();
        b.iter(|| {
            for &len in &lens {
                let region = loop {
                    match ring.reserve(black_box(len), ALIGN) {
                        Ok(region) => break region,
                        Err(_) => {
                            let oldest = held.pop_front().expect("a full ring holds regions");
                            ring.retire(oldest);
                            ring.reclaim(oldest);
                        }
                    }
                };
                held.push_back(region);
            }
        });
    });
    group.finish();
}

criterion_group!(benches, layout, reserve_retire_reclaim);
criterion_main!(benches);
