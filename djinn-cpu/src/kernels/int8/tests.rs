//! The rounding of scales; products are tested in `djinn-cpu/tests`.

use super::quantise::narrow;
use half::f16;

#[test]
fn numbers_are_rounded_to_f16() {
    for number in 0..0x7c00 {
        let [low, high] = [number, number + 1].map(|bits| f16::from_bits(bits).to_f32());
        let between = if high.is_finite() { low + (high - low) / 2.0 } else { 65519.0 };
        for x in [low, low.next_up(), between.next_down(), between, between.next_up()] {
            let want = f16::from_f32(x).to_f32();
            let want = if want.is_finite() { want } else { x };
            assert_eq!([narrow(x), narrow(-x)].map(f32::to_bits), [want, -want].map(f32::to_bits), "{x:e}");
        }
    }
    for x in [65519.99, 65520.0, 1e9, f32::MAX, f32::INFINITY] {
        let want = if x < 65520.0 { 65504.0 } else { x };
        assert_eq!([narrow(x), narrow(-x)], [want, -want]);
    }
    assert!(narrow(f32::NAN).is_nan());
}
