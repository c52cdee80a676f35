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
