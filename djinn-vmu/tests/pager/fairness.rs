//! Swaps beside streamed weights: neither starves, in any order that the device chooses.

use djinn_device::{DType, Device, SimConfig, SimDevice, Space, Stream};
use djinn_srg::{Graph, GraphBuilder, KvShape, Rows};
use djinn_vmu::{
    Arriving, Budget, ChunkId, DataSegment, Demand, Direction, Error, KvLayout, MemoryPlan, Parked, Sequence,
    SourceError, SwapPace, TextSegment, TextStore, Transfer, WeightSource,
};
use std::ops::{ControlFlow, Range};
use std::time::Duration;

const SEEDS: u64 = 100;
const PASSES: usize = 9;
const SESSIONS: usize = 6;
const SESSION_PAGES: u32 = 24;
const KV: KvShape = KvShape { layers: 2, kv_heads: 1, head_dim: 4 };

/// A chain of small products.
fn graph() -> Graph {
    let mut b = GraphBuilder::new("test", KV, 64, 512);
    let build = |b: &mut GraphBuilder| {
        let table = b.weight("embed", &[64, 16], DType::F16)?;
        let mut x = b.embed("x", table)?;
        for i in 0..6 {
            let w = b.weight(&format!("w{i}"), &[16, 16], DType::F16)?;
            x = b.linear(&format!("product{i}"), x, w, None)?;
        }
        let last = b.select_rows("select", x)?;
        let head = b.weight("unembed", &[64, 16], DType::F16)?;
        b.linear("logits", last, head, None)
    };
    let logits = build(&mut b).expect("shapes fit");
    b.finish(logits).expect("shapes fit")
}

struct Zeros;

impl WeightSource for Zeros {
    fn read_rows(&self, _: &str, _: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        out.fill(0);
        Ok(())
    }
}

fn plan(graph: &Graph) -> MemoryPlan {
    let kv = KvLayout {
        shape: KV,
        dtype: DType::F32,
        page_tokens: 4,
        pages: SESSIONS as u32 * SESSION_PAGES,
        sequences: 1,
        table_width: SESSION_PAGES,
        host_pages: SESSIONS as u32 * SESSION_PAGES,
        check: false,
    };
    let demand = Demand { rows: Rows { rows: 4, logit_rows: 1 }, kv, reserved_bytes: 0 };
    let budget = Budget { resident_fraction: Some(0.0), ..Budget::default() };
    MemoryPlan::new(graph, &budget, &demand).expect("it fits")
}

/// Half of the sessions are on the device and half on the host; whoever arrives leaves again, whoever left comes back.
struct Rig {
    device: SimDevice,
    compute: Stream,
    text: TextSegment,
    data: DataSegment,
    live: Vec<Sequence>,
    parked: Vec<Parked>,
    arriving: Vec<Arriving>,
    told: Vec<Transfer>,
    /// Bytes whose way to the device was asked for.
    asked: u64,
}

impl Rig {
    fn new(seed: u64, plan: &MemoryPlan, graph: &Graph) -> Result<Rig, Error> {
        let device = SimDevice::new(SimConfig {
            seed,
            poison: false,
            link_bytes_per_second: 1e6,
            launch_overhead: Duration::ZERO,
            ..SimConfig::default()
        })?;
        let compute = device.stream()?;
        let store = &mut TextStore::new();
        let text =
            TextSegment::load(
                &device,
                graph,
                plan,
                &Zeros,
                store,
                false,
                &mut |_| ControlFlow::Continue(()),
            )?;
        let mut data = DataSegment::new(&device, plan.kv)?;
        let page_bytes = plan.kv.page_bytes();
        data.set_pace(SwapPace { piece_bytes: page_bytes, least_bytes: page_bytes });
        let (mut live, mut parked) = (Vec::new(), Vec::new());
        for i in 0..SESSIONS {
            let mut sequence = Sequence::default();
            let tokens = (SESSION_PAGES * plan.kv.page_tokens) as u64;
            data.grow(&device, compute, &mut sequence, tokens)?.expect("room");
            match i % 2 {
                0 => live.push(sequence),
                _ => parked.push(data.park(&device, compute, sequence)?.expect("room")),
            }
        }
        let told = data.settle(&device)?;
        Ok(Rig { device, compute, text, data, live, parked, arriving: vec![], told, asked: 0 })
    }

    /// Between two passes: who may move, moves.
    fn turn(&mut self) -> Result<(), Error> {
        let Rig { device, compute, data, .. } = self;
        self.told.extend(data.poll(device)?);
        for one in std::mem::take(&mut self.arriving) {
            if data.has_arrived(&one) {
                self.live.push(data.resume(device, *compute, one)?);
            } else {
                self.arriving.push(one);
            }
        }
        // Each way out is a whole one.
        data.forget_copies();
        for one in std::mem::take(&mut self.live) {
            match data.park(device, *compute, one)? {
                Ok(parked) => self.parked.push(parked),
                Err(not_moved) => self.live.push(not_moved.sequence),
            }
        }
        for one in std::mem::take(&mut self.parked) {
            let pages = one.host_pages();
            let left = |told: &Transfer| told.direction == Direction::Out && told.ticket == one.ticket();
            if !self.told.iter().any(left) {
                self.parked.push(one);
                continue;
            }
            match data.restore(device, one)? {
                Ok(arriving) => {
                    self.asked += pages as u64 * data.layout().page_bytes();
                    self.arriving.push(arriving);
                }
                Err(not_moved) => self.parked.push(not_moved.sequence),
            }
        }
        data.audit(&self.live, &self.parked, &self.arriving);
        Ok(())
    }

