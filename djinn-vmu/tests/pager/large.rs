//! Pages as large as real ones: transfers in several pieces.

use djinn_device::{DType, Device, SimConfig, SimDevice, Space, Stream};
use djinn_srg::KvShape;
use djinn_vmu::{DataSegment, Direction, KvLayout, NotMoved, Refusal, SWAP_PIECE_BYTES, Sequence};

const PAGES: u32 = 4;

/// One token for each page, of `page_bytes`.
fn layout(page_bytes: u64, check: bool) -> KvLayout {
    let shape = KvShape { layers: 1, kv_heads: 1, head_dim: (page_bytes / 8) as u32 };
    KvLayout {
        shape,
        dtype: DType::F32,
        page_tokens: 1,
        pages: PAGES,
        sequences: 1,
        table_width: PAGES,
        host_pages: PAGES,
        check,
    }
}

fn written(device: &SimDevice, data: &mut DataSegment, compute: Stream) -> Sequence {
    let mut sequence = Sequence::default();
    data.grow(device, compute, &mut sequence, PAGES as u64).unwrap().unwrap();
    for (i, &page) in sequence.pages().iter().enumerate() {
        device.fill(compute, data.page(page), i as u8 + 1).unwrap();
    }
    sequence
}

fn expect_written(device: &SimDevice, data: &DataSegment, compute: Stream, sequence: &Sequence) {
    let host = device.alloc(Space::Host, data.layout().page_bytes()).unwrap();
    for (i, &page) in sequence.pages().iter().enumerate() {
        device.copy(compute, data.page(page), host.span()).unwrap();
        device.sync(compute).unwrap();
        let same = device.read_host(host.span(), |bytes| bytes.iter().all(|&b| b == i as u8 + 1));
        assert!(same, "page {i}");
    }
    device.free(host);
}

#[test]
fn large_transfers_go_in_pieces_and_stay_whole() {
    // Two pages in each piece, one, and two copies for each page.
    for (page_bytes, check, copies) in [
        (SWAP_PIECE_BYTES / 2, false, 2),
        (SWAP_PIECE_BYTES - 4096, false, 4),
        (SWAP_PIECE_BYTES + 4096, false, 8),
        (SWAP_PIECE_BYTES / 2, true, 2 + 4),
    ] {
        let device = SimDevice::new(SimConfig { seed: 5, ..SimConfig::default() }).unwrap();
        let compute = device.stream().unwrap();
        let mut data = DataSegment::new(&device, layout(page_bytes, check)).unwrap();
        let sequence = written(&device, &mut data, compute);
        let before = device.calls().copies;
        let parked = data.park(&device, compute, sequence).unwrap().unwrap();
        assert_eq!(device.calls().copies - before, copies, "pages of {page_bytes} bytes");
        let out = data.settle(&device).unwrap();
        assert_eq!((out.len(), out[0].pages, out[0].bytes), (1, PAGES, PAGES as u64 * page_bytes));
        assert_eq!((out[0].direction, out[0].ticket), (Direction::Out, parked.ticket()));
        assert_eq!(data.free_pages(), PAGES);
        let arriving = data.restore(&device, parked).unwrap().unwrap();
        assert!(!data.has_arrived(&arriving), "nobody looked yet");
        data.settle(&device).unwrap();
        assert!(data.has_arrived(&arriving));
        let sequence = data.resume(&device, compute, arriving).unwrap();
        expect_written(&device, &data, compute, &sequence);
        let stats = data.swap_stats();
        assert_eq!((stats.out.transfers, stats.out.pages), (1, PAGES as u64));
        assert_eq!(stats.out.bytes, stats.back.bytes);
        assert!(!stats.out.busy.is_zero() && !stats.back.busy.is_zero());
    }
}

#[test]
fn pages_are_free_piece_by_piece() {
    let mut seen_part = false;
    for seed in 0..50 {
        let device = SimDevice::new(SimConfig { seed, ..SimConfig::default() }).unwrap();
        let compute = device.stream().unwrap();
        let mut data = DataSegment::new(&device, layout(SWAP_PIECE_BYTES, false)).unwrap();
        let sequence = written(&device, &mut data, compute);
        let parked = data.park(&device, compute, sequence).unwrap().unwrap();
        for _ in 0..40 {
            data.poll(&device).unwrap();
            seen_part |= (1..PAGES).contains(&data.free_pages());
            assert_eq!(data.free_pages() + data.leaving_pages(), PAGES);
        }
        data.settle(&device).unwrap();
        assert_eq!(data.free_pages(), PAGES);
        data.discard(parked);
        data.free(&device);
        if seen_part {
            return;
        }
    }
    panic!("no seed frees a part of a transfer's pages");
}

#[test]
fn a_copy_refused_half_way_takes_nothing() {
    for check in [false, true] {
        // Each copy of the way out in turn, then of the way back.
        let refused_of = if check { 2 + 4 } else { 4 };
        for nth in 1..=2 * refused_of {
            let config = SimConfig { seed: nth, refuse_copy_at: Some(nth), ..SimConfig::default() };
            let device = SimDevice::new(config).unwrap();
            let compute = device.stream().unwrap();
            let page_bytes = if check { SWAP_PIECE_BYTES / 2 } else { SWAP_PIECE_BYTES };
            let mut data = DataSegment::new(&device, layout(page_bytes, check)).unwrap();
            let sequence = written(&device, &mut data, compute);
            let mut refused = 0;
            let parked = match data.park(&device, compute, sequence).unwrap() {
                Ok(parked) => parked,
                Err(NotMoved { sequence, why: Refusal::Copy(_) }) => {
                    refused += 1;
                    expect_written(&device, &data, compute, &sequence);
                    data.settle(&device).unwrap();
                    data.park(&device, compute, sequence).unwrap().unwrap()
                }
                Err(other) => panic!("{other:?}"),
            };
            data.settle(&device).unwrap();
            let arriving = match data.restore(&device, parked).unwrap() {
                Ok(arriving) => arriving,
                Err(NotMoved { sequence, why: Refusal::Copy(_) }) => {
                    refused += 1;
                    data.settle(&device).unwrap();
                    assert_eq!(data.free_pages(), PAGES);
                    data.restore(&device, sequence).unwrap().unwrap()
                }
                Err(other) => panic!("{other:?}"),
            };
            assert_eq!(refused, 1, "copy {nth}");
            let sequence = data.resume(&device, compute, arriving).unwrap();
            expect_written(&device, &data, compute, &sequence);
            data.release(sequence);
            data.settle(&device).unwrap();
            assert_eq!((data.free_pages(), data.free_host_pages()), (PAGES, PAGES));
            data.free(&device);
        }
    }
}
