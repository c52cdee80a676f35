//! Keys and values as pages hold them: vectors of one head at one position.

use super::encode;
use crate::DType;
use half::{bf16, f16};

/// Steps of int8 on each side of 0.
const STEPS: f32 = 127.0;

/// Vectors of `dim` numbers in the bytes of a type, each with its scale after it where the type has one. Floats are rounded
/// to nearest, ties to even.
///
/// The scale of int8 is the vector's greatest size divided by 127. An integer is its number times the quotient of 127 and
/// the greatest size, rounded to nearest, ties to even; each step is rounded to f32. Where the scale is below 2^-126, it and
/// the integers are 0. Where a number is not finite, the scale is NaN and the integers are 0: all of the vector is NaN.
///
/// # Panics
/// If the type is none of keys and values.
pub fn encode_vectors(values: &[f32], dtype: DType, dim: usize) -> Vec<u8> {
    if dtype != DType::Int8 {
        return encode(values, dtype);
    }
    let mut bytes = Vec::with_capacity(values.len() + values.len() / dim * size_of::<f32>());
    for vector in values.chunks_exact(dim) {
        let largest = vector.iter().fold(0.0, |largest: f32, x| largest.max(x.abs()));
        let scale = match largest / STEPS {
            _ if !vector.iter().all(|x| x.is_finite()) => f32::NAN,
            scale if scale < f32::MIN_POSITIVE => 0.0,
            scale => scale,
        };
        let by = if scale > 0.0 { STEPS / largest } else { 0.0 };
        bytes.extend(vector.iter().map(|x| ((x * by).round_ties_even() as i8).cast_unsigned()));
        bytes.extend(scale.to_le_bytes());
    }
    bytes
}

/// What vectors of `dim` elements of a type stand for, each with its scale after it where the type has one.
///
/// # Panics
/// If the type is none of keys and values.
pub fn decode_vectors(bytes: &[u8], dtype: DType, dim: usize) -> Vec<f32> {
    let (halves, words) = (bytes.as_chunks::<2>().0, bytes.as_chunks::<4>().0);
    match dtype {
        DType::F32 => words.iter().map(|&x| f32::from_le_bytes(x)).collect(),
        DType::F16 => halves.iter().map(|&x| f16::from_le_bytes(x).to_f32()).collect(),
        DType::BF16 => halves.iter().map(|&x| bf16::from_le_bytes(x).to_f32()).collect(),
        DType::Int8 => {
            let vectors = bytes.chunks_exact(dim + size_of::<f32>());
            let scaled = vectors.flat_map(|vector| {
                let (integers, scale) = vector.split_at(dim);
                let scale = f32::from_le_bytes(scale.try_into().expect("four bytes"));
                integers.iter().map(move |&x| f32::from(x.cast_signed()) * scale)
            });
            scaled.collect()
        }
        DType::U32 => panic!("{dtype} is no type of keys and values"),
    }
}

#[cfg(test)]
mod tests {
    use super::{decode_vectors, encode_vectors};
    use crate::DType;
    use proptest::prelude::*;

    proptest! {
        /// Vectors of any size: each number comes back within half a step, and as the same bytes when it is written again.
        #[test]
        fn int8_comes_back_within_half_a_step(
            numbers in prop::collection::vec(-1.0_f32..1.0, 1..40),
            exponent in -130..120_i32,
        ) {
            let values: Vec<f32> = numbers.iter().map(|x| x * 2_f32.powi(exponent)).collect();
            let bytes = encode_vectors(&values, DType::Int8, values.len());
            prop_assert_eq!(bytes.len() as u64, DType::Int8.vector_bytes(values.len() as u64));
            let back = decode_vectors(&bytes, DType::Int8, values.len());
            let largest = values.iter().fold(0.0, |a: f32, x| a.max(x.abs()));
            // Half a step; and of 127 steps, the roundings of the quotient, of both products and of the scale. Below the
            // last summand, a vector is 0.
            let steps = 0.5 + 127.0 * 4.0 * 2_f64.powi(-24);
            let half = f64::from(largest) / 127.0 * steps + 127.0 * 2_f64.powi(-126);
            for (back, x) in back.iter().zip(&values) {
                prop_assert!((f64::from(*back) - f64::from(*x)).abs() <= half, "{} is {}", x, back);
            }
            let again = encode_vectors(&back, DType::Int8, values.len());
            prop_assert_eq!(&again[..values.len()], &bytes[..values.len()]);
        }
    }

    #[test]
    fn int8_is_as_defined() {
        let encoded = |values: &[f32]| {
            let bytes = encode_vectors(values, DType::Int8, values.len());
            let (integers, scale) = bytes.split_at(values.len());
            let integers: Vec<i8> = integers.iter().map(|x| x.cast_signed()).collect();
            (integers, f32::from_le_bytes(scale.try_into().unwrap()))
        };
        assert_eq!(encoded(&[254.0, 1.0, 3.0, -5.0, -0.0, 2.1]), (vec![127, 0, 2, -2, 0, 1], 2.0));
        assert_eq!(encoded(&[-0.127, 0.0127]).0, [-127, 13]);
        assert_eq!(encoded(&[0.0, -0.0]), (vec![0, 0], 0.0));
        assert_eq!(encoded(&[1.0e-37, -1.0e-40]), (vec![0, 0], 0.0));
        assert_eq!(encoded(&[f32::MAX, -f32::MAX]).0, [127, -127]);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let (integers, scale) = encoded(&[1.0, bad]);
            assert!(integers == [0, 0] && scale.is_nan(), "{bad}");
            let both = encode_vectors(&[1.0, bad, 3.0, 4.0], DType::Int8, 2);
            let read = decode_vectors(&both, DType::Int8, 2);
            assert!(
                read[..2].iter().all(|x| x.is_nan()) && read[2..].iter().all(|x| x.is_finite()),
                "{read:?}"
            );
        }
    }
}
