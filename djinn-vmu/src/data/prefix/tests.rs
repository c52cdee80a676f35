//! What is found, under which salt, and what goes first.

use crate::{DataSegment, KvLayout, Sequence};
use djinn_device::{CpuConfig, CpuDevice, DType, Device, Math, Stream};
use djinn_srg::KvShape;

fn rig(pages: u32) -> (CpuDevice, Stream, DataSegment) {
    let shape = KvShape { layers: 1, kv_heads: 1, head_dim: 4 };
    let layout = KvLayout {
        shape,
        dtype: DType::F32,
        page_tokens: 2,
        pages,
        sequences: 1,
        table_width: 4,
        host_pages: 4,
        check: false,
    };
    let config = CpuConfig { math: Math::Reference, threads: 1, ..CpuConfig::default() };
    let device = CpuDevice::new(config).unwrap();
    let (data, compute) = (DataSegment::new(&device, layout).unwrap(), device.stream().unwrap());
    (device, compute, data)
}

fn published(device: &CpuDevice, compute: Stream, data: &mut DataSegment, tokens: &[u32]) -> Sequence {
    let mut sequence = Sequence::default();
    data.grow(device, compute, &mut sequence, tokens.len() as u64).unwrap().unwrap();
    data.publish(b"a", tokens, &sequence);
    sequence
}

#[test]
fn the_longest_run_of_full_pages_is_shared() {
    let (device, compute, mut data) = rig(8);
    let first = published(&device, compute, &mut data, &[1, 2, 3, 4, 5]);
    let same = data.lookup(b"a", &[1, 2, 3, 4, 5, 6]);
    assert_eq!((same.tokens(), same.pages()), (4, &first.pages()[..2]), "the partial page is not shared");
    assert_eq!(data.lookup(b"a", &[1, 2, 9, 4]).tokens(), 2);
    assert_eq!(data.lookup(b"a", &[1]).tokens(), 0);
    assert_eq!(data.lookup(b"a", &[3, 4]).tokens(), 0, "equal tokens elsewhere are another content");
    assert_eq!(data.lookup(b"b", &[1, 2, 3, 4]).tokens(), 0, "another salt");
    assert_eq!(data.lookup(b"", &[1, 2, 3, 4]).tokens(), 0, "no salt");
}

#[test]
fn cached_pages_count_as_free_and_the_oldest_go_first() {
    let (device, compute, mut data) = rig(4);
    let old = published(&device, compute, &mut data, &[1, 2, 3, 4]);
    data.release(old);
    let new = published(&device, compute, &mut data, &[5, 6]);
    data.release(new);
    assert_eq!((data.free_pages(), data.cached_pages()), (4, 3));
    // One page is free; the second is the last one of the sequence that was let go first.
    let mut taker = Sequence::default();
    data.grow(&device, compute, &mut taker, 4).unwrap().unwrap();
    assert_eq!(data.cached_pages(), 2);
    let found = data.lookup(b"a", &[1, 2, 3, 4]);
    assert_eq!((found.tokens(), data.cached_pages(), data.free_pages()), (2, 1, 1));
    data.release(found);
    // Now the other one is the oldest.
    data.grow(&device, compute, &mut taker, 2).unwrap().unwrap();
    assert_eq!(data.lookup(b"a", &[5, 6]).tokens(), 0);
    let found = data.lookup(b"a", &[1, 2]);
    assert_eq!(found.tokens(), 2);
    let full = data.grow(&device, compute, &mut taker, 2).unwrap().unwrap_err();
    assert_eq!((full.requested, full.free), (1, 0), "what is referred to is not evicted");
}

#[test]
fn a_page_that_is_written_again_is_forgotten_or_copied() {
    let (device, compute, mut data) = rig(6);
    let mut alone = published(&device, compute, &mut data, &[1, 2, 3, 4]);
    device.sync(compute).unwrap();
    data.truncate(&mut alone, 3);
    let page = alone.pages()[1];
    data.grow(&device, compute, &mut alone, 1).unwrap().unwrap();
    assert_eq!(alone.pages()[1], page, "nobody else reads it");
    assert_eq!(data.lookup(b"a", &[1, 2, 3, 4]).tokens(), 2, "but nobody finds it either");
    data.release(alone);

    let (device, compute, mut data) = rig(6);
    let mut first = published(&device, compute, &mut data, &[1, 2, 3, 4]);
    let second = data.lookup(b"a", &[1, 2, 3, 4]);
    data.truncate(&mut first, 3);
    data.grow(&device, compute, &mut first, 1).unwrap().unwrap();
    assert_ne!(first.pages()[1], second.pages()[1]);
    assert_eq!(data.lookup(b"a", &[1, 2, 3, 4]).tokens(), 4, "the content that was published is still there");
}

#[test]
fn parked_pages_stay_cached_while_there_is_room() {
    let (device, compute, mut data) = rig(4);
    let sequence = published(&device, compute, &mut data, &[1, 2, 3, 4]);
    let parked = data.park(&device, compute, sequence).unwrap().unwrap();
    assert_eq!(parked.host_pages(), 2, "the cache is no reason to stay");
    // Found while it is copied out: whoever writes there gets a copy.
    let mut found = data.lookup(b"a", &[1, 2, 3, 4]);
    assert_eq!(found.tokens(), 4);
    data.truncate(&mut found, 3);
    let page = found.pages()[1];
    data.grow(&device, compute, &mut found, 1).unwrap().unwrap();
    assert_ne!(found.pages()[1], page);
    data.settle(&device).unwrap();
    assert_eq!((data.free_pages(), data.cached_pages()), (2, 1));
    device.sync(compute).unwrap();
    data.release(found);
    let mut taker = Sequence::default();
    data.grow(&device, compute, &mut taker, 8).unwrap().unwrap();
    assert_eq!(data.lookup(b"a", &[1, 2]).tokens(), 0, "room was needed");
    data.discard(parked);
    assert_eq!(data.free_host_pages(), 4);
}
