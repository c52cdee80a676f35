//! Pages as large as real ones: transfers in several pieces.

use super::kv::Kv;
use djinn_cpu::{SimConfig, SimDevice};
use djinn_device::DType;
use djinn_pages::{BlockTable, Residency};
use djinn_vmu::{Direction, KvLayout, SWAP_PIECE_BYTES, SwapFault, TextStore};

const PAGES: u32 = 4;

/// One token for each page, of `page_bytes`.
fn layout(page_bytes: u64, check: bool) -> KvLayout {
    KvLayout {
        token_bytes: page_bytes,
        dtype: DType::F32,
        page_tokens: 1,
        pages: PAGES,
        sequences: 1,
        table_width: PAGES,
        host_pages: PAGES,
        check,
    }
}

fn expect_written(kv: &Kv<'_, SimDevice>, table: &BlockTable) {
    for (at, &page) in (1..).zip(table.device()) {
        assert!(super::holds(kv, page, at), "page {at}");
    }
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
        let mut kv = Kv::new(&device, layout(page_bytes, check)).unwrap();
        let mut table = kv.filled(PAGES);
        let before = device.calls().copies;
        assert!(kv.swap(Direction::Out, 7, &mut table).unwrap());
        assert_eq!(device.calls().copies - before, copies, "pages of {page_bytes} bytes");
        let out = kv.settle(&mut table).unwrap();
        assert_eq!((out.pages, out.bytes), (PAGES, PAGES as u64 * page_bytes));
        assert_eq!((out.direction, out.ticket), (Direction::Out, 7));
        assert!(kv.swap(Direction::In, 7, &mut table).unwrap());
        kv.settle(&mut table).unwrap();
        expect_written(&kv, &table);
        let stats = kv.data.swap_stats();
        assert_eq!((stats.out.transfers, stats.out.pages), (1, PAGES as u64));
        assert_eq!(stats.out.bytes, stats.back.bytes);
        assert!(!stats.out.busy.is_zero() && !stats.back.busy.is_zero());
    }
}

#[test]
fn a_copy_refused_half_way_takes_nothing() {
    for check in [false, true] {
        // Each copy of the way out in turn, then of the way back.
        let refused_of = if check { 2 + 4 } else { 4 };
        for nth in 1..=2 * refused_of {
            let config = SimConfig { seed: nth, refuse_copy_at: Some(nth), ..SimConfig::default() };
            let device = SimDevice::new(config).unwrap();
            let page_bytes = if check { SWAP_PIECE_BYTES / 2 } else { SWAP_PIECE_BYTES };
            let mut kv = Kv::new(&device, layout(page_bytes, check)).unwrap();
            let mut table = kv.filled(PAGES);
            assert!(kv.swap(Direction::Out, 0, &mut table).unwrap());
            if kv.settle(&mut table).unwrap().fault.is_some() {
                assert!(nth <= refused_of, "copy {nth}");
                expect_written(&kv, &table);
                assert!(kv.swap(Direction::Out, 0, &mut table).unwrap());
                assert_eq!(kv.settle(&mut table).unwrap().fault, None);
            }
            let free = (kv.book.device_free(), kv.book.host_free());
            assert_eq!(free, (PAGES, 0), "copy {nth}");
            assert!(kv.swap(Direction::In, 0, &mut table).unwrap());
            let back = kv.settle(&mut table).unwrap();
            if nth <= refused_of {
                assert_eq!(back.fault, None, "copy {nth}");
                expect_written(&kv, &table);
            } else {
                // Its tokens are to be computed again.
                assert_eq!((back.fault, table.residency()), (Some(SwapFault::Refused), Residency::Gone));
            }
            kv.book.release(&mut table);
            assert_eq!((kv.book.device_free(), kv.book.host_free()), (PAGES, PAGES));
            kv.held.free(&device, &mut TextStore::new());
        }
    }
}
