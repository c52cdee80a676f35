//! Normal variates by position: element `i` of a stream is a function of the stream's key and `i` alone, so
//! that a weight has the same bytes however its rows are cut.
//!
//! Sixteen bits of a mixed counter (SplitMix64's output function: Steele, Lea & Flood 2014, with Stafford's
//! constants) select one of 65 536 equally likely quantiles of the standard normal distribution, one of them
//! by sign. The quantiles are the midpoints of equal slices of probability: mean 0, standard deviation
//! 0.99997, largest 4.33, smallest magnitude 1.9e-5, never 0.

use djinn_srg::DType;
use half::{bf16, f16};
use std::sync::OnceLock;

/// Positive quantiles; the sixteenth bit is the sign.
const LEVELS: usize = 1 << 15;

/// Positive quantiles times a standard deviation, in the bits of an element type.
pub(super) enum Table {
    /// f16 or bf16.
    Half(Box<[u16; LEVELS]>),
    /// f32.
    Full(Box<[u32; LEVELS]>),
}

impl Table {
    /// The quantiles of N(0, `deviation`²) as `dtype`: f16, bf16 or f32.
    pub(super) fn new(deviation: f32, dtype: DType) -> Table {
        let scaled = |z: &f32| z * deviation;
        let half = |convert: fn(f32) -> u16| {
            let bits: Vec<u16> = unit_quantiles().iter().map(scaled).map(convert).collect();
            Table::Half(bits.try_into().expect("LEVELS quantiles"))
        };
        match dtype {
            DType::F16 => half(|x| f16::from_f32(x).to_bits()),
            DType::BF16 => half(|x| bf16::from_f32(x).to_bits()),
            _ => {
                let bits: Vec<u32> = unit_quantiles().iter().map(|z| scaled(z).to_bits()).collect();
                Table::Full(bits.try_into().expect("LEVELS quantiles"))
            }
        }
    }

    /// Writes the elements from index `first` on, little-endian, until `out` is full.
    pub(super) fn fill(&self, key: u64, first: u64, out: &mut [u8]) {
        match self {
            Table::Half(table) => fill(key, first, out.as_chunks_mut::<2>().0, |bits| {
                (table[usize::from(bits) % LEVELS] | (bits & 0x8000)).to_le_bytes()
            }),
            Table::Full(table) => fill(key, first, out.as_chunks_mut::<4>().0, |bits| {
                (table[usize::from(bits) % LEVELS] | (u32::from(bits & 0x8000) << 16)).to_le_bytes()
            }),
        }
    }
}

/// A single standard normal variate: element `index` of the stream `key`.
pub(super) fn variate(key: u64, index: u64) -> f32 {
    let bits = lane(word(key, index / 4), index % 4);
    let magnitude = unit_quantiles()[usize::from(bits) % LEVELS];
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}

/// The key of the stream that belongs to `name` under `seed`: FNV-1a of the name, mixed with the seed.
pub(super) fn key(seed: u64, name: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let name = name.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    mix(mix(seed) ^ name)
}

/// Each counter gives four elements.
fn fill<const N: usize>(key: u64, first: u64, out: &mut [[u8; N]], element: impl Fn(u16) -> [u8; N]) {
    let lead = (first.next_multiple_of(4) - first).min(out.len() as u64) as usize;
    let (lead, rest) = out.split_at_mut(lead);
    for (out, index) in lead.iter_mut().zip(first..) {
        *out = element(lane(word(key, index / 4), index % 4));
    }
    let mut counter = first.div_ceil(4);
    let (groups, tail) = rest.as_chunks_mut::<4>();
    // Written out: tests wait for this loop, compiled without optimisation.
    for group in groups {
        let bits = word(key, counter);
        *group =
            [element(lane(bits, 0)), element(lane(bits, 1)), element(lane(bits, 2)), element(lane(bits, 3))];
        counter += 1;
    }
    for (out, i) in tail.iter_mut().zip(0..) {
        *out = element(lane(word(key, counter), i));
    }
}

pub(super) fn word(key: u64, counter: u64) -> u64 {
    mix(key.wrapping_add(counter.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

fn lane(word: u64, index: u64) -> u16 {
    (word >> (16 * index)) as u16
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Quantiles of N(0, 1) at the midpoints of `LEVELS` equal slices of the upper half, ascending.
fn unit_quantiles() -> &'static [f32] {
    static QUANTILES: OnceLock<Vec<f32>> = OnceLock::new();
    QUANTILES.get_or_init(|| {
        // The quantile function z(p) solves dz/dp = sqrt(2π) exp(z² / 2), z(1/2) = 0: Runge and Kutta's
        // fourth-order step, in finer steps where the tail steepens.
        let slope = |z: f64| std::f64::consts::TAU.sqrt() * (z * z / 2.0).exp();
        let step = |z: f64, h: f64| {
            let a = slope(z);
            let b = slope(z + h / 2.0 * a);
            let c = slope(z + h / 2.0 * b);
            let d = slope(z + h * c);
            z + h / 6.0 * (a + 2.0 * b + 2.0 * c + d)
        };
        let slice = 0.5 / LEVELS as f64;
        let mut z = step(0.0, slice / 2.0);
        let mut quantiles = vec![z as f32];
        for left in (1..LEVELS).rev() {
            let parts = (4096 / left).clamp(1, 64);
            for _ in 0..parts {
                z = step(z, slice / parts as f64);
            }
            quantiles.push(z as f32);
        }
        quantiles
    })
}
