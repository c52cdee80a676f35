//! Times what a step of many sessions spends on a card: products of 1 to 256 rows with the shapes of Llama-2-7B,
//! beside cuBLASLt's, and attention of 1 to 48 sessions with 2,048 tokens each, with key heads of their own and shared
//! by four. One table on standard output.
//!
//! Weights and caches take turns over 2 GiB, so that no cache of the card holds them. Times are medians of seven.

use djinn_cuda::{CudaConfig, CudaDevice};
use djinn_device::args::{Attention, KvPages, Linear, Weight};
use djinn_device::{Buffer, DType, Device, Ops, Result, Space, Span, Stream};
use std::process::ExitCode;
use std::time::Duration;

/// Names of weights, their rows and columns.
const SHAPES: [(&str, u32, u32); 5] = [
    ("qkv", 12288, 4096),
    ("output", 4096, 4096),
    ("gate, up", 22016, 4096),
    ("down", 4096, 11008),
    ("head", 32000, 4096),
];
const ROWS: [u32; 8] = [1, 4, 8, 16, 32, 64, 128, 256];
const SESSIONS: [u32; 7] = [1, 2, 4, 8, 16, 32, 48];
const TOKENS: u32 = 2048;
const HEADS: u32 = 32;
const KV_HEADS: [u32; 2] = [HEADS, HEADS / 4];
const HEAD_DIM: u32 = 128;
const PAGE_TOKENS: u32 = 16;

/// Bytes that weights and caches take turns over.
const TURNS: u64 = 2 << 30;

/// The engine cuts weights into tiles of at most this many bytes, each a launch.
const TILE: u64 = 64 << 20;

/// Bits of each 16-bit word of random data that are the same, and those that are random.
#[derive(Clone, Copy)]
struct Pattern {
    fixed: u16,
    free: u16,
}

const F16: Pattern = Pattern { fixed: 0x2400, free: 0x83ff };
/// The upper half of each element, and as good for the lower.
const F32: Pattern = Pattern { fixed: 0x3c80, free: 0x807f };

