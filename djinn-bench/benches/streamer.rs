//! The streamer: what acquire and release cost the host for each chunk of a pass. The chunks are tiny, so that
//! their copies are nearly free.

use divan::Bencher;
use divan::counter::ItemsCount;
use djinn_cpu::{CpuConfig, CpuDevice};
use djinn_device::Device;
use djinn_engine::{Budget, Options};
use djinn_models::{Location, OpenOptions, open};
use djinn_vmu::{Allocations, ChunkId, TextSegment, TextStore};
use std::ops::ControlFlow;

/// Bytes of a chunk at most: the model below becomes about a hundred of them.
const CHUNK: u64 = 40 << 10;

#[divan::bench]
fn acquire_release(bencher: Bencher<'_, '_>) {
    let location = Location::Synthetic("tiny?layers=32&dtype=f16".to_owned());
    let model = open(&location, &OpenOptions::default()).expect("a known name");
    let budget = Budget { resident_fraction: Some(0.0), chunk: Some(CHUNK), ..Budget::default() };
    let options = Options { budget, context: 64, ..Options::default() };
    let plan = options.plan(&model.graph, 0).expect("it fits");
    let device = CpuDevice::new(CpuConfig { threads: 1, ..CpuConfig::default() }).expect("a device");
    let compute = device.stream().expect("a stream");
    let mut store = TextStore::new();
    let (mut held, source) = (Allocations::default(), &*model.source);
    let mut progress = |_| ControlFlow::Continue(());
    let text = TextSegment::load(&device, &model.graph, &plan, source, &mut store, &mut progress, &mut held);
    let mut text = text.expect("it loads");
    let chunks = plan.placement.chunks.len();
    assert_eq!(plan.placement.streamed().count(), chunks, "every chunk is streamed");
    bencher.counter(ItemsCount::new(chunks)).bench_local(|| {
        for chunk in (0..chunks as u32).map(ChunkId) {
            text.streamer.acquire(&device, compute, chunk).expect("its copy was enqueued");
            text.streamer.release(&device, compute, chunk).expect("it was acquired");
        }
        device.sync(compute).expect("nothing failed");
        text.streamer.end_pass(&device).expect("nothing failed")
    });
    held.free(&device, &mut store);
}

fn main() {
    divan::main();
}
