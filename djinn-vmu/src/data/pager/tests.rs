//! What needs a look inside: corrupted host pages, and what holds poison.

use crate::{DataSegment, Error, KvLayout, Sequence};
use djinn_device::{DType, Device, SimConfig, SimDevice, Space, Stream};
use djinn_srg::KvShape;

fn rig(check: bool) -> (SimDevice, Stream, DataSegment) {
    let shape = KvShape { layers: 1, kv_heads: 1, head_dim: 4 };
    let layout = KvLayout {
        shape,
        dtype: DType::F32,
        page_tokens: 2,
        pages: 6,
        sequences: 1,
        table_width: 6,
        host_pages: 6,
        check,
    };
    let device = SimDevice::new(SimConfig { seed: 3, ..SimConfig::default() }).unwrap();
    let (data, compute) = (DataSegment::new(&device, layout).unwrap(), device.stream().unwrap());
    (device, compute, data)
}

fn grown(device: &SimDevice, compute: Stream, data: &mut DataSegment, tokens: u64) -> Sequence {
    let mut sequence = Sequence::default();
    data.grow(device, compute, &mut sequence, tokens).unwrap().unwrap();
    sequence
}

fn bytes(device: &SimDevice, compute: Stream, data: &DataSegment, page: u32) -> Vec<u8> {
    let host = device.alloc(Space::Host, data.layout().page_bytes()).unwrap();
    device.copy(compute, data.page(page), host.span()).unwrap();
    device.sync(compute).unwrap();
    let bytes = device.read_host(host.span(), <[u8]>::to_vec);
    device.free(host);
    bytes
}

#[test]
fn check_mode_names_every_sequence_that_came_back_with_other_bytes() {
    let (device, compute, mut data) = rig(true);
    let mut parked = Vec::new();
    for byte in 1..=3 {
        let sequence = grown(&device, compute, &mut data, 4);
        sequence.pages().iter().for_each(|&page| device.fill(compute, data.page(page), byte).unwrap());
        parked.push(data.park(&device, compute, sequence).unwrap().unwrap());
    }
    assert_eq!(data.settle(&device).unwrap().len(), 3);
    // One bit of a page of the first sequence and of the last, while they are out.
    let swap = data.swap.as_ref().unwrap();
    for page in [1, 4] {
        device.write_host(swap.host_page(page), |bytes| bytes[9] ^= 4);
    }
    for one in parked {
        let arriving = data.restore(&device, one).unwrap().unwrap();
        data.resume(&device, compute, arriving).unwrap();
    }
    let mut corrupt = Vec::new();
    let told = loop {
        match data.settle(&device) {
            Err(Error::KvCorrupt { sequence, page, expected, found }) => {
                assert_ne!(expected, found);
                corrupt.push((sequence, page));
            }
            told => break told.unwrap(),
        }
    };
    assert_eq!(corrupt, [(0, 1), (2, 4)]);
    assert_eq!(told.len(), 3, "the transfers are told all the same");
}

#[test]
fn in_check_mode_pages_that_hold_nothing_are_nan() {
    let (device, compute, mut data) = rig(true);
    let sequence = grown(&device, compute, &mut data, 4);
    let pages = sequence.pages().to_vec();
    pages.iter().for_each(|&page| device.fill(compute, data.page(page), 7).unwrap());
    let parked = data.park(&device, compute, sequence).unwrap().unwrap();
    data.settle(&device).unwrap();
    assert!(bytes(&device, compute, &data, pages[0]).iter().all(|&b| b == 0xFF), "it left");
    let arriving = data.restore(&device, parked).unwrap().unwrap();
    let sequence = data.resume(&device, compute, arriving).unwrap();
    assert!(bytes(&device, compute, &data, sequence.pages()[0]).iter().all(|&b| b == 7), "it is back");
    data.release(sequence);
    data.settle(&device).unwrap();
    let next = grown(&device, compute, &mut data, 4);
    assert_eq!(next.pages(), pages);
    assert!(bytes(&device, compute, &data, pages[0]).iter().all(|&b| b == 0xFF), "it was released");
}

#[test]
fn a_fork_parks_its_own_pages_only() {
    let (device, compute, mut data) = rig(false);
    let parent = grown(&device, compute, &mut data, 4);
    let mut fork = data.fork(&parent);
    data.grow(&device, compute, &mut fork, 3).unwrap().unwrap();
    let parked = data.park(&device, compute, fork).unwrap().unwrap();
    assert_eq!((parked.host_pages(), parked.shared_pages().count()), (2, 2));
    let out = data.settle(&device).unwrap();
    assert_eq!((out[0].pages, data.free_pages()), (2, 4));
    // The parent's pages stay the fork's when the parent goes.
    data.release(parent);
    assert_eq!(data.free_pages(), 4);
    let arriving = data.restore(&device, parked).unwrap().unwrap();
    assert_eq!((arriving.tokens(), arriving.pages().len()), (7, 4));
    data.cancel(arriving);
    data.settle(&device).unwrap();
    assert_eq!((data.free_pages(), data.free_host_pages()), (6, 6));
}

