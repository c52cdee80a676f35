//! Decoders against vectors from GGML's own Python package (`scripts/make_quant_vectors.py`).

use super::decode;
use crate::Encoding;
use djinn_srg::DType;
use half::{bf16, f16};

const ENCODINGS: [Encoding; 12] = [
    Encoding::F16,
    Encoding::BF16,
    Encoding::Q4_0,
    Encoding::Q4_1,
    Encoding::Q5_0,
    Encoding::Q5_1,
    Encoding::Q8_0,
    Encoding::Q2_K,
    Encoding::Q3_K,
    Encoding::Q4_K,
    Encoding::Q5_K,
    Encoding::Q6_K,
];

fn fixture(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/fixtures/quant/{name}.bin", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Encoded blocks and the f32 bytes that they stand for.
fn vector(encoding: Encoding) -> (Vec<u8>, Vec<u8>) {
    let (elements, bytes) = encoding.block().unwrap();
    let mut blocks = fixture(encoding.name());
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
    for encoding in ENCODINGS {
        let (blocks, expected) = vector(encoding);
        let mut out = vec![0xaa; expected.len()];
        decode(encoding, &blocks, DType::F32, &mut out);
        for (i, (got, want)) in floats(&out).iter().zip(floats(&expected)).enumerate() {
            assert_eq!(got.to_bits(), want.to_bits(), "{encoding:?} element {i}: {got} instead of {want}");
        }
    }
}

#[test]
fn decoding_to_16_bits_is_decoding_then_rounding() {
    for encoding in ENCODINGS {
        let (blocks, expected) = vector(encoding);
        let values = floats(&expected);
        let mut out = vec![0xaa; values.len() * 2];
        decode(encoding, &blocks, DType::F16, &mut out);
        let rounded: Vec<u8> = values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
        assert_eq!(out, rounded, "{encoding:?} to f16");
        decode(encoding, &blocks, DType::BF16, &mut out);
        let rounded: Vec<u8> = values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
        assert_eq!(out, rounded, "{encoding:?} to bf16");
    }
}

#[test]
fn narrowing_rounds_to_nearest_even_as_numpy_does() {
    for (dtype, name) in [(DType::F16, "narrow_f16"), (DType::BF16, "narrow_bf16")] {
        let mut values = fixture(name);
        let expected = values.split_off(values.len() / 3 * 2);
        let mut out = vec![0xaa; expected.len()];
        decode(Encoding::F32, &values, dtype, &mut out);
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
        decode(Encoding::F32, &f32::from_bits(0x7f80_0001).to_le_bytes(), dtype, &mut out);
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
    decode(Encoding::Q8_0, &[0; 34], DType::F16, &mut [0; 62]);
}
