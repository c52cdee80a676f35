//! Planning: how long it takes to place the weights of large models under a budget.

use divan::Bencher;
use djinn_device::DType;
use djinn_engine::{Budget, Options};
use djinn_models::{Location, OpenOptions, open};
use std::hint::black_box;

#[divan::bench(args = [("llama-2-13b", 20), ("llama-2-70b", 80)])]
fn memory_plan(bencher: Bencher<'_, '_>, (name, gib): (&str, u64)) {
    let model = open(&Location::Synthetic(name.to_owned()), &OpenOptions::default()).expect("a known name");
    let budget = Budget { vram: Some(gib << 30), ..Budget::default() };
    let options = Options { budget, kv_dtype: DType::F16, ..Options::default() };
    bencher.bench_local(|| options.plan(black_box(&model.graph), 0).expect("it fits"));
}

fn main() {
    divan::main();
}
