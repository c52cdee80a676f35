//! Swaps beside streamed weights: neither starves, in any order that the device chooses.

use super::kv::Kv;
use djinn_cpu::{SimConfig, SimDevice};
use djinn_device::{DType, Device, Space};
use djinn_pages::{BlockTable, Residency};
use djinn_srg::{Graph, GraphBuilder, Rows};
use djinn_vmu::{
    Budget, Chunk, Demand, Direction, Error, KvLayout, MemoryPlan, Placement, SourceError, SwapPace,
    TextSegment, TextStore, Transfer, WeightSource,
};
use std::ops::{ControlFlow, Range};
use std::time::Duration;

const SEEDS: u64 = 2000;
const PASSES: usize = 9;
const SESSIONS: usize = 6;
const SESSION_PAGES: u32 = 24;

/// A chain of small products.
fn graph() -> Graph {
    let mut b = GraphBuilder::new("test", 64, 512);
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
        token_bytes: 64,
        dtype: DType::F32,
        page_tokens: 4,
        pages: SESSIONS as u32 * SESSION_PAGES,
        sequences: 1,
        table_width: SESSION_PAGES,
        host_pages: SESSIONS as u32 * SESSION_PAGES,
        check: false,
    };
    let demand = Demand { rows: Rows { rows: 4, logit_rows: 1 }, kv, reserved_bytes: 0 };
    // Less than a pass fits the ring, so that each pass copies weights while it runs.
    let (chunk, ring) = (Some(2048), Some(4096));
    let budget = Budget { resident_fraction: Some(0.0), chunk, ring, ..Budget::default() };
    let plan = MemoryPlan::new(graph, &budget, &demand).expect("it fits");
    assert!(plan.placement.ring.capacity() < plan.placement.streamed_bytes());
    plan
}

/// Half of the sessions are on the device and half on the host; those that arrive leave again, those that left come
/// back. Tickets are places.
struct Rig<'a> {
    kv: Kv<'a, SimDevice>,
    text: TextSegment,
    placement: Placement,
    sessions: Vec<BlockTable>,
    ended: Vec<Transfer>,
    /// Bytes whose way to the device was asked for.
    asked: u64,
}

fn device(seed: u64) -> SimDevice {
    SimDevice::new(SimConfig {
        seed,
        poison: false,
        link_bytes_per_second: 1e6,
        launch_overhead: Duration::ZERO,
        ..SimConfig::default()
    })
    .expect("a device")
}

impl<'a> Rig<'a> {
    fn new(device: &'a SimDevice, plan: &MemoryPlan, graph: &Graph) -> Result<Rig<'a>, Error> {
        let mut kv = Kv::new(device, plan.kv)?;
        let store = &mut TextStore::new();
        let mut progress = |_| ControlFlow::Continue(());
        let text = TextSegment::load(device, graph, plan, &Zeros, store, &mut progress, &mut kv.held)?;
        let page_bytes = plan.kv.page_bytes();
        kv.data.set_pace(SwapPace { piece_bytes: page_bytes, least_bytes: page_bytes });
        let sessions = (0..SESSIONS).map(|_| kv.filled(SESSION_PAGES)).collect();
        let placement = plan.placement.clone();
        let mut rig = Rig { kv, text, placement, sessions, ended: vec![], asked: 0 };
        for at in (1..SESSIONS).step_by(2) {
            assert!(rig.kv.swap(Direction::Out, at as u64, &mut rig.sessions[at])?, "room");
        }
        let ended = rig.kv.data.settle(device)?;
        rig.end(ended);
        Ok(rig)
    }

    fn end(&mut self, ended: Vec<Transfer>) {
        for one in &ended {
            self.kv.book.end_copy(&mut self.sessions[one.ticket as usize], one.fault.is_none());
        }
        self.ended.extend(ended);
    }

    /// Between two passes: those that may move, move.
    fn turn(&mut self) -> Result<(), Error> {
        let ended = self.kv.data.poll(self.kv.device)?;
        self.end(ended);
        // Each way out is a whole one.
        self.kv.book.forget_copies();
        for (ticket, table) in (0..).zip(&mut self.sessions) {
            match table.residency() {
                Residency::Device => {
                    self.kv.swap(Direction::Out, ticket, table)?;
                }
                Residency::Host if self.kv.swap(Direction::In, ticket, table)? => {
                    self.asked += SESSION_PAGES as u64 * self.kv.data.layout().page_bytes();
                }
                _ => {}
            }
        }
        self.kv.book.audit(&self.sessions);
        Ok(())
    }

    /// A pass over all chunks, captured and replayed or not.
    fn pass(&mut self, replay: bool, work: djinn_device::Buffer) -> Result<(), Error> {
        let (Kv { device, compute, .. }, text, placement) = (&self.kv, &mut self.text, &self.placement);
        let done = device.event()?;
        let copies = text.streamer.stream();
        let mut enqueue = || -> Result<(), Error> {
            for chunk in placement.streamed() {
                text.streamer.acquire(*device, *compute, chunk)?;
                let Chunk { tiles, bytes, .. } = &placement.chunks[chunk.0 as usize];
                let first = text.tiles()[tiles.start].parts[0].span;
                let whole = first.buffer().slice(first.offset(), *bytes);
                device.copy(*compute, whole, work.slice(0, *bytes))?;
                text.streamer.release(*device, *compute, chunk)?;
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
        text.streamer.end_pass(*device).map(drop)
    }

    /// The copies to the device so far, in order: those of weights, by their bytes, and those of pages.
    fn to_device(&self) -> Vec<(bool, u64)> {
        let pages = self.kv.data.page(0).buffer();
        let copies =
            self.kv.device.copies().into_iter().filter(|copy| copy.src.buffer().space() == Space::Host);
        let weights = self.text.streamer.stream();
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
    let device = device(seed);
    let mut rig = Rig::new(&device, &plan, &graph)?;
    let largest = plan.placement.chunks.iter().map(|chunk| chunk.bytes).max().expect("chunks");
    let work = device.alloc(Space::Device, largest)?;
    let loaded = rig.to_device().len();
    if paced {
        // A pass came before: those that left were computed once.
        rig.kv.data.share_link(&device, rig.text.streamer.stream(), limit)?;
    }
    let (mut came, mut waits) = (Vec::new(), Vec::new());
    for pass in 0..PASSES {
        rig.turn()?;
        if paced {
            rig.kv.data.share_link(&device, rig.text.streamer.stream(), limit)?;
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
    // No weights share the way out: it goes on at the link's speed.
    let first = SESSIONS / 2;
    for out in rig.ended.iter().skip(first).filter(|one| one.direction == Direction::Out) {
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
        // The host looks at most once between two copies: what was under way, and what it then enqueues.
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
