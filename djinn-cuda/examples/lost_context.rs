//! Whether a process can leave a context in which a kernel failed: plants an illegal access, drops the device, makes
//! another one and compares what it computes with what the first one did. `lost_context [TIMES]`, five without an argument.
//!
//! Exits with 0 if every new device computed the same, and with 1 where the driver refused one: a process that serves is
//! then to begin anew, as `djinn serve` does.

use djinn_cuda::{CudaConfig, CudaDevice};
use djinn_device::args::{Linear, SelectRows, Weight};
use djinn_device::{Buffer, DType, Device, Error, Ops, Space, Span, Stream};
use std::process::ExitCode;
use std::time::Instant;

/// Rows and columns of the products: own kernels for few rows, and for many cuBLASLt's on cards before Hopper.
const ROWS: [u32; 3] = [1, 16, 512];
const WIDTH: u32 = 1024;

fn main() -> ExitCode {
    let times = std::env::args().nth(1).map_or(Ok(5), |times| times.parse::<u32>());
    let Ok(times) = times else {
        eprintln!("usage: lost_context [TIMES]");
        return ExitCode::from(2);
    };
    match recover(times) {
        Ok(()) => {
            println!("the process left its context {times} times");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("the process cannot go on: {error}");
            ExitCode::FAILURE
        }
    }
}

fn recover(times: u32) -> Result<(), Box<dyn std::error::Error>> {
    let config = CudaConfig { vram: Some(4 << 30), ..CudaConfig::default() };
    let mut device = CudaDevice::new(config)?;
    let expected = Work::on(&device)?.products()?;
    for turn in 1..=times {
        let error = Work::on(&device)?.fail();
        println!("{turn}: planted: {error}");
        let refused = device.stream().err();
        println!("{turn}: the device then refuses: {}", refused.map_or("nothing".into(), |e| e.to_string()));
        drop(device);
        let began = Instant::now();
        device = CudaDevice::new(config)?;
        println!(
            "{turn}: a new device after {:.2?}, {} bytes reserved, {} bytes of the card free",
            began.elapsed(),
            device.info().reserved_bytes,
            device.free_bytes()?
        );
        if Work::on(&device)?.products()? != expected {
            return Err("the new device computes something else".into());
        }
    }
    Ok(())
}

/// A stream and memory of a device: inputs, a weight, outputs, and pinned host memory.
struct Work<'a> {
    device: &'a CudaDevice,
    stream: Stream,
    memory: Buffer,
    host: Buffer,
}

impl<'a> Work<'a> {
    /// Bytes of each of the three parts, and of the host's.
    const PART: u64 = 4 << 20;

    fn on(device: &'a CudaDevice) -> Result<Self, Error> {
        let memory = device.alloc(Space::Device, 3 * Self::PART)?;
        Ok(Work { device, stream: device.stream()?, memory, host: device.alloc(Space::Host, Self::PART)? })
    }

    fn part(&self, at: u64, bytes: u64) -> Span {
        self.memory.slice(at * Self::PART, bytes)
    }

    /// Fills a part of the device with what `write` puts into the host's memory.
    fn upload(&self, at: u64, write: impl FnOnce(&mut [u8])) -> Result<(), Error> {
        self.device.write_host(self.host.span(), write);
        self.device.copy(self.stream, self.host.span(), self.part(at, Self::PART))?;
        self.device.sync(self.stream)
    }

    /// Products of some rows with one weight of f16; frees the memory.
    fn products(self) -> Result<Vec<u8>, Error> {
        self.upload(0, |bytes| {
            for (i, value) in bytes.chunks_exact_mut(4).enumerate() {
                value.copy_from_slice(&((i * 37 % 101) as f32 / 101.0 - 0.5).to_le_bytes());
            }
        })?;
        // f16 between 0.5 and 1, or their negatives.
        self.upload(1, |bytes| {
            for (i, value) in bytes.chunks_exact_mut(2).enumerate() {
                let bits = 0x3800 | (i * 29 % 1024) as u16 | if i % 3 == 0 { 0x8000 } else { 0 };
                value.copy_from_slice(&bits.to_le_bytes());
            }
        })?;
        let mut found = Vec::new();
        for rows in ROWS {
            let bytes = u64::from(rows * WIDTH) * 4;
            let weight = Weight::plain(self.part(1, u64::from(WIDTH * WIDTH) * 2), DType::F16);
            let args = Linear {
                x: self.part(0, bytes),
                weight,
                bias: None,
                out: self.part(2, bytes),
                k: WIDTH,
                n: WIDTH,
                out_width: WIDTH,
                out_column: 0,
                rows,
            };
            self.device.linear(self.stream, &args)?;
            self.device.copy(self.stream, self.part(2, bytes), self.host.slice(0, bytes))?;
            self.device.sync(self.stream)?;
            self.device.read_host(self.host.slice(0, bytes), |bytes| found.extend_from_slice(bytes));
        }
        self.device.free(self.memory);
        self.device.free(self.host);
        Ok(found)
    }

    /// Reads a row far beyond all memory, and waits for what comes of it.
    fn fail(self) -> String {
        let plant = || {
            self.upload(0, |bytes| bytes.fill(0x7f))?;
            let row = u64::from(WIDTH) * 4;
            let args = SelectRows {
                x: self.part(1, row),
                indices: self.part(0, 4),
                out: self.part(2, row),
                width: WIDTH,
                rows: 1,
            };
            self.device.select_rows(self.stream, &args)?;
            self.device.sync(self.stream)
        };
        let planted: Result<(), Error> = plant();
        self.device.free(self.memory);
        self.device.free(self.host);
        planted.map_or_else(|error| error.to_string(), |()| "nothing failed".to_owned())
    }
}
