//! Checks of [`Argmax`].

use super::rig::Rig;
use crate::Ops;
use crate::args::Argmax;
use crate::kernels::{data, reference};

/// `argmax` on the device.
fn argmax<D: Ops>(rig: &mut Rig<D>, x: &[f32], width: usize) -> Vec<u32> {
    let rows = x.len() / width;
    let out = rig.blank(rows * 4);
    let args = Argmax { x: rig.upload(x), out, width: width as u32, rows: rows as u32 };
    args.check();
    rig.enqueued(rig.device.argmax(rig.stream, &args));
    let got = rig.download(out);
    rig.free_all();
    got
}

/// What `argmax` should give.
fn reference(x: &[f32], width: usize) -> Vec<u32> {
    let mut want = vec![u32::MAX; x.len() / width];
    reference::argmax(data::Argmax { x, width, out: &mut want });
    want
}

pub(super) fn finds_the_greatest<D: Ops>(rig: &mut Rig<D>) {
    for (rows, width) in
        [(1, 1), (2, 3), (5, 17), (16, 1024), (33, 1000), (3, 4099), (1, 49_152), (2, 128_256)]
    {
        // Few different values leave ties at every distance.
        for values in [1, 7, usize::MAX] {
            let mut x = rig.random.floats(rows * width);
            if values < usize::MAX {
                x.iter_mut().for_each(|x| *x = (*x * values as f32).round());
            }
            let got = argmax(rig, &x, width);
            assert_eq!(got, reference(&x, width), "argmax {rows}x{width} of {values} values");
        }
    }
}

pub(super) fn skips_what_is_no_number<D: Ops>(rig: &mut Rig<D>) {
    const INF: f32 = f32::INFINITY;
    const NAN: f32 = f32::NAN;
    let rows: [([f32; 6], u32); 9] = [
        ([NAN, 1.0, NAN, 2.0, NAN, 2.0], 3),
        ([NAN, NAN, -INF, NAN, -INF, NAN], 2),
        ([NAN; 6], 0),
        ([-INF; 6], 0),
        ([-INF, -INF, -INF, -1e38, -INF, NAN], 3),
        ([1.0, INF, NAN, INF, 2.0, 3.0], 1),
        ([-0.0, 0.0, -0.0, 0.0, NAN, -1.0], 0),
        ([-3.0, -2.0, -2.0, NAN, -2.5, -INF], 1),
        ([0.0, 1e-45, 0.0, 1e-45, 0.0, 0.0], 1),
    ];
    let x: Vec<f32> = rows.iter().flat_map(|(x, _)| *x).collect();
    let want: Vec<u32> = rows.iter().map(|(_, want)| *want).collect();
    assert_eq!(reference(&x, 6), want, "the reference");
    assert_eq!(argmax(rig, &x, 6), want, "argmax of rows with NaN and infinities");
    // In a long row, far behind the NaNs.
    let mut long = vec![NAN; 40_004];
    assert_eq!(argmax(rig, &long, 40_004), [0]);
    long[30_011] = -INF;
    long[39_000] = -INF;
    assert_eq!(argmax(rig, &long, 40_004), [30_011]);
    long[40_003] = -1.0;
    assert_eq!(argmax(rig, &long, 40_004), [40_003]);
}
