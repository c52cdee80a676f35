//! A model's allocations on a device, with one owner.

use crate::Result;
use crate::text::{Hash, TextStore};
use djinn_device::{Buffer, Device, Event, Space, Stream};
use std::collections::HashSet;

/// All allocations of a model's segments, the streams that work on them, and the events between these. They are freed
/// together. A model may leave the device and come back; its handles stay.
#[derive(Debug, Default)]
#[must_use = "what it holds stays allocated"]
pub struct Allocations {
    buffers: Vec<Buffer>,
    streams: Vec<Stream>,
    events: Vec<Event>,
    /// References to blobs of the store.
    shared: Vec<(Space, Hash)>,
    /// References to the store's host copies of resident blobs.
    copies: Vec<Hash>,
    /// Whether nothing of it is on the device.
    away: bool,
}

impl Allocations {
    /// Allocates `bytes`.
    ///
    /// # Errors
    /// A device out of memory.
    pub fn alloc<D: Device>(&mut self, device: &D, space: Space, bytes: u64) -> Result<Buffer> {
        let buffer = device.alloc(space, bytes)?;
        self.buffers.push(buffer);
        Ok(buffer)
    }

    /// A stream for work on these allocations.
    ///
    /// # Errors
    /// A device out of streams.
    pub(crate) fn stream<D: Device>(&mut self, device: &D) -> Result<Stream> {
        let stream = device.stream()?;
        self.streams.push(stream);
        Ok(stream)
    }

    /// An event for work on these allocations.
    ///
    /// # Errors
    /// A device out of events.
    pub fn event<D: Device>(&mut self, device: &D) -> Result<Event> {
        let event = device.event()?;
        self.events.push(event);
        Ok(event)
    }

    /// Frees one event.
    pub(crate) fn free_event<D: Device>(&mut self, device: &D, event: Event) {
        device.free_event(event);
        self.events.retain(|held| *held != event);
    }

    /// Adds a reference to a blob of the store.
    pub(crate) fn share(&mut self, space: Space, hash: Hash) {
        self.shared.push((space, hash));
    }

    /// Adds a reference to the host copy of a resident blob.
    pub(crate) fn share_copy(&mut self, hash: Hash) {
        self.copies.push(hash);
    }

    /// Frees one buffer, once all work on it is done.
    pub(crate) fn free_buffer<D: Device>(&mut self, device: &D, buffer: Buffer) {
        device.free(buffer);
        self.buffers.retain(|held| *held != buffer);
    }

    /// Whether nothing of it is on the device.
    pub fn is_away(&self) -> bool {
        self.away
    }

    /// Bytes of device memory that it needs to come back; 0 while it is there.
    pub fn missing_bytes(&self, store: &TextStore) -> u64 {
        if !self.away {
            return 0;
        }
        let own: u64 = self.on_device().map(|buffer| buffer.len()).sum();
        own + store.missing(self.blobs())
    }

    fn on_device(&self) -> impl Iterator<Item = Buffer> {
        self.buffers.iter().copied().filter(|buffer| buffer.space() == Space::Device)
    }

    fn blobs(&self) -> impl Iterator<Item = &Hash> {
        self.shared.iter().filter(|(space, _)| *space == Space::Device).map(|(_, hash)| hash)
    }

    /// Waits for the streams and frees all device memory that no other model uses. Handles stay. Work on other streams
    /// must be done, and captures of such work freed.
    ///
    /// # Panics
    /// If it is away already.
    pub fn evict<D: Device>(&mut self, device: &D, store: &mut TextStore) {
        assert!(!self.away, "a model leaves a device that it is not on");
        self.sync(device);
        self.on_device().for_each(|buffer| device.free(buffer));
        self.blobs().for_each(|hash| store.leave(device, hash));
        self.away = true;
    }

    /// Allocates the device memory again, large buffers first. Returns the blobs that must be filled; all other memory
    /// has undefined contents.
    ///
    /// # Errors
    /// A device out of memory. It then stays away.
    ///
    /// # Panics
    /// If it is on the device.
    pub(crate) fn restore<D: Device>(&mut self, device: &D, store: &mut TextStore) -> Result<HashSet<Hash>> {
        assert!(self.away, "a model comes back to a device that it is on");
        let mut own: Vec<Buffer> = self.on_device().collect();
        own.sort_by_key(|buffer| (std::cmp::Reverse(buffer.len()), buffer.id()));
        let (mut restored, mut entered, mut empty) = (0, 0, HashSet::new());
        let outcome = (|| {
            for &buffer in &own {
                device.restore(buffer)?;
                restored += 1;
            }
            for hash in self.blobs() {
                if store.enter(device, hash)? {
                    empty.insert(*hash);
                }
                entered += 1;
            }
            Ok(())
        })();
        if let Err(error) = outcome {
            own[..restored].iter().for_each(|&buffer| device.free(buffer));
            self.blobs().take(entered).for_each(|hash| store.leave(device, hash));
            return Err(error);
        }
        self.away = false;
        Ok(empty)
    }

    /// Bytes of its host copies of resident blobs, which other models may share.
    pub fn copy_bytes(&self, store: &TextStore) -> u64 {
        let bytes = self.copies.iter().filter_map(|hash| store.find(Space::Host, hash));
        bytes.map(|buffer| buffer.len()).sum()
    }

    /// Drops its host copies of resident blobs, and returns the bytes that this frees. To come back, the model is then
    /// read again. Copies to the device must be done.
    pub fn drop_copies<D: Device>(&mut self, device: &D, store: &mut TextStore) -> u64 {
        let before = store.bytes(Space::Host);
        for hash in std::mem::take(&mut self.copies) {
            store.release(device, Space::Host, &hash, true);
        }
        before - store.bytes(Space::Host)
    }

    fn sync<D: Device>(&self, device: &D) {
        for &stream in &self.streams {
            // A sync of the device has returned this failure, or will.
            let _ = device.sync(stream);
        }
    }

    /// Waits for the streams, frees them with the events and buffers, and drops the references to blobs. Work on other
    /// streams must be done, and captures of such work freed. A sync of the device returns its failures.
    pub fn free<D: Device>(mut self, device: &D, store: &mut TextStore) {
        self.sync(device);
        self.drop_copies(device, store);
        let Allocations { buffers, streams, events, shared, copies: _, away } = self;
        streams.into_iter().for_each(|stream| device.free_stream(stream));
        events.into_iter().for_each(|event| device.free_event(event));
        let there = |space| space == Space::Host || !away;
        buffers.into_iter().filter(|buffer| there(buffer.space())).for_each(|buffer| device.free(buffer));
        shared.iter().for_each(|(space, hash)| store.release(device, *space, hash, there(*space)));
    }
}
