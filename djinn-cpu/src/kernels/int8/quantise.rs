//! Activations rounded to 8 bits.

use super::GROUP;
use super::bytes::{ByteKernel, Integers};
use super::formats::off;
use crate::kernels::blocks::{GROUP_RUNS, RUN};
use djinn_device::BlockFormat;

/// Rounded activations of one row: up to 256 neighbours in runs of 32.
#[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C)]
pub(super) struct Group {
    /// The integers, from -127 to 127: four in a word, in little-endian order.
    pub(super) words: [[u32; RUN / 4]; GROUP_RUNS],
    /// What one stands for, by run.
    pub(super) scale: [f32; GROUP_RUNS],
    /// By halves of runs, what [`Sums`] says.
    pub(super) sums: [[u32; 2]; GROUP_RUNS],
    /// To a whole number of cache lines.
    unused: [u32; 8],
}

/// What a group knows of the sum of its integers, which is what a format's products need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sums {
    /// Of each half of a run, or in the first of both: times what is taken off each weight, negative, as an integer.
    Off { less: i32, halves: bool },
    /// The same, times the scale before that is rounded, itself rounded as the scale is: an f32.
    Scaled { halves: bool },
}

/// Rounds one group. What is not a number, or infinite, makes the scale of its run so.
pub(super) struct Quantise<'a> {
    /// Of the weights that it is for.
    pub(super) format: BlockFormat,
    /// At most 256, whole runs.
    pub(super) from: &'a [f32],
    pub(super) to: &'a mut Group,
}

impl ByteKernel for Quantise<'_> {
    #[inline(always)]
    fn run<I: Integers>(self, _: I) {
        let Quantise { format, from, to } = self;
        let (from, _) = from.as_chunks::<RUN>();
        let sums = off(format);
        let mut largest = [0.0; GROUP_RUNS];
        for (largest, run) in largest.iter_mut().zip(from) {
            *largest = size(run);
        }
        // As Q8_K of ggml has one f32 for 256 elements, and Q8_0 and Q8_1 an f16 for 32.
        let one_scale = format.elements() as usize == GROUP;
        if one_scale {
            largest = [f32::from_bits(largest.iter().fold(0, |a, x| a.max(x.to_bits()))); GROUP_RUNS];
        }
        for (i, (run, largest)) in from.iter().zip(largest).enumerate() {
            to.scale[i] = largest / 127.0;
            let mut integers = [0; RUN];
            round(run, if largest == 0.0 { 0.0 } else { 127.0 / largest }, &mut integers);
            to.words[i] = bytemuck::cast(integers);
            let (first, second) = integers.split_at(RUN / 2);
            let [first, second] = [first, second].map(|half| half.iter().map(|&q| i32::from(q)).sum::<i32>());
            let parts = match sums {
                Sums::Off { halves: true, .. } | Sums::Scaled { halves: true } => [first, second],
                Sums::Off { .. } | Sums::Scaled { .. } => [first + second, 0],
            };
            to.sums[i] = parts.map(|sum| match sums {
                Sums::Off { less, .. } => (-less * sum).cast_unsigned(),
                Sums::Scaled { .. } => (to.scale[i] * sum as f32).to_bits(),
            });
        }
        if !one_scale {
            for scale in &mut to.scale {
                *scale = narrow(*scale);
            }
            if matches!(sums, Sums::Scaled { .. }) {
                for sum in to.sums.as_flattened_mut() {
                    *sum = narrow(f32::from_bits(*sum)).to_bits();
                }
            }
        }
    }
}

/// The nearest f16, ties to even. Numbers that are none, because they are larger, stay.
#[inline(always)]
pub(super) fn narrow(x: f32) -> f32 {
    // A sum with 2^13 times the power of two below has no bits below the last of an f16, or of its subnormals.
    const LEAST_NORMAL: u32 = 0x3880_0000;
    let power = (x.abs().to_bits() & 0x7f80_0000).max(LEAST_NORMAL);
    let large = f32::from_bits(power.wrapping_add(13 << 23));
    let narrow = (x.abs() + large) - large;
    if narrow <= 65504.0 { narrow.copysign(x) } else { x }
}

/// The largest size of the numbers; NaN if one is.
#[inline(always)]
pub(crate) fn size(run: &[f32]) -> f32 {
    // Sizes are in the order of their bits, NaN last.
    f32::from_bits(run.iter().fold(0, |largest, x| largest.max(x.abs().to_bits())))
}

/// Each number times `by`, which is at most 127 in size, to the nearest integer, ties to even.
#[inline(always)]
pub(crate) fn round(run: &[f32], by: f32, out: &mut [i8]) {
    // 1.5 · 2^23: a sum of that size has no bits after the point, and its low byte is the integer's.
    const SHIFT: f32 = 12_582_912.0;
    for (out, x) in out.iter_mut().zip(run) {
        *out = (x * by + SHIFT).to_bits() as i8;
    }
}