    /// A pass over all chunks, captured and replayed or not.
    fn pass(&mut self, replay: bool, work: djinn_device::Buffer) -> Result<(), Error> {
        let Rig { device, compute, text, .. } = self;
        let done = device.event()?;
        let copies = text.copy_stream();
        let mut enqueue = || -> Result<(), Error> {
            for index in 0..text.placement().chunks.len() {
                let chunk = ChunkId(index as u32);
                let span = text.acquire(device, *compute, chunk)?;
                device.copy(*compute, span, work.slice(0, span.len()))?;
                text.release(device, *compute, chunk)?;
            }
            Ok(device.record(*compute, done)?)
        };
        if replay {
            let capture = device.capture(&[*compute, copies], enqueue)?;
            device.replay(capture)?;
        } else {
            enqueue()?;
        }
        device.sync_event(done)?;
        text.end_pass(device).map(drop)
    }

    /// The copies to the device so far, in order: those of weights, by their bytes, and those of pages.
    fn to_device(&self) -> Vec<(bool, u64)> {
        let pages = self.data.page(0).buffer();
        let copies = self.device.copies().into_iter().filter(|copy| copy.src.buffer().space() == Space::Host);
        let weights = self.text.copy_stream();
        let which = copies.filter(|copy| copy.stream == weights || copy.dst.buffer() == pages);
        which.map(|copy| (copy.stream == weights, copy.dst.len())).collect()
    }
}

/// The most swapped bytes between two copies of weights, and whether swaps came forward in every three passes by
/// what they may have under way, or all that there was.
fn run(seed: u64, paced: bool) -> Result<(u64, bool), Error> {
    let graph = graph();
    let plan = plan(&graph);
    let limit = plan.placement.streamed_bytes();
    let page_bytes = plan.kv.page_bytes();
    assert!(limit > 3 * page_bytes && limit < 2 * SESSION_PAGES as u64 * page_bytes, "{limit} bytes stream");
    let mut rig = Rig::new(seed, &plan, &graph)?;
    let largest = plan.placement.chunks.iter().map(|chunk| chunk.bytes).max().expect("chunks");
    let work = rig.device.alloc(Space::Device, largest)?;
    let loaded = rig.to_device().len();
    if paced {
        // A pass came before: who was parked was computed once.
        rig.data.share_link(&rig.device, rig.text.copy_stream(), limit)?;
    }
    let (mut came, mut waits) = (Vec::new(), Vec::new());
    for pass in 0..PASSES {
        rig.turn()?;
        if paced {
            rig.data.share_link(&rig.device, rig.text.copy_stream(), limit)?;
        }
        let back: u64 = rig.to_device().iter().filter(|(weights, _)| !weights).map(|(_, bytes)| bytes).sum();
        came.push(back);
        waits.push(rig.asked - back);
        rig.pass((seed + pass as u64).is_multiple_of(2), work)?;
    }
    let copies = &rig.to_device()[loaded..];
    let between = copies.split(|(weights, _)| *weights);
    let most = between.map(|swaps| swaps.iter().map(|(_, bytes)| bytes).sum()).max().unwrap_or(0);
    let forward = |pass: usize| came[pass + 3] - came[pass] + page_bytes >= waits[pass].min(limit);
    let forward = (0..PASSES - 3).all(forward);
    // Nobody shares the way out: it goes on at the link's speed.
    for out in rig.told.iter().filter(|one| one.direction == Direction::Out && one.ticket >= SESSIONS as u64)
    {
        let alone = Duration::from_secs_f64(out.bytes as f64 / 1e6);
        assert!(out.moved().expect("it ended") < 4 * alone, "seed {seed}: {out:?}");
    }
    Ok((most, forward))
}

#[test]
fn swaps_and_weights_share_the_link_in_any_order() {
    let limit = plan(&graph()).placement.streamed_bytes();
    for seed in 0..SEEDS {
        let (most, forward) = run(seed, true).expect("it runs");
        assert!(most <= 2 * limit, "seed {seed}: {most} bytes of swaps between two copies of weights");
        assert!(forward, "seed {seed}: swaps waited for more than three passes");
    }
}

#[test]
fn without_pacing_some_order_makes_one_starve() {
    let limit = plan(&graph()).placement.streamed_bytes();
    let runs: Vec<(u64, bool)> = (0..SEEDS).map(|seed| run(seed, false).expect("it runs")).collect();
    assert!(runs.iter().any(|(most, _)| *most > 2 * limit), "weights wait for swaps");
    assert!(runs.iter().any(|(_, forward)| !forward), "swaps wait for weights");
}
