//! Each instruction set that the machine has, lane by lane against plain arithmetic.

use super::{Isa, Kernel, MAX_LANES, Simd};
use half::{bf16, f16};

fn on_each(test: impl Kernel + Copy) {
    Isa::available().into_iter().for_each(|isa| isa.run(test));
}

fn lanes<S: Simd>(simd: S, v: S::V) -> Vec<f32> {
    let mut lanes = vec![0.0; S::LANES];
    simd.write(&mut lanes, v);
    lanes
}

#[test]
fn exp_is_accurate_over_its_range() {
    #[derive(Clone, Copy)]
    struct Test;
    impl Kernel for Test {
        fn run<S: Simd>(self, simd: S) {
            for i in 0..=175_000 {
                let x = (-87.0 + i as f32 * 0.001).min(88.0);
                let got = f64::from(lanes(simd, simd.exp(simd.splat(x)))[0]);
                let want = f64::from(x).exp();
                assert!((got / want - 1.0).abs() < 2e-7, "exp({x}) is {got}, not {want}");
            }
            let at = |x| lanes(simd, simd.exp(simd.splat(x)))[0];
            assert_eq!([at(0.0), at(-0.0), at(f32::NEG_INFINITY), at(-87.01)], [1.0, 1.0, 0.0, 0.0]);
            assert_eq!(at(f32::INFINITY), at(88.0));
            assert!(at(f32::NAN).is_nan());
        }
    }
    on_each(Test);
}

#[test]
fn arithmetic_is_by_lane() {
    #[derive(Clone, Copy)]
    struct Test;
    impl Kernel for Test {
        fn run<S: Simd>(self, simd: S) {
            let a: Vec<f32> = (0..MAX_LANES).map(|i| i as f32 - 3.5).collect();
            let b: Vec<f32> = (0..MAX_LANES).map(|i| 2.0 - i as f32 * 0.5).collect();
            let check = |v: S::V, want: &dyn Fn(f32, f32) -> f32| {
                let want: Vec<f32> = a.iter().zip(&b).map(|(&a, &b)| want(a, b)).collect();
                assert_eq!(lanes(simd, v), want[..S::LANES]);
            };
            let (va, vb) = (simd.read(&a), simd.read(&b));
            check(simd.add(va, vb), &|a, b| a + b);
            check(simd.sub(va, vb), &|a, b| a - b);
            check(simd.mul(va, vb), &|a, b| a * b);
            check(simd.div(va, vb), &|a, b| a / b);
            check(simd.min(va, vb), &f32::min);
            check(simd.max(va, vb), &f32::max);
            check(simd.fma(va, vb, va), &|a, b| a * b + a);
            check(simd.round(va), &|a, _| a.round_ties_even());
            check(simd.scale_by_power(va, simd.splat(-5.0)), &|a, _| a / 32.0);
            check(simd.zero_where_less(va, vb, va), &|a, b| if a < b { 0.0 } else { a });
            assert_eq!(simd.largest(va), a[S::LANES - 1]);
            let sum = |v: &[f32]| v[..S::LANES].iter().sum::<f32>();
            let want = [sum(&a), sum(&b), 0.0, S::LANES as f32];
            assert_eq!(simd.sums([va, vb, simd.splat(0.0), simd.splat(1.0)]), want);
            assert_eq!(lanes(simd, simd.read_partial(&a[..3], 7.0))[..4], [a[0], a[1], a[2], 7.0]);
        }
    }
    on_each(Test);
}

#[test]
fn loads_widen_every_value() {
    #[derive(Clone, Copy)]
    struct Test;
    impl Kernel for Test {
        #[allow(unsafe_code, reason = "loads by pointer")]
        fn run<S: Simd>(self, simd: S) {
            for first in (0..1 << 16).step_by(2 * S::LANES) {
                let halves: Vec<f16> =
                    (first..first + 2 * S::LANES).map(|i| f16::from_bits(i as u16)).collect();
                let brains: Vec<bf16> = halves.iter().map(|x| bf16::from_bits(x.to_bits())).collect();
                let same = |got: S::V, want: Vec<f32>| {
                    let got = lanes(simd, got);
                    for (got, want) in got.iter().zip(want) {
                        assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{want}");
                    }
                };
                // SAFETY: there are `2 LANES` elements, as in the loads below.
                let got = unsafe { simd.load_f16(halves.as_ptr()) };
                same(got, halves.iter().map(|x| x.to_f32()).take(S::LANES).collect());
                // SAFETY: as above.
                let got = unsafe { simd.load_bf16(brains.as_ptr()) };
                same(got, brains.iter().map(|x| x.to_f32()).take(S::LANES).collect());
                // SAFETY: as above.
                let got = unsafe { simd.load_bf16_even(brains.as_ptr()) };
                same(got, brains.iter().map(|x| x.to_f32()).step_by(2).collect());
                // SAFETY: as above.
                let got = unsafe { simd.load_bf16_odd(brains.as_ptr()) };
                same(got, brains.iter().map(|x| x.to_f32()).skip(1).step_by(2).collect());
            }
        }
    }
    on_each(Test);
}

#[test]
fn transposition() {
    #[derive(Clone, Copy)]
    struct Test;
    impl Kernel for Test {
        #[allow(unsafe_code, reason = "reads and writes by pointer")]
        fn run<S: Simd>(self, simd: S) {
            let (from_stride, to_stride) = (S::LANES + 3, S::LANES + 1);
            let from: Vec<f32> = (0..S::LANES * from_stride).map(|i| i as f32).collect();
            let mut to = vec![-1.0; S::LANES * to_stride];
            // SAFETY: both have `LANES` rows at their strides.
            unsafe { simd.transpose(from.as_ptr(), from_stride, to.as_mut_ptr(), to_stride) };
            for (i, row) in to.chunks(to_stride).enumerate() {
                let want: Vec<f32> = (0..S::LANES).map(|j| from[j * from_stride + i]).collect();
                assert_eq!(row[..S::LANES], want);
                assert_eq!(row[S::LANES], -1.0, "written past the block");
            }
        }
    }
    on_each(Test);
}
