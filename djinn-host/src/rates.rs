//! The CPU device's sustained rates, measured with a model's operations.

use crate::{Error, Result, system};
use djinn_cpu::{CpuConfig, CpuDevice};
use djinn_device::args::{Add, Linear, Weight};
use djinn_device::{Buffer, DType, Device, Encoding, Ops, Space, Span, Stream};
use djinn_vmu::{Machine, ProductRates};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// bf16 0.0115 and f32 0.0115: an ordinary number in every element type, and as a scale of blocks.
const BYTE: u8 = 0x3c;
/// Bytes of each measured copy.
pub const COPY_BYTES: u64 = 64 << 20;
/// Rows and columns of a weight.
const WEIGHT: [u32; 2] = [2048, 2048];
/// A pass over weights reads as many bytes, since caches hold the weights of no model.
const WEIGHTS_BYTES: u64 = 128 << 20;
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

/// Measures products with weights in each of `encodings` on the CPU device with all threads: each of two rates for
/// `span`.
///
/// # Errors
/// As [`measure`].
pub fn measure_encoded(
    encodings: impl IntoIterator<Item = Encoding>,
    span: Duration,
) -> Result<BTreeMap<String, ProductRates>> {
    let rates =
        |encoding: Encoding| Ok((encoding.name().to_owned(), Bench::new(0, span)?.products(encoding)?));
    encodings.into_iter().map(rates).collect::<djinn_device::Result<_>>().map_err(Error::Cpu)
}

fn measured(threads: usize, span: Duration) -> djinn_device::Result<Rates> {
    let bench = Bench::new(threads, span)?;
    let (link, products) = (bench.copy()?, bench.products(Encoding::Plain)?);
    let device = bench.device.info().name;
    let name = match system::cpu_name() {
        Some(cpu) => format!("{cpu}, {device}"),
        None => device.clone(),
    };
    let machine = Machine {
        name,
        flops: products.flops,
        memory: products.memory,
        link,
        launch: bench.launch()?,
        ..Machine::default()
    };
    Ok(Rates { device, machine })
}

struct Bench {
    device: CpuDevice,
    stream: Stream,
    /// How long each rate is measured.
    span: Duration,
}

impl Bench {
    fn new(threads: usize, span: Duration) -> djinn_device::Result<Bench> {
        let device = CpuDevice::new(CpuConfig { threads, ..CpuConfig::default() })?;
        Ok(Bench { stream: device.stream()?, device, span })
    }

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

    /// Products with weights of bf16 in `encoding`: with one row they go from weight to weight, with many they stay with
    /// one.
    fn products(&self, encoding: Encoding) -> djinn_device::Result<ProductRates> {
        let [n, k] = WEIGHT;
        let weight_bytes = encoding.tile(DType::BF16, n.into(), k.into()).expect("whole blocks").bytes;
        let count = WEIGHTS_BYTES / weight_bytes;
        let f32s =
            |columns: u32| self.buffer(Space::Device, 4 * u64::from(PREFILL_ROWS) * u64::from(columns));
        let (x, out, weights) = (f32s(k)?, f32s(n)?, self.buffer(Space::Device, count * weight_bytes)?);
        if encoding == Encoding::Lossless {
            // Rows of zeros are valid, and take as long as others.
            self.device.fill(self.stream, weights.span(), 0)?;
        }
        let product = |rows: u32, index: u64| {
            let args = Linear {
                x: x.slice(0, 4 * u64::from(rows) * u64::from(k)),
                weight: Weight {
                    span: weights.slice(index * weight_bytes, weight_bytes),
                    dtype: DType::BF16,
                    encoding,
                },
                bias: None,
                out: out.slice(0, 4 * u64::from(rows) * u64::from(n)),
                k,
                n,
                out_width: n,
                out_column: 0,
                rows,
            };
            self.device.linear(self.stream, &args)
        };
        let pass = self.time(|| (0..count).try_for_each(|index| product(1, index)))?;
        let prefill = self.time(|| product(PREFILL_ROWS, 0))?;
        self.free([x, out, weights]);
        let flops = 2.0 * f64::from(PREFILL_ROWS) * f64::from(n) * f64::from(k);
        Ok(ProductRates { flops: flops / prefill, memory: (count * weight_bytes) as f64 / pass })
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
