//! The book of all pages.

use crate::pool::Pool;
use crate::prefix::PrefixIndex;
use crate::{BlockTable, Duplicate, PageCopies, PageName, PagePair, Residency};

/// All KV pages of a device and of the host: references and contents.
///
/// A device page without references keeps its contents while they can be found as a prefix. A host page keeps them
/// while a device page holds the same (*twins*). So a session that leaves again, or whose pages another session
/// brought back, copies only pages without a twin. Both kinds count as free; the oldest are reused when pages are
/// short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pages {
    device: Pool,
    host: Pool,
    prefix: PrefixIndex,
    /// By device page: its twin on the host.
    on_host: Vec<Option<u32>>,
    /// By host page: its twin on the device.
    on_device: Vec<Option<u32>>,
}

impl Pages {
    /// A book of empty pages.
    pub fn new(device: u32, host: u32) -> Self {
        Pages {
            device: Pool::new(device),
            host: Pool::new(host),
            prefix: PrefixIndex::default(),
            on_host: vec![None; device as usize],
            on_device: vec![None; host as usize],
        }
    }

    /// Free pages of the device.
    pub fn device_free(&self) -> u32 {
        self.device.free()
    }

    /// Free pages of the host.
    pub fn host_free(&self) -> u32 {
        self.host.free()
    }

    /// Free pages of the device whose contents can be found as a prefix.
    pub fn cached(&self) -> u32 {
        self.device.idle()
    }

    /// The number of tables that refer to a device page; 0 if it is free.
    pub fn references(&self, page: u32) -> u32 {
        self.device.references(page)
    }

    /// The number of tables that refer to a host page; 0 if it is free.
    pub fn host_references(&self, page: u32) -> u32 {
        self.host.references(page)
    }

    /// Pages of the host that `swap_out` of `pages` pages would take.
    pub fn host_need(&self, table: &BlockTable, pages: u32) -> u32 {
        self.host_lacks(table, pages).count() as u32
    }

    /// The device pages for which `swap_out` of `pages` pages would take pages of the host.
    pub fn host_lacks(&self, table: &BlockTable, pages: u32) -> impl DoubleEndedIterator<Item = u32> {
        let held = |page: &u32| self.twin(*page).is_some_and(|host| self.host.references(host) > 0);
        table.device.iter().copied().take(pages as usize).filter(move |page| !held(page))
    }

    /// Whether a write to the page at `index` needs a copy first, since other tables refer to it.
    pub fn is_shared(&self, table: &BlockTable, index: u64) -> bool {
        let page = usize::try_from(index).ok().and_then(|index| table.device.get(index));
        page.is_some_and(|&page| self.device.references(page) > 1)
    }

    /// Extends a table that is empty or on the device to `pages` pages; returns the new pages.
    ///
    /// # Panics
    /// If the table is elsewhere, or too few pages are free.
    pub fn grow(&mut self, table: &mut BlockTable, pages: u32) -> Vec<u32> {
        let at = table.residency();
        assert!(matches!(at, Residency::Device | Residency::Gone), "a table grows that is {at:?}");
        let fresh = self.take_device((pages as usize).saturating_sub(table.device.len()));
        table.device.extend(&fresh);
        fresh
    }

    /// Prepares a write to the page at `index` of a table on the device. A shared page is replaced by a new one, and
    /// the caller makes the copy. The page's old contents are not found any more, and have no twin.
    ///
    /// # Panics
    /// If the page is shared and no other is free.
    pub fn write(&mut self, table: &mut BlockTable, index: u64) -> Option<Duplicate> {
        let from = *usize::try_from(index).ok().and_then(|index| table.device.get(index))?;
        if self.device.references(from) == 1 {
            self.forget(from);
            return None;
        }
        let to = self.take_device(1)[0];
        table.device[index as usize] = to;
        self.release_device(from);
        Some(Duplicate { from, to })
    }

    /// A second table with the first `pages` pages of one on the device; empty if that is elsewhere.
    pub fn fork(&mut self, table: &BlockTable, pages: u32) -> BlockTable {
        let at = table.residency();
        let shared = if at == Residency::Device { table.device.as_slice() } else { &[] };
        self.attach(&shared[..shared.len().min(pages as usize)])
    }

    /// A table that begins with these device pages, which have contents.
    pub fn attach(&mut self, pages: &[u32]) -> BlockTable {
        pages.iter().for_each(|&page| self.device.refer(page));
        BlockTable { device: pages.to_vec(), ..BlockTable::default() }
    }