fn main() -> ExitCode {
    let outcome = CudaDevice::new(CudaConfig::default()).map_err(|error| error.to_string());
    match outcome.and_then(|device| measure(&device).map_err(|error| error.to_string())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(device: &CudaDevice) -> Result<()> {
    let bench = Bench { device, stream: device.stream()? };
    println!("{}, f16; own kernels up to {} rows", device.info().name, device.info().batch_invariant_rows);
    println!("linear              rows   own us    GB/s  tiles us    GB/s  cuBLASLt us    GB/s");
    let memory = bench.random(TURNS, F16)?;
    let mut passes = [[Duration::ZERO; 3]; ROWS.len()];
    for (name, n, k) in SHAPES {
        for (rows, pass) in ROWS.into_iter().zip(&mut passes) {
            let times = bench.products(memory.span(), rows, n, k)?;
            let bytes = u64::from(n) * u64::from(k) * 2;
            bench.line(&format!("{name:9} {n:>5}x{k:<5}"), rows, times.map(|time| (time, bytes)));
            let calls = if name == "head" { 1 } else { 32 };
            for (pass, time) in pass.iter_mut().zip(times) {
                *pass += time * calls;
            }
        }
    }
    let bytes: u64 = SHAPES
        .iter()
        .map(|&(name, n, k)| u64::from(n) * u64::from(k) * 2 * if name == "head" { 1 } else { 32 })
        .sum();
    for (rows, pass) in ROWS.into_iter().zip(passes) {
        bench.line("all of 7B            ", rows, pass.map(|time| (time, bytes)));
    }
    device.free(memory);
    println!("attention       sessions       us    GB/s");
    for kv_heads in KV_HEADS {
        for sessions in SESSIONS {
            bench.attention(sessions, kv_heads)?;
        }
    }
    Ok(())
}

/// A device and a stream of it.
struct Bench<'a> {
    device: &'a CudaDevice,
    stream: Stream,
}

impl Bench<'_> {
    /// A line of the table: times, and speeds for bytes.
    fn line<const N: usize>(&self, name: &str, count: u32, times: [(Duration, u64); N]) {
        let columns = times.map(|(time, bytes)| {
            let seconds = time.as_secs_f64();
            format!("{:>8.1} {:>7.0}", seconds * 1e6, bytes as f64 / seconds / 1e9)
        });
        println!("{name} {count:>3} {}", columns.join("  "));
    }

    /// Times `repeat` rounds of `work` by the device's clock, per round.
    fn time(&self, repeat: u32, mut work: impl FnMut(u32) -> Result<()>) -> Result<Duration> {
        let (begin, end) = (self.device.event()?, self.device.event()?);
        work(0)?;
        let mut samples = Vec::new();
        for _ in 0..7 {
            self.device.sync(self.stream)?;
            self.device.record(self.stream, begin)?;
            for i in 0..repeat {
                work(i)?;
            }
            self.device.record(self.stream, end)?;
            self.device.sync(self.stream)?;
            let times = self.device.timestamp(begin).zip(self.device.timestamp(end));
            samples.extend(times.map(|(begin, end)| (end - begin) / repeat));
        }
        samples.sort();
        Ok(samples.get(samples.len() / 2).copied().unwrap_or(Duration::MAX))
    }

    /// A product by the own kernel, whole and in tiles, and by the library.
    fn products(&self, weights: Span, rows: u32, n: u32, k: u32) -> Result<[Duration; 3]> {
        let x = self.random(u64::from(rows * k) * 4, F32)?;
        let out = self.device.alloc(Space::Device, u64::from(rows * n) * 4)?;
        let row_bytes = u64::from(k) * 2;
        let bytes = u64::from(n) * row_bytes;
        let turns = (weights.len() / bytes) as u32;
        // The product of `count` rows of a weight from `first` on.
        let part = |turn: u32, first: u32, count: u32| {
            let at = u64::from(turn) * bytes + u64::from(first) * row_bytes;
            let weight = Weight::plain(weights.slice(at, u64::from(count) * row_bytes), DType::F16);
            let (x, out) = (x.span(), out.span());
            let args =
                Linear { x, weight, bias: None, out, k, n: count, out_width: n, out_column: first, rows };
            args.check();
            args
        };
        let tile = n.div_ceil(bytes.div_ceil(TILE) as u32);
        let repeat = 2 * turns;
        let times = [
            self.time(repeat, |i| self.device.linear(self.stream, &part(i % turns, 0, n)))?,
            self.time(repeat, |i| {
                let tiles = (0..n).step_by(tile as usize);
                let tiles: Vec<Linear> =
                    tiles.map(|first| part(i % turns, first, tile.min(n - first))).collect();
                self.device.linear_tiles(self.stream, &tiles)
            })?,
            self.time(repeat, |i| {
                let served = self.device.library_linear(self.stream, &part(i % turns, 0, n))?;
                assert!(served, "cuBLASLt has no algorithm for {rows} rows of {k} to {n}");
                Ok(())
            })?,
        ];
        for buffer in [x, out] {
            self.device.free(buffer);
        }
        Ok(times)
    }

    /// Attention of one row of each of some sessions, over layers that take turns.
    fn attention(&self, sessions: u32, kv_heads: u32) -> Result<()> {
        let session_pages = TOKENS / PAGE_TOKENS;
        let pages = sessions * session_pages;
        let layer_bytes = u64::from(2 * kv_heads * PAGE_TOKENS * HEAD_DIM) * 2;
        let layers = (TURNS / (layer_bytes * u64::from(pages))).max(2);
        let cache = self.random(layer_bytes * layers * u64::from(pages), F16)?;
        let row_seq = self.upload((0..sessions).collect())?;
        let positions = self.upload(vec![TOKENS - 1; sessions as usize])?;
        // A session's pages lie far from one another: a prime step, greater than the number of pages.
        let page_table = self.upload((0..pages).map(|i| (i * 10_007) % pages).collect())?;
        let qkv = self.random(u64::from(sessions * (HEADS + 2 * kv_heads) * HEAD_DIM) * 4, F32)?;
        let out = self.device.alloc(Space::Device, u64::from(sessions * HEADS * HEAD_DIM) * 4)?;
        let time = self.time(2 * layers as u32, |i| {
            let kv = KvPages {
                pages: cache.span(),
                dtype: DType::F16,
                page_bytes: layer_bytes * layers,
                page_tokens: PAGE_TOKENS,
                offset: u64::from(i) % layers * layer_bytes,
                kv_heads,
                head_dim: HEAD_DIM,
                page_table: page_table.span(),
                table_width: session_pages,
            };
            let args = Attention {
                qkv: qkv.span(),
                kv,
                row_seq: row_seq.span(),
                positions: positions.span(),
                out: out.span(),
                heads: HEADS,
                scale: 1.0 / (HEAD_DIM as f32).sqrt(),
                window: None,
                alibi: false,
                rows: sessions,
                short_runs: true,
                read_by: None,
            };
            args.check();
            self.device.attention(self.stream, &args)
        })?;
        let name = format!("{HEADS} heads, {kv_heads:>2} of keys ");
        self.line(&name, sessions, [(time, layer_bytes * u64::from(pages))]);
        for buffer in [cache, row_seq, positions, page_table, qkv, out] {
            self.device.free(buffer);
        }
        Ok(())
    }

    fn upload(&self, values: Vec<u32>) -> Result<Buffer> {
        let len = values.len() as u64 * 4;
        let (host, buffer) = (self.device.alloc(Space::Host, len)?, self.device.alloc(Space::Device, len)?);
        self.device.write_host(host.span(), |bytes| {
            for (to, value) in bytes.chunks_exact_mut(4).zip(values) {
                to.copy_from_slice(&value.to_le_bytes());
            }
        });
        self.device.copy(self.stream, host.span(), buffer.span())?;
        self.device.sync(self.stream)?;
        self.device.free(host);
        Ok(buffer)
    }

    /// Values around ±0.02, as 16-bit words of `pattern`: random signs and mantissas, since constant data would let the
    /// card clock higher.
    fn random(&self, len: u64, pattern: Pattern) -> Result<Buffer> {
        let piece = len.min(16 << 20);
        let (host, buffer) = (self.device.alloc(Space::Host, piece)?, self.device.alloc(Space::Device, len)?);
        self.device.write_host(host.span(), |bytes| {
            let mut state = 1_u64;
            for value in bytes.chunks_exact_mut(2) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let bits = pattern.fixed | (state >> 48) as u16 & pattern.free;
                value.copy_from_slice(&bits.to_le_bytes());
            }
        });
        for at in (0..len).step_by(piece as usize) {
            let part = piece.min(len - at);
            self.device.copy(self.stream, host.slice(0, part), buffer.slice(at, part))?;
        }
        self.device.sync(self.stream)?;
        self.device.free(host);
        Ok(buffer)
    }
}
