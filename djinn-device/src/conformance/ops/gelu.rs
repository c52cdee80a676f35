//! Checks of [`Gelu`].

use super::rig::{Rig, same_bits};
use crate::args::Gelu;
use crate::kernels::{data, reference};
use crate::{DType, Ops};

const FORMS: [crate::Gelu; 2] = [crate::Gelu::Erf, crate::Gelu::Tanh];

/// The device's result.
fn run<D: Ops>(rig: &mut Rig<D>, x: &[f32], form: crate::Gelu, in_place: bool) -> Vec<f32> {
    let x_span = rig.upload(x);
    let out = if in_place { x_span } else { rig.blank_f32(x.len()) };
    let args = Gelu { x: x_span, out, form, len: x.len() as u64 };
    args.check();
    rig.enqueued(rig.device.gelu(rig.stream, &args));
    let got = rig.download(out);
    rig.free_all();
    got
}

pub(super) fn has_two_forms<D: Ops>(rig: &mut Rig<D>) {
    for form in FORMS {
        for (i, len) in [1, 15, 16, 577, 4099, 40_000].into_iter().enumerate() {
            // From the curve's middle to far beyond where the exponential leaves f32's range.
            let spread = [1.0, 4.0, 10.0, 1000.0][i % 4];
            let x: Vec<f32> = rig.random.floats(len).iter().map(|x| x * spread).collect();
            let mut want = vec![f32::NAN; len];
            reference::gelu(data::Gelu { x: Some(&x), form, out: &mut want });
            for in_place in [false, true] {
                let got = run(rig, &x, form, in_place);
                let name = format!("gelu {form:?} of {len} up to {spread}");
                rig.compare(&name, &got, &want, DType::F32);
                // The two forms differ by up to 5e-4, and each is to be right in its tails as well.
                for ((got, want), x) in got.iter().zip(&want).zip(&x) {
                    let allowed = 1e-6 * x.abs().max(1.0);
                    assert!((got - want).abs() <= allowed, "{name}: {got:?} instead of {want:?} at {x}");
                }
            }
        }
    }
}

pub(super) fn is_batch_invariant<D: Ops>(rig: &mut Rig<D>) {
    let x: Vec<f32> = rig.random.floats(33 * 577).iter().map(|x| x * 4.0).collect();
    for form in FORMS {
        let all = run(rig, &x, form, false);
        for (first, count) in [(0, 577), (577, 1154), (32 * 577, 577)] {
            let got = run(rig, &x[first..first + count], form, false);
            same_bits(&format!("elements {first}+{count} of gelu"), &got, &all[first..first + count]);
        }
    }
}
