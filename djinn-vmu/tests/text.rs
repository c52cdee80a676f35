//! Loaded weights: equal content is kept once, every byte is given back, a corrupt stream is noticed.

use djinn_device::{CpuConfig, CpuDevice, DType, Device, Math, SimConfig, SimDevice, Space};
use djinn_srg::{Graph, GraphBuilder, KvShape, Rows};
use djinn_vmu::{
    Budget, Demand, Error, KvLayout, MemoryPlan, SourceError, TextSegment, TextStore, WeightSource,
};
use std::ops::Range;

const KV: KvShape = KvShape { layers: 4, kv_heads: 1, head_dim: 8 };

/// Four equal products between an untied table and an output projection.
fn graph() -> Graph {
    let mut b = GraphBuilder::new("test", KV, 600, 64);
    let build = |b: &mut GraphBuilder| {
        let table = b.weight("embed", &[600, 200], DType::F16)?;
        let mut x = b.embed("x", table)?;
        for i in 0..4 {
            let w = b.weight(&format!("w{i}"), &[200, 200], DType::F16)?;
            x = b.linear(&format!("product{i}"), x, w, None)?;
        }
        let last = b.select_rows("select", x)?;
        let head = b.weight("unembed", &[600, 200], DType::F16)?;
        b.linear("logits", last, head, None)
    };
    let logits = build(&mut b).expect("shapes fit");
    b.finish(logits).expect("shapes fit")
}

fn plan(graph: &Graph, fraction: f64, stream_check: bool) -> MemoryPlan {
    let kv =
        KvLayout { shape: KV, dtype: DType::F16, page_tokens: 16, pages: 1, sequences: 1, table_width: 1 };
    let demand = Demand { rows: Rows { rows: 4, logit_rows: 1 }, kv, reserved_bytes: 0 };
    let budget = Budget { resident_fraction: Some(fraction), stream_check, ..Budget::default() };
    MemoryPlan::new(graph, &budget, &demand).expect("it fits")
}

/// Bytes that follow from a seed, the weight's name and the position; the inner products may be equal.
struct Pattern {
    seed: u8,
    equal_layers: bool,
}

impl WeightSource for Pattern {
    fn read_rows(&self, name: &str, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        if self.seed == 0 && name == "w2" {
            let source = "the disk is gone".into();
            return Err(SourceError { name: name.to_owned(), source });
        }
        let name = if self.equal_layers && name.starts_with('w') { "w" } else { name };
        let name = name.bytes().fold(self.seed as u64, |a, b| a.wrapping_mul(31).wrapping_add(b as u64));
        let row_bytes = out.len() as u64 / (rows.end - rows.start);
        for (at, byte) in (rows.start * row_bytes..).zip(out) {
            *byte = ((at + (name << 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8;
        }
        Ok(())
    }
}

fn cpu() -> CpuDevice {
    CpuDevice::new(CpuConfig { math: Math::Reference, threads: 1, ..CpuConfig::default() }).expect("a device")
}

fn load<D: djinn_device::Ops>(
    device: &D,
    graph: &Graph,
    plan: &MemoryPlan,
    source: &Pattern,
    store: &mut TextStore,
    check: bool,
) -> Result<TextSegment, Error> {
    TextSegment::load(device, graph, plan, source, store, check, &mut |_| {})
}

#[test]
fn two_models_share_equal_chunks() {
    let (device, graph, mut store) = (cpu(), graph(), TextStore::new());
    for fraction in [0.0, 0.5, 1.0] {
        let plan = plan(&graph, fraction, false);
        let same = Pattern { seed: 7, equal_layers: false };
        let other = Pattern { seed: 8, equal_layers: false };
        let held = |store: &TextStore| [Space::Device, Space::Host].map(|space| store.bytes(space));
        let first = load(&device, &graph, &plan, &same, &mut store, false).expect("it loads");
        let once = held(&store);
        assert_eq!(
            once.iter().sum::<u64>(),
            plan.placement.resident_bytes() + plan.placement.streamed_bytes()
        );
        let second = load(&device, &graph, &plan, &same, &mut store, false).expect("it loads");
        assert_eq!(held(&store), once, "the second model takes nothing");
        let third = load(&device, &graph, &plan, &other, &mut store, false).expect("it loads");
        assert_eq!(held(&store), once.map(|bytes| 2 * bytes), "other weights are kept beside");
        first.free(&device, &mut store);
        assert_eq!(held(&store), once.map(|bytes| 2 * bytes), "the second model still needs them");
        second.free(&device, &mut store);
        third.free(&device, &mut store);
        assert_eq!(held(&store), [0, 0]);
        for space in [Space::Device, Space::Host] {
            assert_eq!(device.usage(space).in_use, 0);
        }
    }
}

#[test]
fn equal_layers_of_one_model_are_kept_once() {
    let (device, graph) = (cpu(), graph());
    let plan = plan(&graph, 0.0, false);
    let bytes = |equal_layers| {
        let mut store = TextStore::new();
        let source = Pattern { seed: 7, equal_layers };
        let text = load(&device, &graph, &plan, &source, &mut store, false).expect("it loads");
        let bytes = store.bytes(Space::Host);
        text.free(&device, &mut store);
        bytes
    };
    assert!(bytes(true) + 3 * 200 * 200 * 2 <= bytes(false) + 1024, "three of four copies are saved");
}

#[test]
fn a_source_that_fails_leaves_nothing_behind() {
    let (device, graph, mut store) = (cpu(), graph(), TextStore::new());
    for fraction in [0.0, 0.5, 1.0] {
        let broken = Pattern { seed: 0, equal_layers: false };
        let plan = plan(&graph, fraction, true);
        let error = load(&device, &graph, &plan, &broken, &mut store, true).expect_err("w2 cannot be read");
        assert_eq!(error.to_string(), "cannot read weight w2: the disk is gone");
        for space in [Space::Device, Space::Host] {
            assert_eq!((device.usage(space).in_use, store.bytes(space)), (0, 0));
        }
    }
}

#[test]
fn a_stream_that_lost_a_wait_is_noticed_by_the_check() {
    let graph = graph();
    let plan = plan(&graph, 0.0, true);
    let pass = |device: SimDevice| -> Result<(), Error> {
        let compute = device.stream()?;
        let (mut store, source) = (TextStore::new(), Pattern { seed: 3, equal_layers: false });
        let mut text = load(&device, &graph, &plan, &source, &mut store, true)?;
        for _ in 0..3 {
            for index in 0..plan.placement.chunks.len() {
                let chunk = djinn_vmu::ChunkId(index as u32);
                text.acquire(&device, compute, chunk)?;
                text.release(&device, compute, chunk)?;
            }
            device.sync(compute)?;
            text.end_pass(&device)?;
        }
        text.free(&device, &mut store);
        Ok(())
    };
    let sim = |seed, drop_wait_at| {
        SimDevice::new(SimConfig { seed, drop_wait_at, ..SimConfig::default() }).expect("a device")
    };
    let mut caught = 0;
    for seed in 0..200 {
        pass(sim(seed, None)).expect("a right order passes the check");
        let lost = std::panic::catch_unwind(|| pass(sim(seed, Some(1 + seed % 8))));
        caught += !matches!(lost, Ok(Ok(()))) as u32;
    }
    assert!(caught > 20, "{caught} of 200 lost waits were noticed");
}
