//! Pages and their bytes together, as a scheduler and an engine have them.

use djinn_device::{Ops, Stream};
use djinn_pages::{BlockTable, Pages};
use djinn_vmu::{Allocations, DataSegment, Direction, Error, KvLayout, Transfer};

pub(crate) struct Kv<'a, D> {
    pub(crate) device: &'a D,
    pub(crate) compute: Stream,
    pub(crate) book: Pages,
    pub(crate) data: DataSegment,
    pub(crate) held: Allocations,
}

impl<'a, D: Ops> Kv<'a, D> {
    pub(crate) fn new(device: &'a D, layout: KvLayout) -> Result<Self, Error> {
        let (book, mut held) = (Pages::new(layout.pages, layout.host_pages), Allocations::default());
        let data = DataSegment::new(device, layout, &mut held)?;
        Ok(Kv { device, compute: device.stream()?, book, data, held })
    }

    /// A table of `pages` pages, each filled with its place, from 1.
    pub(crate) fn filled(&mut self, pages: u32) -> BlockTable {
        let mut table = BlockTable::default();
        let fresh = self.book.grow(&mut table, pages);
        self.data.prepare(self.device, self.compute, &fresh, &[]).expect("sound");
        for (at, &page) in (1..).zip(table.device()) {
            self.device.fill(self.compute, self.data.page(page), at).expect("sound");
        }
        table
    }

    /// Begins a table's way out or back. False without room.
    pub(crate) fn swap(
        &mut self,
        direction: Direction,
        ticket: u64,
        table: &mut BlockTable,
    ) -> Result<bool, Error> {
        let way = match direction {
            Direction::Out => {
                let pages = table.device().len() as u32;
                if self.book.host_need(table, pages) > self.book.host_free() {
                    return Ok(false);
                }
                self.book.swap_out(table, pages)
            }
            Direction::In => {
                let returned = self.book.returned(table);
                let idle = returned.iter().filter(|&&page| self.book.references(page) == 0).count();
                let pages = table.host().len();
                if pages - returned.len() + idle > self.book.device_free() as usize {
                    return Ok(false);
                }
                self.book.swap_in(table, pages as u32)
            }
        };
        self.data.swap(self.device, self.compute, direction, ticket, &way, &mut self.held)?;
        Ok(true)
    }

    /// Waits for the end of a table's way.
    pub(crate) fn settle(&mut self, table: &mut BlockTable) -> Result<Transfer, Error> {
        let ended = self.data.settle(self.device)?;
        assert_eq!(ended.len(), 1, "{ended:?}");
        self.book.end_copy(table, ended[0].fault.is_none());
        Ok(ended[0])
    }
}
