//! Bandwidth between host and device, through the device interface.

mod pcie;

use crate::args::LinkArgs;
use crate::document::Document;
use crate::gpu::Gpu;
use crate::probe::Probe;
use crate::report;
use anyhow::Result;
use djinn_device::{Device, Ops};
use djinn_host::{DeviceName, Needs, OnDevice, Setup};
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
pub(crate) struct BothWays {
    pub(crate) up_gbps: f64,
    pub(crate) down_gbps: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Link {
    pub(crate) device: String,
    /// Whether the device's memory is the host's: then copies are memory copies, and no link is crossed.
    pub(crate) memcpy: bool,
    /// From and to pinned memory, one direction at a time.
    pub(crate) pinned: BothWays,
    /// Both directions at once, each.
    pub(crate) both: BothWays,
    /// From and to pageable memory, piece by piece through pinned staging: a memory copy and then a copy, one
    /// after the other.
    pub(crate) staged: BothWays,
    /// What pinned copies should give.
    pub(crate) expected: Option<Expected>,
    pub(crate) warnings: Vec<String>,
}

pub(crate) fn run(args: &LinkArgs) -> Result<()> {
    let setup = args.device.setup()?;
    let document = Document::new("link", setup.device, measure(&setup)?);
    document.publish(args.json.as_deref(), report::link)
}

/// Measures the link, and judges it.
pub(crate) fn measure(setup: &Setup) -> Result<Link> {
    let bytes = if setup.device == DeviceName::Cpu { CPU_COPY } else { CARD_COPY };
    let mut link = setup.on_device(Needs::default(), Measuring { bytes })?;
    if let Some(gpu) = Gpu::open(setup.device) {
        // Right after the copies: an idle link slows down.
        (link.expected, link.warnings) = pcie::judge(link.pinned, gpu.pcie(), &gpu.name);
    }
    Ok(link)
}

struct Measuring {
    bytes: u64,
}

impl OnDevice for Measuring {
    type Out = Link;
    type Error = anyhow::Error;

    fn on<D: Ops + 'static>(self, device: D) -> Result<Link> {
        let probe = Probe::new(&device, self.bytes)?;
        let gbps = |copy| Ok::<_, anyhow::Error>(probe.rate(&device, copy, SPAN)? / 1e9);
        let pinned = BothWays { up_gbps: gbps(Probe::up)?, down_gbps: gbps(Probe::down)? };
        let both = gbps(Probe::both)?;
        let staged =
            BothWays { up_gbps: staged(&probe, &device, true)?, down_gbps: staged(&probe, &device, false)? };
        probe.free(&device);
        let info = device.info();
        Ok(Link {
            device: info.name,
            memcpy: info.host_memory,
            pinned,
            both: BothWays { up_gbps: both, down_gbps: both },
            staged,
            expected: None,
            warnings: vec![],
        })
    }
}

/// 1e9 bytes/s through the pinned buffer from (`up`) or to ordinary memory.
fn staged<D: Device>(probe: &Probe, device: &D, up: bool) -> djinn_device::Result<f64> {
    let (stream, host, space) = (probe.streams[0], probe.hosts[0], probe.devices[0]);
    let mut pageable = vec![0x3Cu8; probe.bytes as usize];
    let (start, mut moved) = (Instant::now(), 0u64);
    while moved == 0 || start.elapsed() < SPAN {
        for (at, piece) in (0..).step_by(PIECE as usize).zip(pageable.chunks_mut(PIECE as usize)) {
            let len = piece.len() as u64;
            let (stage, there) = (host.slice(0, len), space.slice(at, len));
            if up {
                device.write_host(stage, |bytes| bytes.copy_from_slice(piece));
                device.copy(stream, stage, there)?;
                device.sync(stream)?;
            } else {
                device.copy(stream, there, stage)?;
                device.sync(stream)?;
                device.read_host(stage, |bytes| piece.copy_from_slice(bytes));
            }
        }
        moved += probe.bytes;
    }
    std::hint::black_box(&pageable);
    Ok(moved as f64 / start.elapsed().as_secs_f64() / 1e9)
}
