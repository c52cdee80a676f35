//! Bandwidth between host and device, through the device seam.

mod pcie;

use crate::args::{DeviceArgs, DeviceName, LinkArgs};
use crate::document::Document;
use crate::gpu::Gpu;
use crate::report;
use crate::subject::{self, Work};
use anyhow::Result;
use djinn_device::{Buffer, Device, Ops, Space, Stream};
use pcie::Expected;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Bytes of a copy: on a card, and on the CPU, where memory is shared with the rest of the machine.
const CARD_COPY: u64 = 256 << 20;
const CPU_COPY: u64 = 32 << 20;
/// A staged copy goes in pieces of this.
const PIECE: u64 = 16 << 20;
/// How long each direction is measured at least.
const SPAN: Duration = Duration::from_millis(250);

/// Bandwidths in 1e9 bytes/s: `up` from host to device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rates {
    pub(crate) up_gbps: f64,
    pub(crate) down_gbps: f64,
}

/// What the link gives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Link {
    pub(crate) device: String,
    /// Whether the device's memory is the host's: then copies are memory copies, and no link is crossed.
    pub(crate) memcpy: bool,
    /// From and to pinned memory, one direction at a time.
    pub(crate) pinned: Rates,
    /// Both directions at once, each.
    pub(crate) both: Rates,
    /// From and to pageable memory, piece by piece through pinned staging: a memory copy and then a copy, one
    /// after the other.
    pub(crate) staged: Rates,
    /// What pinned copies should give.
    pub(crate) expected: Option<Expected>,
    pub(crate) warnings: Vec<String>,
}

/// `djinn-bench link`.
pub(crate) fn run(args: &LinkArgs) -> Result<()> {
    let document = Document::new("link", args.device.device, measure(&args.device)?);
    if let Some(path) = &args.json {
        document.write(path)?;
    }
    print!("{}", report::link(&document));
    Ok(())
}

/// Measures the link, and judges it.
///
/// # Errors
/// If there is no such device, or it fails.
pub(crate) fn measure(args: &DeviceArgs) -> Result<Link> {
    let bytes = if args.device == DeviceName::Cpu { CPU_COPY } else { CARD_COPY };
    let mut link = subject::on_device(args, None, 0, Measuring { bytes })?;
    if let Some(gpu) = Gpu::open(args.device) {
        // Right after the copies: an idle link slows down.
        (link.expected, link.warnings) = pcie::judge(link.pinned, gpu.pcie(), &gpu.name);
    }
    Ok(link)
}

struct Measuring {
    bytes: u64,
}

impl Work for Measuring {
    type Out = Link;

    fn on<D: Ops>(self, device: D) -> Result<Link> {
        let bytes = self.bytes;
        let alloc = |space| device.alloc(space, bytes);
        let hosts = [alloc(Space::Host)?, alloc(Space::Host)?];
        let devices = [alloc(Space::Device)?, alloc(Space::Device)?];
        let streams = [device.stream()?, device.stream()?];
        for (host, space) in hosts.into_iter().zip(devices) {
            device.write_host(host.span(), |bytes| bytes.fill(0x5A));
            device.fill(streams[0], space.span(), 0xA5)?;
        }
        device.sync(streams[0])?;
        let probe = Probe { device: &device, bytes };
        let one = |from: Buffer, to: Buffer| probe.rate(&[(streams[0], from, to)]);
        let pinned = Rates { up_gbps: one(hosts[0], devices[0])?, down_gbps: one(devices[0], hosts[0])? };
        let both = probe.rate(&[(streams[0], hosts[0], devices[0]), (streams[1], devices[1], hosts[1])])?;
        let staged = Rates {
            up_gbps: probe.staged(streams[0], hosts[0], devices[0], true)?,
            down_gbps: probe.staged(streams[0], hosts[0], devices[0], false)?,
        };
        let info = device.info();
        hosts.into_iter().chain(devices).for_each(|buffer| device.free(buffer));
        Ok(Link {
            device: info.name,
            memcpy: info.host_memory,
            pinned,
            both: Rates { up_gbps: both, down_gbps: both },
            staged,
            expected: None,
            warnings: vec![],
        })
    }
}

struct Probe<'a, D: Device> {
    device: &'a D,
    bytes: u64,
}

impl<D: Device> Probe<'_, D> {
    /// Copies per direction at once, in 1e9 bytes/s each.
    fn rate(&self, copies: &[(Stream, Buffer, Buffer)]) -> djinn_device::Result<f64> {
        let round = || {
            for (stream, from, to) in copies {
                self.device.copy(*stream, from.span(), to.span())?;
            }
            Ok::<(), djinn_device::Error>(())
        };
        let sync = || copies.iter().try_for_each(|(stream, ..)| self.device.sync(*stream));
        round()?;
        sync()?;
        let (start, mut rounds) = (Instant::now(), 0u32);
        while rounds == 0 || start.elapsed() < SPAN {
            // Several in a row, so that the host's waits between them do not count.
            for _ in 0..4 {
                round()?;
            }
            sync()?;
            rounds += 4;
        }
        Ok(rounds as f64 * self.bytes as f64 / start.elapsed().as_secs_f64() / 1e9)
    }

    /// Through pinned `host` from (`up`) or to ordinary memory.
    fn staged(&self, stream: Stream, host: Buffer, space: Buffer, up: bool) -> djinn_device::Result<f64> {
        let mut pageable = vec![0x3Cu8; self.bytes as usize];
        let (start, mut moved) = (Instant::now(), 0u64);
        while moved == 0 || start.elapsed() < SPAN {
            for (at, piece) in (0..).step_by(PIECE as usize).zip(pageable.chunks_mut(PIECE as usize)) {
                let len = piece.len() as u64;
                let (stage, there) = (host.slice(0, len), space.slice(at, len));
                if up {
                    self.device.write_host(stage, |bytes| bytes.copy_from_slice(piece));
                    self.device.copy(stream, stage, there)?;
                    self.device.sync(stream)?;
                } else {
                    self.device.copy(stream, there, stage)?;
                    self.device.sync(stream)?;
                    self.device.read_host(stage, |bytes| piece.copy_from_slice(bytes));
                }
            }
            moved += self.bytes;
        }
        std::hint::black_box(&pageable);
        Ok(moved as f64 / start.elapsed().as_secs_f64() / 1e9)
    }
}
