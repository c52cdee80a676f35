//! Clean copies: host pages that still hold what a page on the device holds, because it came from there and was not
//! written since. Who leaves again leaves without a copy; whoever needs host pages takes the oldest.

use super::Swap;
use std::collections::{BTreeMap, HashMap};

/// Which host page holds what which device page holds. Each entry is a reference to its host page.
#[derive(Debug, Default)]
pub(super) struct CleanCopies {
    /// By device page: the host page, and its key in `by_age`.
    by_device: HashMap<u32, (u32, u64)>,
    /// Device pages, the oldest entry first.
    by_age: BTreeMap<u64, u32>,
    clock: u64,
}

impl CleanCopies {
    fn insert(&mut self, device: u32, host: u32) {
        let before = self.by_device.insert(device, (host, self.clock));
        assert!(before.is_none(), "page {device} has two copies on the host");
        self.by_age.insert(self.clock, device);
        self.clock += 1;
    }

    fn remove(&mut self, device: u32) -> Option<u32> {
        let (host, age) = self.by_device.remove(&device)?;
        self.by_age.remove(&age);
        Some(host)
    }

    /// Device and host pages, the oldest first.
    fn iter(&self) -> impl Iterator<Item = (u32, u32)> {
        self.by_age.values().map(|device| (*device, self.by_device[device].0))
    }
}

impl Swap {
    /// Host page `host`, whose reference the caller gives away, holds what device page `device` holds.
    pub(in crate::data) fn keep(&mut self, device: u32, host: u32) {
        self.clean.insert(device, host);
    }

    /// The host page that holds what `device` holds, with its reference. One that is still read is let go of instead:
    /// checks of what came back and of what leaves would meet.
    pub(in crate::data) fn take_copy(&mut self, device: u32) -> Option<u32> {
        let host = self.clean.remove(device)?;
        if self.host_pages.is_moving(host) {
            self.drop_host(host);
            return None;
        }
        Some(host)
    }

    /// The device page is written, or holds nothing any more.
    pub(in crate::data) fn forget_copy(&mut self, device: u32) {
        if let Some(host) = self.clean.remove(device) {
            self.drop_host(host);
        }
    }

    /// Lets go of all clean copies.
    pub(in crate::data) fn forget_copies(&mut self) {
        let all: Vec<u32> = self.clean.by_device.keys().copied().collect();
        all.into_iter().for_each(|device| self.forget_copy(device));
    }

    /// Device pages that the host has a clean copy of, with that.
    pub(in crate::data) fn copies(&self) -> impl Iterator<Item = (u32, u32)> {
        self.clean.iter()
    }

    fn reclaimable(&self) -> u32 {
        self.clean.iter().filter(|&(_, host)| !self.host_pages.is_moving(host)).count() as u32
    }

    /// Host pages that can be had: those that hold nothing, and clean copies.
    pub(in crate::data) fn free_host(&self) -> u32 {
        self.host_pages.free() + self.reclaimable()
    }

    /// Host pages that can be had once copies under way are done.
    pub(in crate::data) fn leaving_host(&self) -> u32 {
        self.host_pages.in_transit() + self.clean.by_device.len() as u32 - self.reclaimable()
    }

    /// Host pages with a reference each, in ascending order; the caller knows them to be there.
    pub(in crate::data) fn take_hosts(&mut self, count: usize) -> Vec<u32> {
        let missing = count.saturating_sub(self.host_pages.free() as usize);
        let idle = self.clean.iter().filter(|&(_, host)| !self.host_pages.is_moving(host));
        let oldest: Vec<u32> = idle.map(|(device, _)| device).take(missing).collect();
        oldest.into_iter().for_each(|device| self.forget_copy(device));
        let take = |_| self.host_pages.take().expect("the caller counted the free host pages");
        (0..count).map(take).collect()
    }
}
