//! Planning: how long it takes to place the weights of large models under a budget.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use djinn_device::DType;
use djinn_engine::{Budget, Options};
use djinn_models::{Location, OpenOptions, open};
use std::hint::black_box;

fn plan(c: &mut Criterion) {
    let mut group = c.benchmark_group("memory_plan");
    for (name, gib) in [("llama-2-13b", 20), ("llama-2-70b", 80)] {
        let model =
            open(&Location::Synthetic(name.to_owned()), &OpenOptions::default()).expect("a known name");
        let budget = Budget { vram: Some(gib << 30), ..Budget::default() };
        let options = Options { budget, kv_dtype: DType::F16, ..Options::default() };
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter(|| options.plan(black_box(&model.graph), 0).expect("it fits"));
        });
    }
    group.finish();
}

criterion_group!(benches, plan);
criterion_main!(benches);
