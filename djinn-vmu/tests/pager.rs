//! Swaps under adversarial orders: bytes equal, no page lost, every missing wait noticed, copies beside computation.

#[path = "pager/fairness.rs"]
mod fairness;
#[path = "pager/kv.rs"]
mod kv;
#[path = "pager/large.rs"]
mod large;
#[path = "pager/timing.rs"]
mod timing;
#[path = "pager/world.rs"]
mod world;

use djinn_cpu::{CpuConfig, CpuDevice, Math, SimConfig, SimDevice};
use djinn_device::{Device, Error as DeviceError, Ops, Space};
use djinn_pages::BlockTable;
use djinn_vmu::{Allocations, DataSegment, Direction, Error, KvLayout, TextStore};
use kv::Kv;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use world::{Reached, Rng, Stop, World};

const SEEDS: u64 = 200;

fn sim(config: SimConfig) -> SimDevice {
    SimDevice::new(config).expect("a device")
}

/// A seeded life: random events, then everything that left comes home and is compared.
fn live<D: Ops>(world: &mut World<'_, D>, seed: u64, events: u64) -> Result<(), Stop> {
    let mut rng = Rng(seed);
    for _ in 0..events {
        world.happen(rng.draw(), rng.draw(), rng.draw())?;
        world.audit();
    }
    world.come_home()
}

fn counts(reached: &Reached) -> [u64; 11] {
    let Reached { left, came_back, found, host_full, pages_full, shared, .. } = *reached;
    let Reached { kept, returned, duplicated, abandoned, paced, .. } = *reached;
    [left, came_back, found, host_full, pages_full, shared, kept, returned, duplicated, abandoned, paced]
}

#[test]
fn sequences_keep_their_bytes_in_any_order_of_the_device() {
    let mut often = [0; 11];
    for seed in 0..SEEDS {
        let device = sim(SimConfig { seed, ..SimConfig::default() });
        let mut world = World::new(&device, seed % 2 == 0).expect("a world");
        live(&mut world, seed, 200).unwrap_or_else(|stop| panic!("seed {seed}: {stop:?}"));
        let reached = world.end_all();
        assert_eq!(reached.refused, 0, "seed {seed}");
        often.iter_mut().zip(counts(&reached)).for_each(|(sum, one)| *sum += one);
    }
    assert!(often.iter().all(|&n| n > SEEDS / 4), "{often:?}");
}

#[test]
fn sequences_keep_their_bytes_on_the_cpu() {
    for seed in 0..SEEDS {
        let config = CpuConfig { math: Math::Reference, threads: 1, ..CpuConfig::default() };
        let device = CpuDevice::new(config).expect("a device");
        let mut world = World::new(&device, seed % 2 == 0).expect("a world");
        live(&mut world, seed, 150).unwrap_or_else(|stop| panic!("seed {seed}: {stop:?}"));
        world.end_all();
    }
}

#[test]
fn a_refused_copy_leaves_every_sequence_whole() {
    let mut refused = 0;
    for seed in 0..SEEDS {
        let refuse_copy_at = Some(1 + seed % 61);
        let device = sim(SimConfig { seed, refuse_copy_at, ..SimConfig::default() });
        let mut world = World::new(&device, seed % 2 == 0).expect("a world");
        live(&mut world, seed, 100).unwrap_or_else(|stop| panic!("seed {seed}: {stop:?}"));
        refused += world.end_all().refused;
    }
    assert!(refused > SEEDS / 2, "{refused} copies were refused");
}

#[test]
fn a_failed_copy_fails_the_device_and_loses_no_page() {
    let mut failed = 0;
    for seed in 0..SEEDS {
        let fail_copy_at = Some(1 + seed % 61);
        let device = sim(SimConfig { seed, fail_copy_at, ..SimConfig::default() });
        let mut world = World::new(&device, seed % 2 == 0).expect("a world");
        match live(&mut world, seed, 100) {
            Ok(()) => {}
            Err(Stop::Failed(DeviceError::CopyFailed { .. })) => failed += 1,
            Err(stop) => panic!("seed {seed}: {stop:?}"),
        }
        world.end_all();
    }
    assert!(failed > SEEDS / 2, "{failed} devices failed");
}

#[test]
fn a_segment_that_cannot_be_allocated_leaves_nothing() {
    for at in 1..=6 {
        let device = sim(SimConfig { fail_alloc_at: Some(at), ..SimConfig::default() });
        let mut held = Allocations::default();
        let made = DataSegment::new(&device, world::layout(true), &mut held);
        held.free(&device, &mut TextStore::new());
        assert_eq!(device.handles(), [0, 0], "alloc {at}");
        assert!(matches!(made, Err(Error::Device(DeviceError::OutOfMemory { .. }))), "alloc {at}");
        for space in [Space::Device, Space::Host] {
            assert_eq!(device.usage(space).in_use, 0, "alloc {at}");
        }
    }
    let device = sim(SimConfig::default());
    let layout = world::layout(true);
    let mut held = Allocations::default();
    DataSegment::new(&device, layout, &mut held).expect("it fits");
    assert_eq!(device.usage(Space::Device).in_use, layout.device_bytes(), "the plan knows every byte");
    assert_eq!(device.usage(Space::Host).in_use, layout.host_bytes(), "the plan knows every host byte");
    held.free(&device, &mut TextStore::new());
    assert_eq!([Space::Device, Space::Host].map(|space| device.usage(space).in_use), [0, 0]);
}

