//! What needs a look inside: corrupted host pages, what holds poison, what is copied again, what is held back.

use super::*;
use djinn_cpu::{SimConfig, SimDevice};
use djinn_device::DType;
use djinn_pages::{BlockTable, Pages, Residency};

struct Rig {
    device: SimDevice,
    compute: Stream,
    book: Pages,
    data: DataSegment,
    held: Allocations,
}

impl Rig {
    fn new(check: bool) -> Self {
        let (page_tokens, pages, sequences, table_width, host_pages) = (2, 6, 1, 6, 6);
        let (token_bytes, dtype) = (32, DType::F32);
        let layout =
            KvLayout { token_bytes, dtype, page_tokens, pages, sequences, table_width, host_pages, check };
        let device = SimDevice::new(SimConfig { seed: 3, ..SimConfig::default() }).unwrap();
        let mut held = Allocations::default();
        let data = DataSegment::new(&device, layout, &mut held).unwrap();
        let compute = device.stream().unwrap();
        Rig { device, compute, book: Pages::new(pages, host_pages), data, held }
    }

    fn fill(&self, page: u32, byte: u8) {
        self.device.fill(self.compute, self.data.page(page), byte).unwrap();
    }

    fn bytes(&self, page: u32) -> Vec<u8> {
        let host = self.device.alloc(Space::Host, self.data.layout().page_bytes()).unwrap();
        self.device.copy(self.compute, self.data.page(page), host.span()).unwrap();
        self.device.sync(self.compute).unwrap();
        let bytes = self.device.read_host(host.span(), <[u8]>::to_vec);
        self.device.free(host);
        bytes
    }

    /// Makes a table longer; its new pages hold `byte`.
    fn grow(&mut self, table: &mut BlockTable, pages: u32, byte: u8) {
        let fresh = self.book.grow(table, pages);
        self.data.prepare(&self.device, self.compute, &fresh, &[]).unwrap();
        fresh.into_iter().for_each(|page| self.fill(page, byte));
    }

    fn filled(&mut self, pages: u32, byte: u8) -> BlockTable {
        let mut table = BlockTable::default();
        self.grow(&mut table, pages, byte);
        table
    }

    fn begin(&mut self, direction: Direction, ticket: u64, table: &mut BlockTable) {
        let way = match direction {
            Direction::Out => self.book.swap_out(table, table.device().len() as u32),
            Direction::In => self.book.swap_in(table, table.host().len() as u32),
        };
        self.data.swap(&self.device, self.compute, direction, ticket, &way, &mut self.held).unwrap();
    }

    fn settle(&mut self, tables: &mut [&mut BlockTable]) -> Vec<Transfer> {
        let ended = self.data.settle(&self.device).unwrap();
        for one in &ended {
            self.book.end_copy(tables[one.ticket as usize], one.fault.is_none());
        }
        ended
    }

    /// Out and back; pages copied out and left without a copy since the start.
    fn there_and_back(&mut self, table: &mut BlockTable) -> (u64, u64) {
        for direction in [Direction::Out, Direction::In] {
            self.begin(direction, 0, table);
            assert_eq!(self.settle(&mut [table])[0].fault, None);
        }
        let stats = self.data.swap_stats();
        (stats.out.pages, stats.kept)
    }

    fn write(&mut self, table: &mut BlockTable, index: u64, byte: u8) {
        assert_eq!(self.book.write(table, index), None);
        self.fill(table.device()[index as usize], byte);
    }
}

#[test]
fn check_mode_names_every_page_that_came_back_with_other_bytes() {
    let mut rig = Rig::new(true);
    let mut tables: Vec<BlockTable> = (1..=3).map(|byte| rig.filled(2, byte)).collect();
    let [first, second, third] = &mut tables[..] else { unreachable!("three tables") };
    for (ticket, table) in [&mut *first, second, third].into_iter().enumerate() {
        rig.begin(Direction::Out, ticket as u64, table);
    }
    assert_eq!(rig.settle(&mut [first, second, third]).len(), 3);
    // One bit of a page of the first session and of the last, while they are out.
    let corrupted = [first.host()[1], third.host()[0]];
    for page in corrupted {
        let span = rig.data.swap.as_ref().unwrap().host_page(page);
        rig.device.write_host(span, |bytes| bytes[9] ^= 4);
    }
    let mut expected = Vec::new();
    for (ticket, table) in [&mut *first, second, third].into_iter().enumerate() {
        rig.begin(Direction::In, ticket as u64, table);
        expected.push(table.device().to_vec());
    }
    let found: Vec<Option<u32>> = rig
        .settle(&mut [first, second, third])
        .iter()
        .map(|one| match one.fault {
            Some(SwapFault::Corrupt { page, expected, found }) => {
                assert_ne!(expected, found);
                Some(page)
            }
            None => None,
            fault => panic!("{fault:?}"),
        })
        .collect();
    assert_eq!(found, [Some(expected[0][1]), None, Some(expected[2][0])]);
    let at: Vec<Residency> = tables.iter().map(BlockTable::residency).collect();
    assert_eq!(at, [Residency::Gone, Residency::Device, Residency::Gone]);
}

