//! Linear biases (Press et al. 2022): scores fall with the distance of their key. The definition is that of
//! [`Op::Attention`](djinn_srg::Op::Attention).

use half::bf16;

/// The slope of a head, rounded to bf16.
pub fn slope(head: usize, heads: usize) -> f32 {
    bf16::from_f64(exponent(head, heads).exp2()).to_f32()
}

/// The power of two that a slope is.
fn exponent(head: usize, heads: usize) -> f64 {
    let power = 1 << heads.ilog2();
    let (step, i) = if head < power { (-8.0, head + 1) } else { (-4.0, 2 * (head - power) + 1) };
    step * i as f64 / power as f64
}

/// The bias of the key at a position. The product of two numbers of 8 bits is exact before it is rounded.
#[inline]
pub fn bias(slope: f32, position: usize) -> f32 {
    let position = bf16::from_f32(position as f32).to_f32();
    bf16::from_f32(slope * position).to_f32()
}

#[cfg(test)]
mod tests {
    use super::{bf16, bias, exponent, slope};

    #[test]
    fn slopes_are_those_of_the_paper() {
        let slopes = |heads| (0..heads).map(|head| slope(head, heads)).collect::<Vec<_>>();
        assert_eq!(slopes(8), [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]);
        assert_eq!(slopes(1), [1.0 / 256.0]);
        // 2^-0.5 and 2^-1.5 have no end; bf16 keeps 8 bits.
        assert_eq!(slopes(12)[8..], [0.707_031_25, 0.353_515_63, 0.176_757_81, 0.088_378_906]);
    }

    /// Any computation of 2^x to within some units in the last place of f32 gives the same bf16: no slope of up to
    /// 2048 heads is near a tie.
    #[test]
    fn slopes_do_not_depend_on_how_they_are_computed() {
        for heads in 1..=2048 {
            for head in 0..heads {
                let exact = exponent(head, heads);
                assert_eq!(f64::from(exact as f32), exact, "the exponent is no f32");
                let (from_f64, from_f32) = (exact.exp2(), (exact as f32).exp2());
                assert_eq!(slope(head, heads), bf16::from_f32(from_f32).to_f32());
                let below = (from_f64 as f32).to_bits() & 0xffff;
                assert!(below.abs_diff(0x8000) > 32, "head {head} of {heads} is near a tie");
            }
        }
    }

    #[test]
    fn biases_are_rounded_twice() {
        assert_eq!(bias(0.5, 256), 128.0);
        // 257 is a tie between 256 and 258, 259 one between 258 and 260.
        assert_eq!([bias(0.5, 257), bias(0.5, 259)], [128.0, 130.0]);
        // 0.70703125 · 3 = 2.12109375, between the bf16 numbers 2.109375 and 2.125.
        assert_eq!(bias(0.707_031_25, 3), 2.125);
        assert_eq!(bias(0.707_031_25, 0), 0.0);
    }
}
