//! Copies between host and device, timed.

use djinn_device::{Buffer, Device, Result, Space, Stream};
use std::time::{Duration, Instant};

/// Copies in a row between two syncs, so that the host's waits do not count.
const BURST: u64 = 16;

/// For each direction a stream, a pinned buffer and one on the device: 0 is up, to the device, and 1 is down.
pub(crate) struct Probe {
    pub(crate) hosts: [Buffer; 2],
    pub(crate) devices: [Buffer; 2],
    pub(crate) streams: [Stream; 2],
    pub(crate) bytes: u64,
}

impl Probe {
    /// Buffers of `bytes` each.
    pub(crate) fn new<D: Device>(device: &D, bytes: u64) -> Result<Self> {
        let alloc = |space| device.alloc(space, bytes);
        let probe = Probe {
            hosts: [alloc(Space::Host)?, alloc(Space::Host)?],
            devices: [alloc(Space::Device)?, alloc(Space::Device)?],
            streams: [device.stream()?, device.stream()?],
            bytes,
        };
        for (host, space) in probe.hosts.iter().zip(&probe.devices) {
            device.write_host(host.span(), |bytes| bytes.fill(0x5A));
            device.fill(probe.streams[0], space.span(), 0xA5)?;
        }
        device.sync(probe.streams[0])?;
        Ok(probe)
    }

    pub(crate) fn up<D: Device>(&self, device: &D) -> Result<()> {
        device.copy(self.streams[0], self.hosts[0].span(), self.devices[0].span())
    }

    pub(crate) fn down<D: Device>(&self, device: &D) -> Result<()> {
        device.copy(self.streams[1], self.devices[1].span(), self.hosts[1].span())
    }

    pub(crate) fn both<D: Device>(&self, device: &D) -> Result<()> {
        self.up(device)?;
        self.down(device)
    }

    pub(crate) fn sync<D: Device>(&self, device: &D) -> Result<()> {
        self.streams.iter().try_for_each(|&stream| device.sync(stream))
    }

    /// Bytes per second and direction of copies that run for `span` or longer.
    pub(crate) fn rate<D: Device>(
        &self,
        device: &D,
        copy: fn(&Self, &D) -> Result<()>,
        span: Duration,
    ) -> Result<f64> {
        copy(self, device)?;
        self.sync(device)?;
        let (start, mut copies) = (Instant::now(), 0);
        while copies == 0 || start.elapsed() < span {
            (0..BURST).try_for_each(|_| copy(self, device))?;
            self.sync(device)?;
            copies += BURST;
        }
        Ok(copies as f64 * self.bytes as f64 / start.elapsed().as_secs_f64())
    }

    pub(crate) fn free<D: Device>(self, device: &D) {
        self.hosts.into_iter().chain(self.devices).for_each(|buffer| device.free(buffer));
    }
}