#[test]
fn in_check_mode_pages_that_hold_nothing_are_nan() {
    let mut rig = Rig::new(true);
    let mut table = rig.filled(2, 7);
    let pages = table.device().to_vec();
    rig.begin(Direction::Out, 0, &mut table);
    rig.settle(&mut [&mut table]);
    assert!(rig.bytes(pages[0]).iter().all(|&b| b == 0xFF), "it left");
    rig.begin(Direction::In, 0, &mut table);
    rig.settle(&mut [&mut table]);
    assert!(rig.bytes(table.device()[0]).iter().all(|&b| b == 7), "it is back");
    rig.book.release(&mut table);
    let fresh = rig.book.grow(&mut table, 2);
    rig.data.prepare(&rig.device, rig.compute, &fresh, &[]).unwrap();
    assert_eq!(table.device(), pages);
    assert!(rig.bytes(pages[0]).iter().all(|&b| b == 0xFF), "it was given to another");
}

#[test]
fn only_what_changed_is_copied_out_again() {
    for check in [false, true] {
        let mut rig = Rig::new(check);
        let mut table = rig.filled(2, 5);
        assert_eq!(rig.there_and_back(&mut table), (2, 0));
        assert_eq!(rig.book.host_free(), 6, "clean copies can be had");
        assert_eq!(rig.there_and_back(&mut table), (2, 2), "nothing changed");
        rig.write(&mut table, 1, 6);
        rig.grow(&mut table, 3, 6);
        assert_eq!(rig.there_and_back(&mut table), (4, 3), "the first page stayed as it was");
        let held: Vec<u8> = table.device().iter().map(|&page| rig.bytes(page)[0]).collect();
        assert_eq!(held, [5, 6, 6]);
        // A turn is taken back and another one written in its place.
        rig.book.truncate(&mut table, 1);
        rig.write(&mut table, 0, 7);
        assert_eq!(rig.there_and_back(&mut table), (5, 3));
        assert_eq!(rig.bytes(table.device()[0])[0], 7);
        rig.book.forget_copies();
        assert_eq!(rig.there_and_back(&mut table), (6, 3));
        rig.book.audit([&table]);
    }
}

#[test]
fn check_mode_notices_a_copy_that_is_clean_no_more() {
    let mut rig = Rig::new(true);
    let mut table = rig.filled(2, 1);
    rig.there_and_back(&mut table);
    // The book was not told of this.
    rig.fill(table.device()[1], 2);
    let page = table.device()[1];
    rig.begin(Direction::Out, 0, &mut table);
    let fault = rig.settle(&mut [&mut table])[0].fault;
    assert!(matches!(fault, Some(SwapFault::Corrupt { page: found, .. }) if found == page), "{fault:?}");
    assert_eq!((table.residency(), rig.bytes(page)[0]), (Residency::Device, 2), "it stays as it is");
}

#[test]
fn a_copy_that_is_held_back_comes_when_there_is_time() {
    let mut rig = Rig::new(false);
    let page_bytes = rig.data.layout().page_bytes();
    rig.data.set_pace(SwapPace { piece_bytes: page_bytes, least_bytes: 2 * page_bytes });
    let weights = rig.device.stream().unwrap();
    let mut table = rig.filled(5, 9);
    rig.begin(Direction::Out, 0, &mut table);
    rig.settle(&mut [&mut table]);
    rig.data.share_link(&rig.device, weights, 1).unwrap();
    let before = rig.device.calls().copies;
    rig.begin(Direction::In, 0, &mut table);
    assert_eq!(rig.device.calls().copies - before, 2, "two of five pages may be under way");
    rig.book.audit([&table]);
    rig.settle(&mut [&mut table]);
    assert_eq!(rig.device.calls().copies - before, 5);
    assert!(table.device().iter().all(|&page| rig.bytes(page)[0] == 9));

    // Without streaming nothing is held back; while copies are, the host's looks bring the rest.
    for streamed in [0, 1] {
        rig.book.forget_copies();
        rig.begin(Direction::Out, 0, &mut table);
        rig.settle(&mut [&mut table]);
        rig.data.share_link(&rig.device, weights, streamed).unwrap();
        rig.begin(Direction::In, 0, &mut table);
        while table.residency() == Residency::Arriving {
            for one in rig.data.poll(&rig.device).unwrap() {
                rig.book.end_copy(&mut table, one.fault.is_none());
            }
        }
    }
}
