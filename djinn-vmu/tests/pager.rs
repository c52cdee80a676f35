//! Parking and restoring under adversarial orders: bytes equal, no page lost, every missing wait noticed, copies
//! beside computation.

#[path = "pager/fairness.rs"]
mod fairness;
#[path = "pager/large.rs"]
mod large;
#[path = "pager/timing.rs"]
mod timing;
#[path = "pager/world.rs"]
mod world;

use djinn_device::{
    CpuConfig, CpuDevice, Device, Error as DeviceError, Math, Ops, SimConfig, SimDevice, Space,
};
use djinn_vmu::{DataSegment, Error, Sequence};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use world::{Reached, Rng, Stop, World};

const SEEDS: u64 = 200;

fn sim(config: SimConfig) -> SimDevice {
    SimDevice::new(config).expect("a device")
}

/// A seeded life: random events, then everything that was parked comes home and is compared.
fn live<D: Ops>(world: &mut World<D>, seed: u64, events: u64) -> Result<(), Stop> {
    let mut rng = Rng(seed);
    for _ in 0..events {
        world.happen(rng.draw(), rng.draw(), rng.draw())?;
        world.audit()?;
    }
    world.come_home()
}

fn add(sum: &mut Reached, one: &Reached) {
    sum.parked += one.parked;
    sum.resumed += one.resumed;
    sum.resumed_early += one.resumed_early;
    sum.found += one.found;
    sum.host_full += one.host_full;
    sum.pages_full += one.pages_full;
    sum.refused += one.refused;
    sum.shared += one.shared;
    sum.overtaken += one.overtaken;
    sum.kept += one.kept;
    sum.paced += one.paced;
}

#[test]
fn sequences_keep_their_bytes_in_any_order_of_the_device() {
    let mut reached = Reached::default();
    for seed in 0..SEEDS {
        let device = sim(SimConfig { seed, ..SimConfig::default() });
        let mut world = World::new(device, seed % 2 == 0).expect("a world");
        live(&mut world, seed, 150).unwrap_or_else(|stop| panic!("seed {seed}: {stop:?}"));
        add(&mut reached, &world.end());
    }
    let Reached { parked, resumed, resumed_early, found, host_full, pages_full, .. } = reached;
    let Reached { refused, shared, overtaken, kept, paced, .. } = reached;
    let often =
        [parked, resumed, resumed_early, found, host_full, pages_full, shared, overtaken, kept, paced];
    assert!(often.iter().all(|&n| n > SEEDS / 4) && refused == 0, "{reached:?}");
}

#[test]
fn sequences_keep_their_bytes_on_the_cpu() {
    for seed in 0..SEEDS {
        let config = CpuConfig { math: Math::Reference, threads: 1, ..CpuConfig::default() };
        let mut world =
            World::new(CpuDevice::new(config).expect("a device"), seed % 2 == 0).expect("a world");
        live(&mut world, seed, 150).unwrap_or_else(|stop| panic!("seed {seed}: {stop:?}"));
        world.end();
    }
}

#[test]
fn a_refused_copy_leaves_every_sequence_whole() {
    let mut refused = 0;
    for seed in 0..SEEDS {
        let refuse_copy_at = Some(1 + seed % 61);
        let device = sim(SimConfig { seed, refuse_copy_at, ..SimConfig::default() });
        let mut world = World::new(device, seed % 2 == 0).expect("a world");
        live(&mut world, seed, 100).unwrap_or_else(|stop| panic!("seed {seed}: {stop:?}"));
        refused += world.end().refused;
    }
    assert!(refused > SEEDS / 2, "{refused} copies were refused");
}

#[test]
fn a_failed_copy_fails_the_device_and_loses_no_page() {
    let mut failed = 0;
    for seed in 0..SEEDS {
        let fail_copy_at = Some(1 + seed % 61);
        let device = sim(SimConfig { seed, fail_copy_at, ..SimConfig::default() });
        let mut world = World::new(device, seed % 2 == 0).expect("a world");
        match live(&mut world, seed, 100) {
            Ok(()) => {}
            Err(Stop::Failed(DeviceError::CopyFailed { .. })) => failed += 1,
            Err(stop) => panic!("seed {seed}: {stop:?}"),
        }
        world.end();
    }
    assert!(failed > SEEDS / 2, "{failed} devices failed");
}

