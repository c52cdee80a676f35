//! Checks of [`LayerNorm`].

use super::rig::{DTYPES, Rig, Stored, same_bits};
use crate::args::LayerNorm;
use crate::kernels::{data, reference};
use crate::{DType, Ops};

/// Weight and bias.
type Affine = [Stored; 2];

fn affine<D: Ops>(rig: &mut Rig<D>, width: usize, dtypes: [DType; 2]) -> Affine {
    dtypes.map(|dtype| Stored::round(&rig.random.floats(width), dtype))
}

/// The device's result.
fn run<D: Ops>(
    rig: &mut Rig<D>,
    x: &[f32],
    [weight, bias]: &Affine,
    width: usize,
    in_place: bool,
) -> Vec<f32> {
    let x_span = rig.upload(x);
    let out = if in_place { x_span } else { rig.blank_f32(x.len()) };
    let args = LayerNorm {
        x: x_span,
        weight: rig.weight(weight),
        bias: rig.weight(bias),
        out,
        eps: 1e-5,
        width: width as u32,
        rows: (x.len() / width) as u32,
    };
    args.check();
    rig.enqueued(rig.device.layer_norm(rig.stream, &args));
    let got = rig.download(out);
    rig.free_all();
    got
}

/// Rows far from zero, whose variance would cancel in a mean of squares; all pairs of types.
pub(super) fn centres_and_normalises<D: Ops>(rig: &mut Rig<D>) {
    let widths = [1, 16, 17, 33, 100, 576, 577, 4544, 9001, 14_848];
    for (i, width) in widths.into_iter().enumerate() {
        for weight in DTYPES {
            for bias in DTYPES {
                let rows = [1, 2, 5, 33][i % 4];
                let far = [0.0, 3.0, -40.0][i % 3];
                let x: Vec<f32> = rig.random.floats(rows * width).iter().map(|x| x + far).collect();
                let affine = affine(rig, width, [weight, bias]);
                let mut want = vec![f32::NAN; x.len()];
                let [elements, offsets] = [affine[0].elements(), affine[1].elements()];
                let (x_rows, eps) = (Some(&x[..]), 1e-5);
                let op = data::LayerNorm {
                    x: x_rows,
                    weight: elements,
                    bias: offsets,
                    eps,
                    width,
                    out: &mut want,
                };
                reference::layer_norm(op);
                let name = format!("layer_norm {rows}x{width} {} + {}", weight.name(), bias.name());
                for in_place in [false, true] {
                    let got = run(rig, &x, &affine, width, in_place);
                    rig.compare(&name, &got, &want, weight);
                }
            }
        }
    }
}

pub(super) fn is_batch_invariant<D: Ops>(rig: &mut Rig<D>) {
    for width in [577, 4544] {
        let x = rig.random.floats(33 * width);
        let affine = affine(rig, width, [DType::BF16, DType::F32]);
        let all = run(rig, &x, &affine, width, false);
        for (first, count) in [(0, 1), (32, 1), (4, 2), (11, 5), (3, 16), (17, 16)] {
            let part = first * width..(first + count) * width;
            let got = run(rig, &x[part.clone()], &affine, width, false);
            same_bits(&format!("rows {first}+{count} of layer_norm {width}"), &got, &all[part]);
        }
    }
}
