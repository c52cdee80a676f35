//! Copies beside computation and beside each other, on the simulated clock.

use djinn_device::{Device, SimConfig, SimDevice, Space, Stream};
use djinn_srg::KvShape;
use djinn_vmu::{DataSegment, Direction, KvLayout, SWAP_PIECE_BYTES, Sequence, Transfer};
use std::time::Duration;

const TOKENS: u64 = 16;

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

fn grown(device: &SimDevice, data: &mut DataSegment, compute: Stream) -> Sequence {
    let mut sequence = Sequence::default();
    data.grow(device, compute, &mut sequence, TOKENS).unwrap().unwrap();
    for &page in sequence.pages() {
        device.fill(compute, data.page(page), 1).unwrap();
    }
    sequence
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
fn parking_runs_beside_computation() {
    for seed in 0..50 {
        let device = device(seed);
        let compute = device.stream().unwrap();
        let mut data = DataSegment::new(&device, super::world::layout(false)).unwrap();
        let work = device.alloc(Space::Device, 64 << 10).unwrap();
        let sequence = grown(&device, &mut data, compute);
        let bytes = sequence.pages().len() as u64 * data.layout().page_bytes();
        let written = now(&device, compute);
        let parked = data.park(&device, compute, sequence).unwrap().unwrap();
        device.fill(compute, work.span(), 0).unwrap();
        let computed = now(&device, compute);
        assert_eq!(computed, written + Duration::from_micros((64 << 10) / 8), "nothing waited for the copy");
        let out = only(&data.settle(&device).unwrap(), Direction::Out);
        assert_eq!((out.begin, out.moved()), (Some(written), Some(Duration::from_micros(bytes))));
        assert!(out.end.unwrap() < computed, "the copy is done before the computation beside it");
        assert_eq!(out.asked.map(|at| at <= written), Some(true));
        assert_eq!(out.total(), Some(out.first_byte().unwrap() + out.moved().unwrap()));

        // And back: computation goes on until the sequence is used.
        let arriving = data.restore(&device, parked).unwrap().unwrap();
        device.fill(compute, work.span(), 0).unwrap();
        let beside = now(&device, compute);
        let sequence = data.resume(&device, compute, arriving).unwrap();
        let resumed = now(&device, compute);
        let back = only(&data.settle(&device).unwrap(), Direction::In);
        assert!(back.begin.unwrap() < beside && back.end.unwrap() <= beside, "{back:?} beside {beside:?}");
        assert_eq!(resumed, beside, "nothing is left to wait for");
        data.release(sequence);
    }
}

#[test]
fn a_resumed_sequence_waits_for_its_copy_and_no_more() {
    let device = device(1);
    let compute = device.stream().unwrap();
    let mut data = DataSegment::new(&device, super::world::layout(false)).unwrap();
    let sequence = grown(&device, &mut data, compute);
    let parked = data.park(&device, compute, sequence).unwrap().unwrap();
    data.settle(&device).unwrap();
    let arriving = data.restore(&device, parked).unwrap().unwrap();
    data.resume(&device, compute, arriving).unwrap();
    let resumed = now(&device, compute);
    let back = only(&data.settle(&device).unwrap(), Direction::In);
    assert_eq!(Some(resumed), back.end);
}

#[test]
fn the_two_directions_run_at_once() {
    for seed in 0..50 {
        let device = device(seed);
        let compute = device.stream().unwrap();
        let layout = KvLayout { host_pages: 8, ..super::world::layout(false) };
        let mut data = DataSegment::new(&device, layout).unwrap();
        let first = grown(&device, &mut data, compute);
        let second = grown(&device, &mut data, compute);
        let parked = data.park(&device, compute, first).unwrap().unwrap();
        data.settle(&device).unwrap();
        let start = now(&device, compute);
        data.park(&device, compute, second).unwrap().unwrap();
        data.restore(&device, parked).unwrap().unwrap();
        let ended = data.settle(&device).unwrap();
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
        let (compute, weights) = (device.stream().unwrap(), device.stream().unwrap());
        let head_dim = (SWAP_PIECE_BYTES / 8) as u32;
        let layout = KvLayout {
            shape: KvShape { layers: 1, kv_heads: 1, head_dim },
            page_tokens: 1,
            pages: 4,
            table_width: 4,
            host_pages: 4,
            ..super::world::layout(false)
        };
        let mut data = DataSegment::new(&device, layout).unwrap();
        let mut sequence = Sequence::default();
        data.grow(&device, compute, &mut sequence, 4).unwrap().unwrap();
        let parked = data.park(&device, compute, sequence).unwrap().unwrap();
        data.settle(&device).unwrap();
        let host = device.alloc(Space::Host, WEIGHT_BYTES).unwrap();
        let ring = device.alloc(Space::Device, WEIGHT_BYTES).unwrap();
        data.restore(&device, parked).unwrap().unwrap();
        device.copy(weights, host.span(), ring.span()).unwrap();
        let weight = now(&device, weights);
        let back = only(&data.settle(&device).unwrap(), Direction::In);
        let after_a_piece = weight - time(WEIGHT_BYTES) >= back.begin.unwrap() + time(SWAP_PIECE_BYTES);
        between += (after_a_piece && weight < back.end.unwrap()) as u32;
    }
    assert!(between > 0, "a weight's copy is never between two pieces");
}