/// Whether a page holds nothing but a byte.
fn holds<D: Ops>(kv: &Kv<'_, D>, page: u32, byte: u8) -> bool {
    let host = kv.device.alloc(Space::Host, kv.data.layout().page_bytes()).expect("a page");
    kv.device.copy(kv.compute, kv.data.page(page), host.span()).expect("sound");
    kv.device.sync(kv.compute).expect("sound");
    kv.device.read_host(host.span(), |bytes| bytes.iter().all(|&b| b == byte))
}

/// A session of one page is written, leaves, and comes back into another page.
fn scenario(config: SimConfig) -> (bool, u64) {
    let device = sim(config);
    let mut kv = Kv::new(&device, world::layout(false)).expect("a segment");
    let mut table = kv.filled(1);
    assert!(kv.swap(Direction::Out, 0, &mut table).expect("sound"), "room");
    kv.settle(&mut table).expect("sound");
    let taken = kv.filled(1);
    assert!(kv.swap(Direction::In, 0, &mut table).expect("sound"), "room");
    assert_ne!(table.device(), taken.device());
    kv.settle(&mut table).expect("sound");
    (holds(&kv, table.device()[0], 1), device.calls().waits)
}

#[test]
fn every_wait_is_needed_but_those_for_nothing() {
    let waits = scenario(SimConfig::default()).1;
    let mut caught = Vec::new();
    for drop in 0..=waits {
        let drop_wait_at = (drop > 0).then_some(drop);
        let wrong = (0..SEEDS).any(|seed| {
            let config = SimConfig { seed, drop_wait_at, ..SimConfig::default() };
            !scenario(config).0
        });
        caught.push(wrong);
    }
    // None dropped; out after computation; in after what pages were prepared with (nothing here).
    assert_eq!(caught, [false, true, false]);
}

/// A page whose copy into a fork is enqueued is given back; a session comes back into it.
fn fork_scenario(config: SimConfig) -> (bool, u64) {
    let device = sim(config);
    let mut kv = Kv::new(&device, KvLayout { pages: 3, ..world::layout(false) }).expect("a segment");
    let mut other = kv.filled(2);
    assert!(kv.swap(Direction::Out, 0, &mut other).expect("sound"), "room");
    kv.settle(&mut other).expect("sound");
    let mut parent = kv.filled(1);
    let mut fork: BlockTable = kv.book.fork(&parent, 1);
    device.sync(kv.compute).expect("sound");
    let copy = kv.book.write(&mut fork, 0).expect("its parent reads it");
    kv.data.prepare(&device, kv.compute, &[], &[copy]).expect("sound");
    kv.book.release(&mut parent);
    assert!(kv.swap(Direction::In, 0, &mut other).expect("sound"), "room");
    assert!(other.device().contains(&copy.from));
    (holds(&kv, copy.to, 1), device.calls().waits)
}

#[test]
fn a_page_that_a_fork_is_copied_from_is_not_overwritten() {
    let wrong = |drop_wait_at| {
        (0..SEEDS).any(|seed| !fork_scenario(SimConfig { seed, drop_wait_at, ..SimConfig::default() }).0)
    };
    assert!(!wrong(None));
    let waits = fork_scenario(SimConfig::default()).1;
    assert!(wrong(Some(waits)), "the last wait is for what the fork grew by");
}

#[test]
fn lives_without_a_wait_go_wrong() {
    let mut wrong = 0;
    for seed in 0..SEEDS {
        let drop_wait_at = Some(1 + seed % 37);
        let device = sim(SimConfig { seed, drop_wait_at, ..SimConfig::default() });
        let mut world = World::new(&device, seed % 2 == 0).expect("a world");
        // Sessions that are written, leave and come back, more often than by chance.
        let (mut rng, kinds) = (Rng(seed), [0, 2, 3, 9, 10, 11, 12, 13]);
        let mut life = || -> Result<(), Stop> {
            for _ in 0..100 {
                world.happen(kinds[rng.draw() as usize % kinds.len()], rng.draw(), rng.draw())?;
            }
            world.come_home()
        };
        match life() {
            Ok(()) => {}
            Err(Stop::Wrong(what)) => {
                assert!(what.contains("token") || what.contains("KV check"), "seed {seed}: {what}");
                wrong += 1;
            }
            Err(stop) => panic!("seed {seed}: {stop:?}"),
        }
        world.end_all();
    }
    // Few: most waits of a life are for what is done anyway, or for nothing.
    assert!(wrong >= 5, "{wrong} lives went wrong");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 25,
        max_shrink_iters: 2000,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]
    /// 25 lives of 400 events.
    #[test]
    fn pages_out_equal_pages_in(
        seed: u64,
        check: bool,
        events in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>()), 400),
    ) {
        let device = sim(SimConfig { seed, ..SimConfig::default() });
        let mut world = World::new(&device, check).expect("a world");
        for (kind, a, b) in events {
            let happened = world.happen(kind, a, b);
            prop_assert!(happened.is_ok(), "{happened:?}");
            world.audit();
        }
        let home = world.come_home();
        prop_assert!(home.is_ok(), "{home:?}");
        world.end_all();
    }
}
