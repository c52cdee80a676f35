//! Loaded weights: equal content is kept once, every byte is given back, a corrupt stream is noticed.

use djinn_cpu::{CpuConfig, CpuDevice, Math, SimConfig, SimDevice};
use djinn_device::{DType, Device, Space};
use djinn_srg::{Graph, GraphBuilder, Rows};
use djinn_vmu::{
    Allocations, Budget, Demand, Error, KvLayout, MemoryPlan, SourceError, TextSegment, TextStore,
    WeightSource,
};
use std::ops::{ControlFlow, Range};

/// Four equal products between an untied table and an output projection.
fn graph() -> Graph {
    let mut b = GraphBuilder::new("test", 600, 64);
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
    plan_in(graph, fraction, stream_check, None)
}

/// In chunks of up to `chunk` bytes.
fn plan_in(graph: &Graph, fraction: f64, stream_check: bool, chunk: Option<u64>) -> MemoryPlan {
    let kv = KvLayout {
        token_bytes: 128,
        dtype: DType::F16,
        page_tokens: 16,
        pages: 1,
        sequences: 1,
        table_width: 1,
        host_pages: 0,
        check: false,
    };
    let demand = Demand { rows: Rows { rows: 4, logit_rows: 1 }, kv, reserved_bytes: 0 };
    let budget = Budget { resident_fraction: Some(fraction), stream_check, chunk, ..Budget::default() };
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
) -> Result<(TextSegment, Allocations), Error> {
    let (mut held, mut progress) = (Allocations::default(), |_| ControlFlow::Continue(()));
    match TextSegment::load(device, graph, plan, source, store, &mut progress, &mut held) {
        Ok(text) => Ok((text, held)),
        Err(error) => {
            held.free(device, store);
            Err(error)
        }
    }
}

#[test]
fn two_models_share_equal_chunks() {
    let (device, graph, mut store) = (cpu(), graph(), TextStore::new());
    for fraction in [0.0, 0.5, 1.0] {
        let plan = plan(&graph, fraction, false);
        let same = Pattern { seed: 7, equal_layers: false };
        let other = Pattern { seed: 8, equal_layers: false };
        let held = |store: &TextStore| [Space::Device, Space::Host].map(|space| store.bytes(space));
        let (_, first) = load(&device, &graph, &plan, &same, &mut store).expect("it loads");
        let once = held(&store);
        assert_eq!(
            once.iter().sum::<u64>(),
            plan.placement.resident_bytes() + plan.placement.streamed_bytes()
        );
        let (_, second) = load(&device, &graph, &plan, &same, &mut store).expect("it loads");
        assert_eq!(held(&store), once, "the second model takes nothing");
        let (_, third) = load(&device, &graph, &plan, &other, &mut store).expect("it loads");
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
        let (_, held) = load(&device, &graph, &plan, &source, &mut store).expect("it loads");
        let bytes = store.bytes(Space::Host);
        held.free(&device, &mut store);
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
        let error = load(&device, &graph, &plan, &broken, &mut store).expect_err("w2 cannot be read");
        assert_eq!(error.to_string(), "cannot read weight w2: the disk is gone");
        for space in [Space::Device, Space::Host] {
            assert_eq!((device.usage(space).in_use, store.bytes(space)), (0, 0));
        }
    }
}

