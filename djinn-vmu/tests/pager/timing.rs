//! Copies beside computation and beside each other, on the simulated clock.

use super::kv::Kv;
use djinn_cpu::{SimConfig, SimDevice};
use djinn_device::{Device, Space, Stream};
use djinn_vmu::{Direction, KvLayout, SWAP_PIECE_BYTES, Transfer};
use std::time::Duration;

const PAGES: u32 = 4;

/// A link of a byte each microsecond; computation that moves eight bytes in that time.
fn device(seed: u64) -> SimDevice {
    SimDevice::new(SimConfig {
        seed,
        link_bytes_per_second: 1e6,
        memory_bytes_per_second: 8e6,
        launch_overhead: Duration::ZERO,
        ..SimConfig::default()
    })
    .expect("a device")
}

/// When all work so far on the stream is done.
fn now(device: &SimDevice, stream: Stream) -> Duration {
    let event = device.event().unwrap();
    device.record(stream, event).unwrap();
    device.sync_event(event).unwrap();
    device.timestamp(event).unwrap()
}

fn only(transfers: &[Transfer], direction: Direction) -> Transfer {
    let mut found = transfers.iter().filter(|t| t.direction == direction);
    let one = *found.next().expect("a transfer");
    assert_eq!(found.next(), None);
    one
}

#[test]
fn swaps_run_beside_computation() {
    for seed in 0..50 {
        let device = device(seed);
        let mut kv = Kv::new(&device, super::world::layout(false)).unwrap();
        let work = device.alloc(Space::Device, 64 << 10).unwrap();
        let mut table = kv.filled(PAGES);
        let bytes = PAGES as u64 * kv.data.layout().page_bytes();
        let written = now(&device, kv.compute);
        assert!(kv.swap(Direction::Out, 0, &mut table).unwrap());
        device.fill(kv.compute, work.span(), 0).unwrap();
        let computed = now(&device, kv.compute);
        assert_eq!(computed, written + Duration::from_micros((64 << 10) / 8), "nothing waited for the copy");
        let out = kv.settle(&mut table).unwrap();
        assert_eq!((out.begin, out.moved()), (Some(written), Some(Duration::from_micros(bytes))));
        assert!(out.end.unwrap() < computed, "the copy is done before the computation beside it");
        assert_eq!(out.asked.map(|at| at <= written), Some(true));
        assert_eq!(out.total(), Some(out.first_byte().unwrap() + out.moved().unwrap()));

        // And back: nothing waits for it.
        assert!(kv.swap(Direction::In, 0, &mut table).unwrap());
        device.fill(kv.compute, work.span(), 0).unwrap();
        let beside = now(&device, kv.compute);
        assert_eq!(beside, computed + Duration::from_micros((64 << 10) / 8));
        let back = kv.settle(&mut table).unwrap();
        assert!(back.begin.unwrap() < beside && back.end.unwrap() <= beside, "{back:?} beside {beside:?}");
    }
}

#[test]
fn the_two_directions_run_at_once() {
    for seed in 0..50 {
        let device = device(seed);
        let layout = KvLayout { host_pages: 8, ..super::world::layout(false) };
        let mut kv = Kv::new(&device, layout).unwrap();
        let (mut first, mut second) = (kv.filled(PAGES), kv.filled(PAGES));
        assert!(kv.swap(Direction::Out, 0, &mut first).unwrap());
        kv.settle(&mut first).unwrap();
        let start = now(&device, kv.compute);
        assert!(kv.swap(Direction::Out, 1, &mut second).unwrap());
        assert!(kv.swap(Direction::In, 0, &mut first).unwrap());
        let ended = kv.data.settle(&device).unwrap();
        let (out, back) = (only(&ended, Direction::Out), only(&ended, Direction::In));
        let one = out.moved().unwrap();
        assert_eq!(back.moved(), Some(one));
        let last = out.end.max(back.end).unwrap();
        assert!(last < start + one + one, "{out:?} and {back:?} take turns");
    }
}

#[test]
fn copies_of_weights_come_between_the_pieces_of_a_restore() {
    const WEIGHT_BYTES: u64 = 1 << 20;
    let time = |bytes| Duration::from_secs_f64(bytes as f64 / 1e6);
    let mut between = 0;
    for seed in 0..20 {
        let device = device(seed);
        let weights = device.stream().unwrap();
        let layout = KvLayout {
            token_bytes: SWAP_PIECE_BYTES,
            page_tokens: 1,
            pages: 4,
            table_width: 4,
            host_pages: 4,
            ..super::world::layout(false)
        };
        let mut kv = Kv::new(&device, layout).unwrap();
        let mut table = kv.filled(4);
        assert!(kv.swap(Direction::Out, 0, &mut table).unwrap());
        kv.settle(&mut table).unwrap();
        let host = device.alloc(Space::Host, WEIGHT_BYTES).unwrap();
        let ring = device.alloc(Space::Device, WEIGHT_BYTES).unwrap();
        assert!(kv.swap(Direction::In, 0, &mut table).unwrap());
        device.copy(weights, host.span(), ring.span()).unwrap();
        let weight = now(&device, weights);
        let back = kv.settle(&mut table).unwrap();
        let after_a_piece = weight - time(WEIGHT_BYTES) >= back.begin.unwrap() + time(SWAP_PIECE_BYTES);
        between += (after_a_piece && weight < back.end.unwrap()) as u32;
    }
    assert!(between > 0, "a weight's copy is never between two pieces");
}
