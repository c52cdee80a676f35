//! Decodes stored elements to f32, then narrows them.

#[cfg(test)]
mod tests;

use crate::StoredType;
use djinn_srg::{BlockFormat, DType};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Elements that pass through the f32 tile at once: a whole number of blocks of every format.
const TILE: usize = BlockFormat::MOST_ELEMENTS as usize;

/// Decodes whole blocks of `stored` to little-endian `dtype`.
///
/// # Panics
/// If the lengths do not match, or for a stored type without a decoder or an integer `dtype`, which callers have
/// refused.
pub(crate) fn decode(stored: StoredType, blocks: &[u8], dtype: DType, out: &mut [u8]) {
    let (elements, bytes) = stored.block().unwrap_or_else(|| panic!("no decoder for {}", stored.name()));
    let [elements, bytes, out_bytes] = [elements, bytes, dtype.bytes()].map(|n| n as usize);
    assert!(
        blocks.len().is_multiple_of(bytes) && blocks.len() / bytes * elements * out_bytes == out.len(),
        "{} encoded bytes in blocks of {bytes} do not decode to {} bytes",
        blocks.len(),
        out.len()
    );
    let mut tile = [0.0; TILE];
    let tile_blocks = blocks.chunks(TILE / elements * bytes);
    for (blocks, out) in tile_blocks.zip(out.chunks_mut(TILE * out_bytes)) {
        let values = &mut tile[..out.len() / out_bytes];
        widen(stored, blocks, values);
        narrow(values, dtype, out);
    }
}

/// At most a tile. Whole slices are copied and converted: element by element, tests would wait for it.
fn widen(stored: StoredType, blocks: &[u8], out: &mut [f32]) {
    match stored {
        StoredType::Blocks(format) => format.decode(blocks, out),
        StoredType::F16 => {
            let values = &mut [f16::ZERO; TILE][..out.len()];
            bytemuck::cast_slice_mut(values).copy_from_slice(blocks);
            values.convert_to_f32_slice(out);
        }
        StoredType::BF16 => {
            let wide = |bytes: [u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16);
            blocks.as_chunks().0.iter().zip(out).for_each(|(&bytes, value)| *value = wide(bytes));
        }
        StoredType::F32 => bytemuck::cast_slice_mut(out).copy_from_slice(blocks),
        other => panic!("no decoder for {}", other.name()),
    }
}

/// Rounds at most a tile to nearest, ties to even.
fn narrow(values: &[f32], dtype: DType, out: &mut [u8]) {
    match dtype {
        DType::F32 => out.copy_from_slice(bytemuck::cast_slice(values)),
        DType::F16 => {
            let halves = &mut [f16::ZERO; TILE][..values.len()];
            halves.convert_from_f32_slice(values);
            out.copy_from_slice(bytemuck::cast_slice(halves));
        }
        DType::BF16 => {
            let halves = &mut [bf16::ZERO; TILE][..values.len()];
            halves.convert_from_f32_slice(values);
            out.copy_from_slice(bytemuck::cast_slice(halves));
        }
        DType::Int8 | DType::U32 => panic!("weights are not decoded to {dtype}"),
    }
}