#[test]
fn a_full_device_says_what_will_be_free() {
    let (device, compute, mut data) = rig(false);
    let sequence = grown(&device, compute, &mut data, 8);
    let parked = data.park(&device, compute, sequence).unwrap().unwrap();
    let mut other = Sequence::default();
    let full = data.grow(&device, compute, &mut other, 6).unwrap().unwrap_err();
    assert_eq!((full.requested, full.free, full.leaving), (3, 2, 4));
    data.settle(&device).unwrap();
    data.grow(&device, compute, &mut other, 6).unwrap().unwrap();
    let full = data.restore(&device, parked).unwrap().unwrap_err();
    let crate::Refusal::PagesFull(pages) = full.why else { panic!("{full:?}") };
    assert_eq!((pages.requested, pages.free, pages.leaving), (4, 3, 0));
    // The other makes room, but the host is short until the first is back.
    let refused = data.park(&device, compute, other).unwrap().unwrap_err();
    let crate::Refusal::HostFull(host) = refused.why else { panic!("{refused:?}") };
    assert_eq!((host.requested, host.free, host.leaving), (3, 2, 0));
    data.release(refused.sequence);
    let arriving = data.restore(&device, full.sequence).unwrap().unwrap();
    assert_eq!((data.free_host_pages(), data.leaving_host_pages()), (2, 4));
    data.settle(&device).unwrap();
    assert_eq!(data.free_host_pages(), 6);
    data.cancel(arriving);
    assert_eq!(data.free_pages(), 6);
}

#[test]
fn without_host_pages_only_what_is_shared_is_parked() {
    let (device, compute, data) = rig(false);
    let layout = KvLayout { host_pages: 0, ..*data.layout() };
    data.free(&device);
    let mut data = DataSegment::new(&device, layout).unwrap();
    let sequence = grown(&device, compute, &mut data, 3);
    let refused = data.park(&device, compute, sequence).unwrap().unwrap_err();
    let crate::Refusal::HostFull(full) = refused.why else { panic!("{refused:?}") };
    assert_eq!((full.requested, full.free, full.leaving), (2, 0, 0));
    let fork = data.fork(&refused.sequence);
    let parked = data.park(&device, compute, fork).unwrap().unwrap();
    let arriving = data.restore(&device, parked).unwrap().unwrap();
    assert!(data.has_arrived(&arriving));
    assert_eq!(data.resume(&device, compute, arriving).unwrap(), refused.sequence);
}

/// Parks a sequence, settles and takes it back; pages copied out and left without a copy since the start.
fn there_and_back(
    device: &SimDevice,
    compute: Stream,
    data: &mut DataSegment,
    sequence: Sequence,
) -> (Sequence, u64, u64) {
    let parked = data.park(device, compute, sequence).unwrap().unwrap();
    data.settle(device).unwrap();
    let arriving = data.restore(device, parked).unwrap().unwrap();
    let sequence = data.resume(device, compute, arriving).unwrap();
    data.settle(device).unwrap();
    let stats = data.swap_stats();
    (sequence, stats.out.pages, stats.kept)
}

#[test]
fn only_what_changed_is_copied_out_again() {
    for check in [false, true] {
        let (device, compute, mut data) = rig(check);
        // Pages of two tokens: three tokens are a full page and a partial one.
        let mut sequence = grown(&device, compute, &mut data, 3);
        sequence.pages().iter().for_each(|&page| device.fill(compute, data.page(page), 5).unwrap());
        let (mut out, mut kept);
        (sequence, out, kept) = there_and_back(&device, compute, &mut data, sequence);
        assert_eq!((out, kept), (2, 0));
        assert_eq!((data.free_host_pages(), data.leaving_host_pages()), (6, 0), "clean copies can be had");
        (sequence, out, kept) = there_and_back(&device, compute, &mut data, sequence);
        assert_eq!((out, kept), (2, 2), "nothing changed");
        // A fourth token is written into the partial page, a fifth into a fresh one.
        data.grow(&device, compute, &mut sequence, 2).unwrap().unwrap();
        for &page in &sequence.pages()[1..] {
            device.fill(compute, data.page(page), 6).unwrap();
        }
        (sequence, out, kept) = there_and_back(&device, compute, &mut data, sequence);
        assert_eq!((out, kept), (4, 3), "the full page stayed as it was");
        let held: Vec<u8> =
            sequence.pages().iter().map(|&page| bytes(&device, compute, &data, page)[0]).collect();
        assert_eq!(held, [5, 6, 6]);
        // A turn is taken back and another one written in its place.
        device.sync(compute).unwrap();
        data.truncate(&mut sequence, 1);
        data.grow(&device, compute, &mut sequence, 1).unwrap().unwrap();
        device.fill(compute, data.page(sequence.pages()[0]), 7).unwrap();
        (sequence, out, kept) = there_and_back(&device, compute, &mut data, sequence);
        assert_eq!((out, kept), (5, 3));
        assert_eq!(bytes(&device, compute, &data, sequence.pages()[0])[0], 7);
        data.forget_copies();
        (sequence, out, kept) = there_and_back(&device, compute, &mut data, sequence);
        assert_eq!((out, kept), (6, 3));
        data.audit([&sequence], None, None);
        data.release(sequence);
        data.audit(None, None, None);
    }
}

