//! Decoders against vectors from GGML's own Python package (`scripts/make_quant_vectors.py`).

use super::decode;
use crate::StoredType;
use djinn_srg::{BlockFormat, DType};
use half::{bf16, f16};

/// What is decoded, besides f32.
fn stored_types() -> impl Iterator<Item = StoredType> {
    [StoredType::F16, StoredType::BF16].into_iter().chain(BlockFormat::ALL.map(StoredType::Blocks))
}

fn fixture(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/fixtures/quant/{name}.bin", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Encoded blocks and the f32 bytes that they stand for.
fn vector(stored: StoredType) -> (Vec<u8>, Vec<u8>) {
    let (elements, bytes) = stored.block().unwrap();
    let mut blocks = fixture(stored.name());
    let count = blocks.len() / (bytes + elements * 4) as usize;
    let values = blocks.split_off(count * bytes as usize);
    assert_eq!(values.len(), count * elements as usize * 4);
    assert!(count > 1);
    (blocks, values)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

#[test]
fn every_format_decodes_to_the_reference_bits() {
    for stored in stored_types() {
        let (blocks, expected) = vector(stored);
        let mut out = vec![0xaa; expected.len()];
        decode(stored, &blocks, DType::F32, &mut out);
        for (i, (got, want)) in floats(&out).iter().zip(floats(&expected)).enumerate() {
            assert_eq!(got.to_bits(), want.to_bits(), "{stored:?} element {i}: {got} instead of {want}");
        }
    }
}

#[test]
fn decoding_to_16_bits_is_decoding_then_rounding() {
    for stored in stored_types() {
        let (blocks, expected) = vector(stored);
        let values = floats(&expected);
        let mut out = vec![0xaa; values.len() * 2];
        decode(stored, &blocks, DType::F16, &mut out);
        let rounded: Vec<u8> = values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
        assert_eq!(out, rounded, "{stored:?} to f16");
        decode(stored, &blocks, DType::BF16, &mut out);
        let rounded: Vec<u8> = values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
        assert_eq!(out, rounded, "{stored:?} to bf16");
    }
}

#[test]
fn narrowing_rounds_to_nearest_even_as_numpy_does() {
    for (dtype, name) in [(DType::F16, "narrow_f16"), (DType::BF16, "narrow_bf16")] {
        let mut values = fixture(name);
        let expected = values.split_off(values.len() / 3 * 2);
        let mut out = vec![0xaa; expected.len()];
        decode(StoredType::F32, &values, dtype, &mut out);
        let values = floats(&values);
        for (i, (got, want)) in out.chunks(2).zip(expected.chunks(2)).enumerate() {
            assert_eq!(got, want, "{} to {dtype}", values[i]);
        }
    }
}

#[test]
fn nan_stays_nan() {
    for dtype in [DType::F16, DType::BF16] {
        let mut out = [0; 2];
        decode(StoredType::F32, &f32::from_bits(0x7f80_0001).to_le_bytes(), dtype, &mut out);
        let is_nan = match dtype {
            DType::F16 => f16::from_le_bytes(out).is_nan(),
            _ => bf16::from_le_bytes(out).is_nan(),
        };
        assert!(is_nan, "{dtype}: {out:?}");
    }
}

#[test]
#[should_panic(expected = "34 encoded bytes in blocks of 34 do not decode to 62 bytes")]
fn lengths_that_disagree_are_a_bug() {
    decode(StoredType::Blocks(BlockFormat::Q8_0), &[0; 34], DType::F16, &mut [0; 62]);
}
