//! The CPU device's sustained rates, measured with a model's operations.

use crate::{Error, Result, system};
use djinn_cpu::{CpuConfig, CpuDevice};
use djinn_device::args::{Add, Linear, Weight};
use djinn_device::{Buffer, DType, Device, Ops, Space, Span, Stream};
use djinn_vmu::Machine;
use std::time::{Duration, Instant};

/// bf16 0.0115 and f32 0.0115: an ordinary number in every element type.
const BYTE: u8 = 0x3c;
/// Bytes of each measured copy.
pub const COPY_BYTES: u64 = 64 << 20;
/// A weight larger than the caches, and a small one.
const LARGE: (u32, u32) = (8192, 8192);
const SMALL: (u32, u32) = (1024, 1024);
const PREFILL_ROWS: u32 = 256;
/// Small operations between two waits for the device.
const BURST: u32 = 64;

/// Measured rates.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// The device's name: threads and instruction set.
    pub device: String,
    /// For predictions.
    pub machine: Machine,
}

/// Measures the CPU device with `threads` threads, 0 for all: each of four rates for `span`.
///
/// # Errors
/// [`Error::Cpu`] if the device fails, for example without 200 MiB of memory.
pub fn measure(threads: usize, span: Duration) -> Result<Rates> {
    measured(threads, span).map_err(Error::Cpu)
}

fn measured(threads: usize, span: Duration) -> djinn_device::Result<Rates> {
    let device = CpuDevice::new(CpuConfig { threads, ..CpuConfig::default() })?;
    let bench = Bench { stream: device.stream()?, device, span };
    let link = bench.copy()?;
    let [memory, flops] = [bench.linear(LARGE, 1)?, bench.linear(SMALL, PREFILL_ROWS)?];
    let device = bench.device.info().name;
    let name = match system::cpu_name() {
        Some(cpu) => format!("{cpu}, {device}"),
        None => device.clone(),
    };
    let machine = Machine {
        name,
        flops: flops.flops,
        memory: memory.bytes,
        link,
        launch: bench.launch()?,
        reserved_bytes: 0,
    };
    Ok(Rates { device, machine })
}

/// Rates of one operation.
struct Rate {
    flops: f64,
    bytes: f64,
}

struct Bench {
    device: CpuDevice,
    stream: Stream,
    /// How long each rate is measured.
    span: Duration,
}

impl Bench {
    fn buffer(&self, space: Space, bytes: u64) -> djinn_device::Result<Buffer> {
        let buffer = self.device.alloc(space, bytes)?;
        self.device.fill(self.stream, buffer.span(), BYTE)?;
        Ok(buffer)
    }

    /// Seconds of one `work`, which enqueues on the stream.
    fn time(&self, work: impl Fn() -> djinn_device::Result<()>) -> djinn_device::Result<f64> {
        work()?;
        self.device.sync(self.stream)?;
        let (start, mut rounds) = (Instant::now(), 0u32);
        while rounds == 0 || start.elapsed() < self.span {
            work()?;
            self.device.sync(self.stream)?;
            rounds += 1;
        }
        Ok(start.elapsed().as_secs_f64() / rounds as f64)
    }

    /// Bytes per second from host to device.
    fn copy(&self) -> djinn_device::Result<f64> {
        let (from, to) = (self.buffer(Space::Host, COPY_BYTES)?, self.buffer(Space::Device, COPY_BYTES)?);
        let seconds = self.time(|| self.device.copy(self.stream, from.span(), to.span()))?;
        self.free([from, to]);
        Ok(COPY_BYTES as f64 / seconds)
    }

    /// A product of `rows` rows with an `[n, k]` weight of bf16.
    fn linear(&self, (n, k): (u32, u32), rows: u32) -> djinn_device::Result<Rate> {
        let f32s = |columns: u32| self.buffer(Space::Device, 4 * rows as u64 * columns as u64);
        let weight_bytes = 2 * n as u64 * k as u64;
        let (x, out, weight) = (f32s(k)?, f32s(n)?, self.buffer(Space::Device, weight_bytes)?);
        let args = Linear {
            x: x.span(),
            weight: Weight::plain(weight.span(), DType::BF16),
            bias: None,
            out: out.span(),
            k,
            n,
            out_width: n,
            out_column: 0,
            rows,
        };
        let seconds = self.time(|| self.device.linear(self.stream, &args))?;
        self.free([x, out, weight]);
        let flops = 2.0 * rows as f64 * n as f64 * k as f64;
        Ok(Rate { flops: flops / seconds, bytes: weight_bytes as f64 / seconds })
    }

    /// Seconds of an operation with almost no work.
    fn launch(&self) -> djinn_device::Result<f64> {
        let buffer = self.buffer(Space::Device, 3 * 256)?;
        let part = |i: u64| -> Span { buffer.slice(i * 256, 256) };
        let args = Add { a: part(0), b: part(1), out: part(2), len: 64 };
        let seconds = self.time(|| (0..BURST).try_for_each(|_| self.device.add(self.stream, &args)))?;
        self.free([buffer]);
        Ok(seconds / BURST as f64)
    }

    fn free<const N: usize>(&self, buffers: [Buffer; N]) {
        buffers.into_iter().for_each(|buffer| self.device.free(buffer));
    }
}