#[test]
fn clean_copies_make_room_for_who_leaves() {
    let (device, compute, mut data) = rig(true);
    let first = grown(&device, compute, &mut data, 8);
    first.pages().iter().for_each(|&page| device.fill(compute, data.page(page), 1).unwrap());
    let (first, ..) = there_and_back(&device, compute, &mut data, first);
    let second = grown(&device, compute, &mut data, 4);
    second.pages().iter().for_each(|&page| device.fill(compute, data.page(page), 2).unwrap());
    // Four of six host pages hold clean copies; two are empty. The other leaves first, then both are out.
    let second = data.park(&device, compute, second).unwrap().unwrap();
    data.settle(&device).unwrap();
    let third = grown(&device, compute, &mut data, 2);
    device.fill(compute, data.page(third.pages()[0]), 3).unwrap();
    let third = data.park(&device, compute, third).unwrap().unwrap();
    assert_eq!(data.free_host_pages(), 3, "the oldest copy went");
    data.audit([&first], [&second, &third], None);
    let refused = data.park(&device, compute, first).unwrap().unwrap_err();
    let crate::Refusal::HostFull(full) = refused.why else { panic!("{refused:?}") };
    assert_eq!((full.requested, full.free), (4, 3));
    data.settle(&device).unwrap();
    data.discard(third);
    let parked = data.park(&device, compute, refused.sequence).unwrap().unwrap();
    data.settle(&device).unwrap();
    assert_eq!(data.swap_stats().kept, 3);
    let arriving = data.restore(&device, parked).unwrap().unwrap();
    let first = data.resume(&device, compute, arriving).unwrap();
    data.settle(&device).unwrap();
    for &page in first.pages() {
        assert!(bytes(&device, compute, &data, page).iter().all(|&b| b == 1));
    }
    data.audit([&first], [&second], None);
}

#[test]
fn check_mode_notices_a_copy_that_is_clean_no_more() {
    let (device, compute, mut data) = rig(true);
    let sequence = grown(&device, compute, &mut data, 4);
    sequence.pages().iter().for_each(|&page| device.fill(compute, data.page(page), 1).unwrap());
    let (sequence, ..) = there_and_back(&device, compute, &mut data, sequence);
    // Nobody was told of this.
    device.fill(compute, data.page(sequence.pages()[1]), 2).unwrap();
    let parked = data.park(&device, compute, sequence).unwrap().unwrap();
    data.settle(&device).unwrap();
    let arriving = data.restore(&device, parked).unwrap().unwrap();
    let page = arriving.pages()[1];
    let Err(Error::KvCorrupt { page: found, .. }) = data.settle(&device) else { panic!("unnoticed") };
    assert_eq!(found, page);
    data.cancel(arriving);
}

#[test]
fn a_copy_that_is_held_back_comes_when_it_is_wanted() {
    let (device, compute, mut data) = rig(false);
    let page_bytes = data.layout().page_bytes();
    data.set_pace(crate::SwapPace { piece_bytes: page_bytes, least_bytes: 2 * page_bytes });
    let weights = device.stream().unwrap();
    let sequence = grown(&device, compute, &mut data, 10);
    sequence.pages().iter().for_each(|&page| device.fill(compute, data.page(page), 9).unwrap());
    let parked = data.park(&device, compute, sequence).unwrap().unwrap();
    data.settle(&device).unwrap();
    data.share_link(&device, weights, 1).unwrap();
    let before = device.calls().copies;
    let arriving = data.restore(&device, parked).unwrap().unwrap();
    assert_eq!(device.calls().copies - before, 2, "two of five pages may be under way");
    assert!(!data.has_arrived(&arriving));
    data.audit(None, None, [&arriving]);
    let sequence = data.resume(&device, compute, arriving).unwrap();
    assert_eq!(device.calls().copies - before, 5);
    assert!(sequence.pages().iter().all(|&page| bytes(&device, compute, &data, page)[0] == 9));
    data.settle(&device).unwrap();
    data.audit([&sequence], None, None);

    // Without streaming nothing is held back; while copies are, the host's looks bring the rest.
    for streamed in [0, 1] {
        data.forget_copies();
        let sequence = grown(&device, compute, &mut data, 2);
        let parked = data.park(&device, compute, sequence).unwrap().unwrap();
        data.settle(&device).unwrap();
        data.share_link(&device, weights, streamed).unwrap();
        let arriving = data.restore(&device, parked).unwrap().unwrap();
        while !data.has_arrived(&arriving) {
            data.poll(&device).unwrap();
        }
        data.cancel(arriving);
    }
    data.release(sequence);
    data.settle(&device).unwrap();
    data.audit(None, None, None);
}
