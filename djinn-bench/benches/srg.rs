//! The graph and its analyses: built, cut into tiles, laid out as a stack.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use djinn_models::{Location, OpenOptions, open};
use djinn_srg::{Rows, StackPlan, tile_bytes, tiles};
use std::hint::black_box;

const MODELS: [&str; 2] = ["llama-2-13b", "llama-2-70b"];

fn graphs(c: &mut Criterion) {
    let location = |name: &str| Location::Synthetic(name.to_owned());
    let build = |location: &Location| open(location, &OpenOptions::default()).expect("a known name").graph;
    let mut group = c.benchmark_group("graph");
    for name in MODELS {
        let location = location(name);
        group.bench_function(BenchmarkId::new("build", name), |b| b.iter(|| build(black_box(&location))));
        let graph = build(&location);
        group.bench_function(BenchmarkId::new("tiles", name), |b| {
            b.iter(|| tiles(black_box(&graph), tile_bytes(&graph)));
        });
        group.bench_function(BenchmarkId::new("stack", name), |b| {
            b.iter(|| StackPlan::new(black_box(&graph), Rows { rows: 512, logit_rows: 1 }));
        });
    }
    group.finish();
}

criterion_group!(benches, graphs);
criterion_main!(benches);
