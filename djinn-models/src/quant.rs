//! Decoding of stored elements: GGML's block formats and the plain floats, to f32, then narrowed.
//!
//! A block stores a fixed number of neighbouring elements of a row as small integers with shared scales.
//! The arithmetic is that of GGML's reference decoders, in f32 and in their order, so that decoded weights
//! are the same bits. The type is looked at once for a run of blocks, never for an element.

mod classic;
mod k;
#[cfg(test)]
mod tests;

use crate::Encoding;
use djinn_srg::DType;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Elements that pass through the f32 tile at once: one block of the largest format.
const TILE: usize = 256;

/// A stored format.
trait Format {
    /// Elements in a block, a divisor of [`TILE`].
    const ELEMENTS: usize;
    /// Bytes in a block.
    const BYTES: usize;
    /// Decodes whole blocks, at most a tile; the lengths correspond.
    fn decode(blocks: &[u8], out: &mut [f32]);
}

/// A type that f32 values are rounded to.
trait Narrow {
    const BYTES: usize;
    /// Rounds at most a tile to nearest, ties to even, and stores it little-endian; the lengths correspond.
    fn narrow(values: &[f32], out: &mut [u8]);
}

/// Decodes whole blocks of `encoding` to little-endian `dtype`.
///
/// # Panics
/// If the lengths do not correspond, or for an encoding without a decoder or an integer `dtype`: callers
/// have refused those.
pub(crate) fn decode(encoding: Encoding, blocks: &[u8], dtype: DType, out: &mut [u8]) {
    match encoding {
        Encoding::F32 => decode_to::<f32>(blocks, dtype, out),
        Encoding::F16 => decode_to::<f16>(blocks, dtype, out),
        Encoding::BF16 => decode_to::<bf16>(blocks, dtype, out),
        Encoding::Q4_0 => decode_to::<classic::Q4_0>(blocks, dtype, out),
        Encoding::Q4_1 => decode_to::<classic::Q4_1>(blocks, dtype, out),
        Encoding::Q5_0 => decode_to::<classic::Q5_0>(blocks, dtype, out),
        Encoding::Q5_1 => decode_to::<classic::Q5_1>(blocks, dtype, out),
        Encoding::Q8_0 => decode_to::<classic::Q8_0>(blocks, dtype, out),
        Encoding::Q2_K => decode_to::<k::Q2_K>(blocks, dtype, out),
        Encoding::Q3_K => decode_to::<k::Q3_K>(blocks, dtype, out),
        Encoding::Q4_K => decode_to::<k::Q4_K>(blocks, dtype, out),
        Encoding::Q5_K => decode_to::<k::Q5_K>(blocks, dtype, out),
        Encoding::Q6_K => decode_to::<k::Q6_K>(blocks, dtype, out),
        Encoding::Other(name) => panic!("no decoder for {name}"),
    }
}

fn decode_to<F: Format>(blocks: &[u8], dtype: DType, out: &mut [u8]) {
    match dtype {
        DType::F32 => run::<F, f32>(blocks, out),
        DType::F16 => run::<F, f16>(blocks, out),
        DType::BF16 => run::<F, bf16>(blocks, out),
        other => panic!("weights are not decoded to {other}"),
    }
}

fn run<F: Format, N: Narrow>(blocks: &[u8], out: &mut [u8]) {
    assert!(
        blocks.len().is_multiple_of(F::BYTES)
            && blocks.len() / F::BYTES * F::ELEMENTS * <N as Narrow>::BYTES == out.len(),
        "{} encoded bytes in blocks of {} do not decode to {} bytes",
        blocks.len(),
        F::BYTES,
        out.len()
    );
    let mut tile = [0.0; TILE];
    let tile_blocks = blocks.chunks(TILE / F::ELEMENTS * F::BYTES);
    for (blocks, out) in tile_blocks.zip(out.chunks_mut(TILE * <N as Narrow>::BYTES)) {
        let values = &mut tile[..blocks.len() / F::BYTES * F::ELEMENTS];
        F::decode(blocks, values);
        N::narrow(values, out);
    }
}

impl Format for f32 {
    const ELEMENTS: usize = 1;
    const BYTES: usize = 4;

    fn decode(blocks: &[u8], out: &mut [f32]) {
        for (bytes, value) in blocks.as_chunks().0.iter().zip(out) {
            *value = f32::from_le_bytes(*bytes);
        }
    }
}

impl Format for f16 {
    const ELEMENTS: usize = 1;
    const BYTES: usize = 2;

    fn decode(blocks: &[u8], out: &mut [f32]) {
        let mut halves = [f16::ZERO; TILE];
        for (bytes, half) in blocks.as_chunks().0.iter().zip(&mut halves) {
            *half = f16::from_le_bytes(*bytes);
        }
        halves[..out.len()].convert_to_f32_slice(out);
    }
}

impl Format for bf16 {
    const ELEMENTS: usize = 1;
    const BYTES: usize = 2;

    fn decode(blocks: &[u8], out: &mut [f32]) {
        for (bytes, value) in blocks.as_chunks().0.iter().zip(out) {
            *value = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
        }
    }
}

impl Narrow for f32 {
    const BYTES: usize = 4;

    fn narrow(values: &[f32], out: &mut [u8]) {
        for (value, bytes) in values.iter().zip(out.as_chunks_mut().0) {
            *bytes = value.to_le_bytes();
        }
    }
}

impl Narrow for f16 {
    const BYTES: usize = 2;

    fn narrow(values: &[f32], out: &mut [u8]) {
        let mut halves = [f16::ZERO; TILE];
        halves[..values.len()].convert_from_f32_slice(values);
        for (half, bytes) in halves.iter().zip(out.as_chunks_mut().0) {
            *bytes = half.to_le_bytes();
        }
    }
}

impl Narrow for bf16 {
    const BYTES: usize = 2;

    fn narrow(values: &[f32], out: &mut [u8]) {
        for (value, bytes) in values.iter().zip(out.as_chunks_mut().0) {
            *bytes = bf16::from_f32(*value).to_le_bytes();
        }
    }
}

/// The f16 at `at`, widened: the scales of all block formats.
fn scale(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}
