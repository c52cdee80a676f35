//! Throughput of layouts and of the ring, on lengths from a fixed seed.

use std::collections::VecDeque;
use std::hint::black_box;

use divan::Bencher;
use divan::counter::ItemsCount;
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

#[divan::bench(args = [10, 100, 1_000, 10_000])]
fn layout(bencher: Bencher<'_, '_>, chunks: usize) {
    let lens = lens(chunks);
    bencher
        .counter(ItemsCount::new(chunks))
        .bench_local(|| CyclicLayout::new(CAPACITY, ALIGN, black_box(&lens)));
}

/// A full ring in steady state: each reserve is preceded by the retirements that make room for it.
#[divan::bench]
fn reserve_retire_reclaim(bencher: Bencher<'_, '_>) {
    let lens = lens(10_000);
    let mut ring = Ring::new(CAPACITY);
    let mut held = VecDeque::new();
    bencher.counter(ItemsCount::new(lens.len())).bench_local(|| {
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
}

fn main() {
    divan::main();
}