#[test]
fn a_segment_that_cannot_be_allocated_leaves_nothing() {
    for at in 1..=6 {
        let device = sim(SimConfig { fail_alloc_at: Some(at), ..SimConfig::default() });
        let made = DataSegment::new(&device, world::layout(true));
        assert!(matches!(made, Err(Error::Device(DeviceError::OutOfMemory { .. }))), "alloc {at}");
        for space in [Space::Device, Space::Host] {
            assert_eq!(device.usage(space).in_use, 0, "alloc {at}");
        }
    }
    let device = sim(SimConfig::default());
    let layout = world::layout(true);
    let data = DataSegment::new(&device, layout).expect("it fits");
    assert_eq!(device.usage(Space::Device).in_use, layout.device_bytes(), "the plan knows every byte");
    assert_eq!(device.usage(Space::Host).in_use, layout.host_bytes(), "the plan knows every host byte");
    data.free(&device);
}

/// A sequence of one page is written, parked, restored at once into another page, resumed and read; its first page
/// is written by another sequence meanwhile.
fn scenario(config: SimConfig) -> (bool, u64) {
    const BYTE: u8 = 0x3C;
    let device = sim(config);
    let compute = device.stream().expect("a stream");
    let mut data = DataSegment::new(&device, world::layout(false)).expect("a segment");
    let page = device.alloc(Space::Host, data.layout().page_bytes()).expect("a page");
    let mut sequence = Sequence::default();
    data.grow(&device, compute, &mut sequence, 4).expect("sound").expect("room");
    let first = sequence.pages()[0];
    device.fill(compute, data.page(first), BYTE).expect("sound");
    let parked = data.park(&device, compute, sequence).expect("sound").expect("room");
    let arriving = data.restore(&device, parked).expect("sound").expect("room");
    let sequence = data.resume(&device, compute, arriving).expect("sound");
    assert_ne!(sequence.pages()[0], first, "its page is not free before it was seen to be");
    device.copy(compute, data.page(sequence.pages()[0]), page.span()).expect("sound");
    device.sync(compute).expect("sound");
    let right = device.read_host(page.span(), |bytes| bytes.iter().all(|&b| b == BYTE));
    (right, device.calls().waits)
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
    // None dropped; out after computation; in after what sequences grew by (nothing here); in after out; use after in.
    assert_eq!(caught, [false, true, false, true, true]);
}

/// A page whose copy into a fork is enqueued is given back; a parked sequence comes back into it.
fn fork_scenario(config: SimConfig) -> (bool, u64) {
    let device = sim(config);
    let compute = device.stream().expect("a stream");
    let layout = djinn_vmu::KvLayout { pages: 3, ..world::layout(false) };
    let mut data = DataSegment::new(&device, layout).expect("a segment");
    let page = device.alloc(Space::Host, layout.page_bytes()).expect("a page");
    let mut other = Sequence::default();
    data.grow(&device, compute, &mut other, 4).expect("sound").expect("room");
    device.fill(compute, data.page(other.pages()[0]), 2).expect("sound");
    let parked = data.park(&device, compute, other).expect("sound").expect("room");
    data.settle(&device).expect("sound");
    let mut parent = Sequence::default();
    data.grow(&device, compute, &mut parent, 2).expect("sound").expect("room");
    device.fill(compute, data.page(parent.pages()[0]), 1).expect("sound");
    let mut fork = data.fork(&parent);
    device.sync(compute).expect("sound");
    data.grow(&device, compute, &mut fork, 1).expect("sound").expect("room");
    let given = parent.pages()[0];
    data.release(parent);
    let arriving = data.restore(&device, parked).expect("sound").expect("room");
    assert_eq!(arriving.pages(), [given]);
    device.copy(compute, data.page(fork.pages()[0]), page.span()).expect("sound");
    device.sync(compute).expect("sound");
    let right = device.read_host(page.span(), |bytes| bytes.iter().all(|&b| b == 1));
    data.cancel(arriving);
    (right, device.calls().waits)
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
        let mut world = World::new(device, seed % 2 == 0).expect("a world");
        match live(&mut world, seed, 100) {
            Ok(()) => {}
            Err(Stop::Wrong(what)) => {
                assert!(what.contains("token") || what.contains("KV check"), "seed {seed}: {what}");
                wrong += 1;
            }
            Err(stop) => panic!("seed {seed}: {stop:?}"),
        }
        world.end();
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
        let mut world = World::new(sim(SimConfig { seed, ..SimConfig::default() }), check).expect("a world");
        for (kind, a, b) in events {
            let happened = world.happen(kind, a, b).and_then(|()| world.audit());
            prop_assert!(happened.is_ok(), "{happened:?}");
        }
        let home = world.come_home();
        prop_assert!(home.is_ok(), "{home:?}");
        world.end();
    }
}