#[test]
fn a_load_that_is_cancelled_leaves_nothing_behind() {
    let (device, graph) = (SimDevice::new(SimConfig::default()).expect("a device"), graph());
    let source = Pattern { seed: 7, equal_layers: true };
    for fraction in [0.0, 0.5, 1.0] {
        let plan = plan(&graph, fraction, true);
        let load = |most: u64| {
            let (mut told, mut store) = (0, TextStore::new());
            let mut progress = |_| {
                told += 1;
                if told > most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            let mut held = Allocations::default();
            let text =
                TextSegment::load(&device, &graph, &plan, &source, &mut store, &mut progress, &mut held);
            held.free(&device, &mut store);
            assert_eq!([Space::Device, Space::Host].map(|space| store.bytes(space)), [0, 0]);
            text.map(|_| ())
        };
        let needed = (0..).find(|&most| match load(most) {
            Ok(()) => true,
            Err(error) => {
                assert!(matches!(error, Error::Cancelled), "{error}");
                assert_eq!([Space::Device, Space::Host].map(|space| device.usage(space).in_use), [0, 0]);
                false
            }
        });
        assert!(needed > Some(5), "progress is told {needed:?} times");
    }
}

#[test]
fn a_stream_that_lost_a_wait_is_noticed_by_the_check() {
    let graph = graph();
    let plan = plan(&graph, 0.0, true);
    let pass = |device: SimDevice| -> Result<(), Error> {
        let compute = device.stream()?;
        let (mut store, source) = (TextStore::new(), Pattern { seed: 3, equal_layers: false });
        let (mut text, held) = load(&device, &graph, &plan, &source, &mut store)?;
        for _ in 0..3 {
            for index in 0..plan.placement.chunks.len() {
                let chunk = djinn_vmu::ChunkId(index as u32);
                text.streamer.acquire(&device, compute, chunk)?;
                text.streamer.release(&device, compute, chunk)?;
            }
            device.sync(compute)?;
            text.streamer.end_pass(&device)?;
        }
        held.free(&device, &mut store);
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

/// A router over four experts of two products each.
fn mixture() -> (Graph, djinn_srg::Routing) {
    let mut b = GraphBuilder::new("mixture", 600, 64);
    let mut routing = None;
    let mut build = |b: &mut GraphBuilder| {
        let table = b.weight("embed", &[600, 200], DType::F16)?;
        let x = b.embed("x", table)?;
        let router = b.weight("router", &[4, 200], DType::F16)?;
        let chosen = b.linear("chosen", x, router, None)?;
        let routes = *routing.insert(b.route("route", chosen, 1, true)?);
        let experts =
            |b: &mut GraphBuilder, part: &str, x| -> Result<djinn_srg::ValueId, djinn_srg::GraphError> {
                let mut out = None;
                for e in 0..4 {
                    let w = b.weight(&format!("{part}{e}.w"), &[200, 200], DType::F16)?;
                    out = Some(b.expert_linear(&format!("{part}{e}"), x, &routes, e, w, out)?);
                }
                Ok(out.expect("there are experts"))
            };
        let up = experts(b, "up", x)?;
        let down = experts(b, "down", up)?;
        let mixed = b.combine("combine", down, &routes)?;
        let last = b.select_rows("select", mixed)?;
        b.linear("logits", last, table, None)
    };
    let logits = build(&mut b).expect("shapes fit");
    (b.finish(logits).expect("shapes fit"), routing.expect("it was built"))
}

/// Passes over a mixture; each uses the experts of one entry of `chosen`; the bytes that each moved.
fn passes(device: &SimDevice, plan: &MemoryPlan, chosen: &[[bool; 4]]) -> Result<Vec<u64>, Error> {
    let (graph, routing) = mixture();
    let compute = device.stream()?;
    let (told, starts) = (device.alloc(Space::Host, 20)?, device.alloc(Space::Device, 20)?);
    let (mut store, source) = (TextStore::new(), Pattern { seed: 5, equal_layers: false });
    let (mut text, held) = load(device, &graph, plan, &source, &mut store)?;
    let mut moved = Vec::new();
    for used in chosen {
        let mut counts = [0u32; 5];
        (0..4).for_each(|e| counts[e + 1] = counts[e] + u32::from(used[e]));
        device.write_host(told.span(), |to| {
            to.chunks_exact_mut(4)
                .zip(counts)
                .for_each(|(to, count)| to.copy_from_slice(&count.to_le_bytes()));
        });
        let mut announced = false;
        for (index, chunk) in plan.placement.chunks.iter().enumerate() {
            if chunk.router().is_some() && !std::mem::replace(&mut announced, true) {
                device.copy(compute, told.span(), starts.span())?;
                text.streamer.routed(device, compute, routing.group, starts.span())?;
            }
            if plan.placement.slots[index].is_some() {
                text.streamer.acquire(device, compute, djinn_vmu::ChunkId(index as u32))?;
                text.streamer.release(device, compute, djinn_vmu::ChunkId(index as u32))?;
            }
        }
        device.sync(compute)?;
        let stats = text.streamer.end_pass(device)?;
        let times: Vec<_> = text.streamer.times(device).collect();
        assert_eq!(stats.streamed_bytes, times.iter().map(|t| t.bytes).sum::<u64>());
        moved.push(stats.streamed_bytes);
    }
    held.free(device, &mut store);
    device.free(told);
    device.free(starts);
    for space in [Space::Device, Space::Host] {
        assert_eq!(device.usage(space).in_use, 0);
    }
    Ok(moved)
}

#[test]
fn experts_move_when_they_are_chosen_and_are_checked_then() {
    let (graph, _) = mixture();
    let chosen = [[true; 4], [false, true, false, true], [false; 4], [true, false, false, false], [true; 4]];
    // An expert's weight takes 80,128 bytes: chunks of a part of one, and of three, which may be of both products.
    for (fraction, check, chunk) in [
        (0.0, false, None),
        (0.0, true, None),
        (0.3, true, None),
        (0.0, true, Some(250_000)),
        (0.3, false, Some(250_000)),
    ] {
        let plan = plan_in(&graph, fraction, check, chunk);
        let sections = |c: djinn_vmu::ChunkId| plan.placement.chunks[c.0 as usize].sections.len();
        assert_eq!(plan.placement.streamed().any(|c| sections(c) > 1), chunk.is_some());
        let streamed = |used: &[bool; 4]| -> u64 {
            let chunks = plan.placement.streamed().map(|c| &plan.placement.chunks[c.0 as usize]);
            let sections = chunks.flat_map(|c| &c.sections);
            let of = |s: &&djinn_vmu::Section| s.condition.is_none_or(|c| used[c.expert as usize]);
            sections.filter(of).map(|section| section.bytes).sum()
        };
        let expected: Vec<u64> = chosen.iter().map(streamed).collect();
        let sim = |seed, drop_wait_at| {
            SimDevice::new(SimConfig { seed, drop_wait_at, ..SimConfig::default() }).expect("a device")
        };
        let mut caught = 0;
        for seed in 0..60 {
            assert_eq!(
                passes(&sim(seed, None), &plan, &chosen).expect("a right order"),
                expected,
                "seed {seed}"
            );
            let lost = std::panic::catch_unwind(|| passes(&sim(seed, Some(1 + seed % 12)), &plan, &chosen));
            caught += u32::from(matches!(lost, Ok(Err(Error::StreamCorrupt { .. }))));
        }
        assert!(!check && caught == 0 || check && caught > 5, "{caught} of 60 lost waits gave other bytes");
    }
}

#[test]
#[should_panic(expected = "acquired before its copy is enqueued")]
fn an_expert_is_not_acquired_before_its_router_spoke() {
    let (graph, _) = mixture();
    let (device, plan) = (cpu(), plan(&graph, 0.0, false));
    let compute = device.stream().expect("a stream");
    let (mut store, source) = (TextStore::new(), Pattern { seed: 5, equal_layers: false });
    let (mut text, _held) = load(&device, &graph, &plan, &source, &mut store).expect("it loads");
    for index in 0..plan.placement.chunks.len() {
        text.streamer.acquire(&device, compute, djinn_vmu::ChunkId(index as u32)).expect("it is enqueued");
        text.streamer.release(&device, compute, djinn_vmu::ChunkId(index as u32)).expect("it is enqueued");
    }
}