    /// Shortens a table to its first `pages` pages.
    ///
    /// # Panics
    /// If it is being copied.
    pub fn truncate(&mut self, table: &mut BlockTable, pages: u32) {
        let at = table.residency();
        assert!(!matches!(at, Residency::Leaving | Residency::Arriving), "a table is cut that is {at:?}");
        let cut = |pages_held: &mut Vec<u32>| pages_held.split_off(pages_held.len().min(pages as usize));
        let (device, host) = (cut(&mut table.device), cut(&mut table.host));
        self.release_all(&device);
        host.into_iter().rev().for_each(|page| self.release_host(page));
    }

    /// Drops the contents of a table on the device after its first `pages` pages. It keeps the pages themselves, but for
    /// those that other tables refer to.
    pub fn empty_after(&mut self, table: &mut BlockTable, pages: u32) {
        let rest = table.device.split_off(table.device.len().min(pages as usize));
        let (own, shared): (Vec<u32>, Vec<u32>) =
            rest.into_iter().partition(|&page| self.device.references(page) == 1);
        own.iter().for_each(|&page| self.forget(page));
        table.device.extend(own);
        self.release_all(&shared);
    }

    /// Frees all pages of a table. Copies that touch them must have ended.
    pub fn release(&mut self, table: &mut BlockTable) {
        let BlockTable { device, host, .. } = std::mem::take(table);
        self.release_all(&device);
        host.into_iter().rev().for_each(|page| self.release_host(page));
    }

    /// The pages with the longest known run of `names`. They may be free: [`attach`](Self::attach) them before they
    /// are reused.
    pub fn find(&self, names: &[PageName]) -> Vec<u32> {
        self.prefix.find(names).collect()
    }

    /// Makes the first pages of a table on the device findable under `names`.
    pub fn publish(&mut self, table: &BlockTable, names: &[PageName]) {
        names.iter().zip(&table.device).for_each(|(name, page)| self.prefix.insert(*name, *page));
    }

    /// The host twins of a table's device pages.
    pub fn copied(&self, table: &BlockTable) -> impl Iterator<Item = u32> {
        table.device.iter().filter_map(|&device| self.twin(device))
    }

    /// The device twins of a table's host pages.
    pub fn returned(&self, table: &BlockTable) -> Vec<u32> {
        table.host.iter().filter_map(|&host| self.on_device[host as usize]).collect()
    }

    /// Begins to copy the first `pages` pages of a table to the host; the others are freed.
    ///
    /// # Panics
    /// If the table is not on the device, or too few pages of the host are free.
    pub fn swap_out(&mut self, table: &mut BlockTable, pages: u32) -> PageCopies {
        assert_eq!(table.residency(), Residency::Device, "a table leaves the device");
        self.truncate(table, pages);
        let mut way = PageCopies::default();
        for &device in &table.device {
            if let Some(host) = self.twin(device) {
                self.host.refer(host);
                way.kept.push(PagePair { device, host });
            }
        }
        let mut own: Vec<u32> =
            table.device.iter().copied().filter(|&page| self.twin(page).is_none()).collect();
        own.sort_unstable();
        // In ascending order on both sides, so that neighbours stay neighbours.
        for device in own {
            let host = self.take_host();
            way.copies.push(PagePair { device, host });
            if self.device.references(device) == 1 && !self.prefix.holds(device) {
                way.emptied.push(device);
            }
        }
        let host_of = |&device: &u32| {
            let copied = way.copies.binary_search_by_key(&device, |pair| pair.device);
            copied.map_or_else(|_| self.on_host[device as usize], |at| Some(way.copies[at].host))
        };
        let hosts: Option<Vec<u32>> = table.device.iter().map(host_of).collect();
        table.host = hosts.expect("each page is copied or has a twin");
        table.arriving = false;
        way
    }

    /// Begins to copy a table to the device, where it gets `pages` pages.
    ///
    /// # Panics
    /// If the table is not on the host, or too few pages of the device are free.
    pub fn swap_in(&mut self, table: &mut BlockTable, pages: u32) -> PageCopies {
        assert_eq!(table.residency(), Residency::Host, "a table leaves the host");
        let mut way = PageCopies::default();
        let mut away = Vec::new();
        for &host in &table.host {
            match self.on_device[host as usize] {
                Some(device) => {
                    self.device.refer(device);
                    way.kept.push(PagePair { device, host });
                }
                None => away.push(host),
            }
        }
        away.sort_unstable();
        let mut fresh = self.take_device(away.len());
        fresh.sort_unstable();
        way.copies = fresh.into_iter().zip(away).map(|(device, host)| PagePair { device, host }).collect();
        let device_of = |&host: &u32| {
            let copied = way.copies.binary_search_by_key(&host, |pair| pair.host);
            copied.map_or_else(|_| self.on_device[host as usize], |at| Some(way.copies[at].device))
        };
        let devices: Option<Vec<u32>> = table.host.iter().map(device_of).collect();
        table.device = devices.expect("each page is copied or has a twin");
        let more = self.take_device((pages as usize).saturating_sub(table.device.len()));
        table.device.extend(more);
        table.arriving = true;
        way
    }

