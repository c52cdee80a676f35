//! Runs every conformance check by name, and measures what the machine gives: the link, products of one row,
//! a product of many. `conformance [checks|measure|uncapped] [NAME]`; the first two without an argument. With a name,
//! only checks that have it in theirs.
//!
//! Exits with 1 if a check fails, and goes on with the others.

use djinn_cpu::CpuKernels;
use djinn_cuda::{CudaConfig, CudaDevice};
use djinn_device::args::{Linear, Weight};
use djinn_device::conformance::{self, Tolerance};
use djinn_device::{Buffer, DType, Device, Ops, Result, Space, Stream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let (part, name) = (std::env::args().nth(1), std::env::args().nth(2).unwrap_or_default());
    let part = part.as_deref().unwrap_or("all");
    if !["all", "checks", "measure", "uncapped"].contains(&part) {
        eprintln!("usage: conformance [checks|measure|uncapped] [NAME]");
        return ExitCode::from(2);
    }
    let start = Instant::now();
    let device = match CudaDevice::new(CudaConfig::default()) {
        Ok(device) => device,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let info = device.info();
    let (made, kind) = (start.elapsed(), if info.wide_products { "Hopper's" } else { "any card's" });
    println!("{}, made in {made:.2?}, {} bytes reserved, {kind} code", info.name, info.reserved_bytes);
    let failed = match part {
        "measure" => 0,
        "uncapped" => checks(None, &name),
        _ => checks(Some(2 << 30), &name),
    };
    if !["checks", "uncapped"].contains(&part)
        && let Err(error) = measure(&device)
    {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Runs all checks, and those of what one launch may compute in small workspaces as well; how many failed. Without a cap
/// every buffer is an allocation of the driver's own, so that a memory checker knows its bounds.
fn checks(vram: Option<u64>, wanted: &str) -> usize {
    let config = CudaConfig { vram, ram: Some(256 << 20), ..CudaConfig::default() };
    let small = CudaConfig { activation_bytes: 2 << 20, decoded_bytes: 2 << 20, ..config };
    let failed = checks_of(config, |name| name.contains(wanted));
    println!("workspaces of 2 MiB");
    failed + checks_of(small, |name| name.contains(wanted) && name.ends_with("at_once"))
}

fn checks_of(config: CudaConfig, wanted: impl Fn(&str) -> bool) -> usize {
    let cpu = Arc::new(CpuKernels::new(0).expect("threads"));
    let make = || {
        let device = CudaDevice::new(config).unwrap_or_else(|error| panic!("{error}"));
        device.with_cpu(cpu.clone()).expect("a thread")
    };
    let (mut failed, mut passed) = (0, 0);
    conformance::run_each(make, Tolerance::ROUNDING, |name, check| {
        if !wanted(name) {
            return;
        }
        let start = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(check));
        let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
        println!("{verdict:6} {:>9.1} ms  {name}", start.elapsed().as_secs_f64() * 1e3);
        *(if outcome.is_ok() { &mut passed } else { &mut failed }) += 1;
    });
    println!("{passed} checks passed, {failed} failed");
    failed
}

fn measure(device: &CudaDevice) -> Result<()> {
    let stream = device.stream()?;
    link(device, stream)?;
    for (n, k) in [(5120, 5120), (13824, 5120), (5120, 13824)] {
        product(device, stream, 1, n, k)?;
    }
    for rows in [4, 16] {
        product(device, stream, rows, 13824, 5120)?;
    }
    for rows in [64, 512] {
        for (n, k) in [(5120, 5120), (13824, 5120), (5120, 13824)] {
            product(device, stream, rows, n, k)?;
        }
    }
    Ok(())
}

/// Times `repeat` rounds of `work` by the device's clock; the median of five, per round.
fn time(
    device: &CudaDevice,
    stream: Stream,
    repeat: u32,
    mut work: impl FnMut(u32) -> Result<()>,
) -> Result<Duration> {
    let (begin, end) = (device.event()?, device.event()?);
    work(0)?;
    device.sync(stream)?;
    let mut samples = Vec::new();
    for _ in 0..5 {
        device.record(stream, begin)?;
        for i in 0..repeat {
            work(i)?;
        }
        device.record(stream, end)?;
        device.sync(stream)?;
        let times = device.timestamp(begin).zip(device.timestamp(end));
        samples.extend(times.map(|(begin, end)| (end - begin) / repeat));
    }
    samples.sort();
    Ok(samples.get(samples.len() / 2).copied().unwrap_or(Duration::MAX))
}

/// Pinned copies of 256 MiB each way.
fn link(device: &CudaDevice, stream: Stream) -> Result<()> {
    let len = 256 << 20;
    let start = Instant::now();
    let host = device.alloc(Space::Host, len)?;
    let pinned = start.elapsed();
    let local = device.alloc(Space::Device, len)?;
    let up = time(device, stream, 4, |_| device.copy(stream, host.span(), local.span()))?;
    let down = time(device, stream, 4, |_| device.copy(stream, local.span(), host.span()))?;
    let speed = |time: Duration| len as f64 / time.as_secs_f64() / 1e9;
    println!(
        "link: host to device {:.1} GB/s, device to host {:.1} GB/s; pinned at {:.1} GB/s",
        speed(up),
        speed(down),
        speed(pinned)
    );
    device.free(host);
    device.free(local);
    Ok(())
}

/// A product on bf16 weights that take turns over 2 GiB, so that no cache holds them.
fn product(device: &CudaDevice, stream: Stream, rows: u32, n: u32, k: u32) -> Result<()> {
    let bytes = u64::from(n) * u64::from(k) * 2;
    let count = (2_u64 << 30).div_ceil(bytes) as u32;
    let weights = random_bf16(device, stream, bytes * u64::from(count))?;
    let x = device.alloc(Space::Device, u64::from(rows * k) * 4)?;
    device.fill(stream, x.span(), 0x3c)?;
    let out = device.alloc(Space::Device, u64::from(rows * n) * 4)?;
    let linear = |i: u32| {
        let weight = Weight::plain(weights.slice(u64::from(i) * bytes, bytes), DType::BF16);
        let (x, out) = (x.span(), out.span());
        let args = Linear { x, weight, bias: None, out, k, n, out_width: n, out_column: 0, rows };
        args.check();
        device.linear(stream, &args)
    };
    let time = time(device, stream, count, linear)?;
    let seconds = time.as_secs_f64();
    let flops = 2.0 * f64::from(rows) * f64::from(n) * f64::from(k);
    println!(
        "linear {rows:>3} rows of {k} to {n}, bf16: {:>8.1} us, {:.2} TB/s of weights, {:.1} TFLOP/s",
        seconds * 1e6,
        bytes as f64 / seconds / 1e12,
        flops / seconds / 1e12
    );
    for buffer in [weights, x, out] {
        device.free(buffer);
    }
    Ok(())
}

/// Values around ±0.02: random signs and mantissas, since constant data would let the card clock higher.
fn random_bf16(device: &CudaDevice, stream: Stream, len: u64) -> Result<Buffer> {
    let (piece, buffer) = (16 << 20, device.alloc(Space::Device, len)?);
    let host = device.alloc(Space::Host, piece)?;
    device.write_host(host.span(), |bytes| {
        let mut state = 1_u64;
        for value in bytes.chunks_exact_mut(2) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let bits = 0x3c80 | (state >> 48) as u16 & 0x807f;
            value.copy_from_slice(&bits.to_le_bytes());
        }
    });
    for at in (0..len).step_by(piece as usize) {
        let part = piece.min(len - at);
        device.copy(stream, host.slice(0, part), buffer.slice(at, part))?;
    }
    device.sync(stream)?;
    device.free(host);
    Ok(buffer)
}
