//! The greatest element of each row.

use super::Fast;
use super::buffer::Shared;
use super::data::Argmax;

/// Elements below which a share of the rows is not worth another thread.
const LEAST_ELEMENTS: usize = 1 << 15;
/// Running maxima side by side, which the compiler keeps in vectors.
const LANES: usize = 32;

impl Fast {
    /// See [`crate::args::Argmax`].
    pub(crate) fn argmax(&self, op: Argmax<'_>) {
        let (x, width, rows) = (op.x, op.width, op.out.len());
        let share = rows.div_ceil(4 * self.pool.threads()).max(LEAST_ELEMENTS.div_ceil(width));
        let out = Shared::new(op.out);
        self.pool.run(rows.div_ceil(share), |task| {
            let first = task * share;
            // SAFETY: shares are disjoint.
            #[allow(unsafe_code, reason = "rows are written in parallel")]
            let out = unsafe { out.slice(first, share.min(rows - first)) };
            for (out, x) in out.iter_mut().zip(x[first * width..].chunks_exact(width)) {
                *out = first_greatest(x);
            }
        });
    }
}

/// Two passes: the greatest value, which is -∞ if there is none, and the first place that has it.
fn first_greatest(x: &[f32]) -> u32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = if x > *lane { x } else { *lane };
        }
    }
    let greatest = lanes
        .iter()
        .chain(rest)
        .fold(f32::NEG_INFINITY, |greatest, &x| if x > greatest { x } else { greatest });
    x.iter().position(|&x| x == greatest).unwrap_or(0) as u32
}