    /// Ends a table's copy. If it failed, a leaving table stays on the device, and an arriving one is empty.
    ///
    /// # Panics
    /// If the table is not being copied.
    pub fn end_copy(&mut self, table: &mut BlockTable, ok: bool) {
        let at = table.residency();
        if ok {
            for (&device, &host) in table.device.iter().zip(&table.host) {
                if self.twin(device).is_none() && self.on_device[host as usize].is_none() {
                    self.on_host[device as usize] = Some(host);
                    self.on_device[host as usize] = Some(device);
                }
            }
        }
        match (at, ok) {
            (Residency::Leaving, true) => {
                let device = std::mem::take(&mut table.device);
                self.release_all(&device);
            }
            (Residency::Leaving, false) | (Residency::Arriving, true) => {
                let host = std::mem::take(&mut table.host);
                host.into_iter().rev().for_each(|page| self.release_host(page));
            }
            (Residency::Arriving, false) => self.release(table),
            _ => panic!("a copy of a table ended that is {at:?}"),
        }
    }

    /// Drops the host twins of device pages, so that the next session that leaves is copied whole.
    pub fn forget_copies(&mut self) {
        (0..self.on_host.len()).for_each(|device| self.separate(device as u32));
    }

    /// Records that the contents of all device pages are lost: no prefix and no twin remains.
    ///
    /// # Panics
    /// If a table has pages there.
    pub fn lose_device(&mut self) {
        for page in 0..self.on_host.len() as u32 {
            assert_eq!(self.device.references(page), 0, "page {page} is lost with what a table holds there");
            self.forget(page);
            self.device.forget(page);
        }
    }

    /// Checks every count against the given tables. For tests: its time grows with all pages.
    ///
    /// # Panics
    /// If a page is lost, free while in use, or miscounted; the message names it.
    pub fn audit<'a>(&self, tables: impl IntoIterator<Item = &'a BlockTable>) {
        let (mut device, mut host) = (vec![0; self.on_host.len()], vec![0; self.on_device.len()]);
        for table in tables {
            table.device.iter().for_each(|&page| device[page as usize] += 1);
            table.host.iter().for_each(|&page| host[page as usize] += 1);
        }
        self.prefix.audit();
        self.device.audit("device", &device, |page| self.prefix.holds(page));
        self.host.audit("host", &host, |page| self.on_device[page as usize].is_some());
        for (page, twin) in (0..).zip(&self.on_host) {
            let Some(host) = *twin else { continue };
            assert_eq!(self.on_device[host as usize], Some(page), "host page {host} is a twin");
            assert!(!self.device.is_empty(page), "host page {host} is a copy of page {page}, which is empty");
        }
        let twins = |side: &[Option<u32>]| side.iter().flatten().count();
        assert_eq!(twins(&self.on_host), twins(&self.on_device), "twins are pairs");
    }

    fn twin(&self, device: u32) -> Option<u32> {
        self.on_host[device as usize]
    }

    /// A device page and its twin differ from now on.
    fn separate(&mut self, device: u32) {
        if let Some(host) = self.on_host[device as usize].take() {
            self.on_device[host as usize] = None;
            self.host.forget(host);
        }
    }

    /// The contents of a device page will change.
    fn forget(&mut self, device: u32) {
        self.prefix.forget(device);
        self.separate(device);
    }

    fn take_device(&mut self, count: usize) -> Vec<u32> {
        let free = self.device.free();
        assert!(count <= free as usize, "{count} pages are wanted, {free} are free");
        let one = |_| {
            let (page, holds) = self.device.next().expect("just counted");
            if holds {
                self.forget(page);
            }
            self.device.refer(page);
            page
        };
        (0..count).map(one).collect()
    }

    fn take_host(&mut self) -> u32 {
        let (page, holds) = self.host.next().expect("a page of the host is wanted, and none is free");
        if let Some(device) = self.on_device[page as usize].filter(|_| holds) {
            self.separate(device);
        }
        self.host.refer(page);
        page
    }

    /// Last pages first: a cached page is useless without those before it.
    fn release_all(&mut self, pages: &[u32]) {
        pages.iter().rev().for_each(|&page| self.release_device(page));
    }

    fn release_device(&mut self, page: u32) {
        let keeps = self.prefix.holds(page);
        if self.device.references(page) == 1 && !keeps {
            self.separate(page);
        }
        self.device.release(page, keeps);
    }

    fn release_host(&mut self, page: u32) {
        self.host.release(page, self.on_device[page as usize].is_some());
    }
}
