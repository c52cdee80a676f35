//! The graph and its analyses: built, cut into tiles, laid out as a stack.

use divan::Bencher;
use djinn_models::{Location, OpenOptions, open};
use djinn_srg::{Graph, Rows, StackPlan};
use std::hint::black_box;

const MODELS: [&str; 2] = ["llama-2-13b", "llama-2-70b"];

fn graph(name: &str) -> Graph {
    open(&Location::Synthetic(name.to_owned()), &OpenOptions::default()).expect("a known name").graph
}

#[divan::bench(args = MODELS)]
fn build(name: &str) -> Graph {
    graph(name)
}

#[divan::bench(args = MODELS)]
fn tiles(bencher: Bencher<'_, '_>, name: &str) {
    let graph = graph(name);
    bencher.bench_local(|| djinn_srg::tiles(black_box(&graph), djinn_srg::tile_bytes(&graph)));
}

#[divan::bench(args = MODELS)]
fn stack(bencher: Bencher<'_, '_>, name: &str) {
    let graph = graph(name);
    bencher.bench_local(|| StackPlan::new(black_box(&graph), Rows { rows: 512, logit_rows: 1 }));
}

fn main() {
    divan::main();
}
