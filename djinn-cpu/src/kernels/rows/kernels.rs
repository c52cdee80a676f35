//! The vector loops of the row operations. Plain loops here are vectorised by the compiler with the
//! instruction set of [`Isa::run`](crate::kernels::simd::Isa::run); they treat elements one by one, so that
//! does not change results.
#![allow(unsafe_code, reason = "elements are widened by pointer")]

use crate::kernels::element::Element;
use crate::kernels::int8::{round, size};
use crate::kernels::simd::{Kernel, Simd};
use djinn_device::{GeluForm, RopeStyle};

/// Widens a row of weights.
pub(super) struct WidenRow<'a, E> {
    pub(super) from: &'a [E],
    pub(super) out: &'a mut [f32],
}

impl<E: Element> Kernel for WidenRow<'_, E> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let from = self.from.chunks_exact(S::LANES);
        for (x, out) in from.remainder().iter().zip(&mut self.out[from.len() * S::LANES..]) {
            *out = x.widen();
        }
        for (from, out) in from.zip(self.out.chunks_exact_mut(S::LANES)) {
            // SAFETY: the chunk has `LANES` elements.
            let vector = unsafe { E::load(simd, from.as_ptr()) };
            simd.write(out, vector);
        }
    }
}

/// Rounds a vector of keys or values to int8, as [`djinn_device::reference::encode_vectors`] says.
pub(super) struct RoundVector<'a> {
    pub(super) from: &'a [f32],
    pub(super) to: &'a mut [i8],
    pub(super) scale: &'a mut f32,
}

impl Kernel for RoundVector<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let largest = size(self.from);
        let scale = largest / 127.0;
        if scale.is_normal() {
            *self.scale = scale;
            round(self.from, 127.0 / largest, self.to);
        } else {
            *self.scale = if scale.is_finite() { 0.0 } else { f32::NAN };
            self.to.fill(0);
        }
    }
}

/// Normalises rows in place.
pub(super) struct NormRows<'a> {
    pub(super) x: &'a mut [f32],
    pub(super) weight: &'a [f32],
    pub(super) eps: f32,
}

impl Kernel for NormRows<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let width = self.weight.len();
        for row in self.x.chunks_exact_mut(width) {
            // Two sums, so that additions overlap.
            let mut sums = [simd.splat(0.0); 2];
            let pairs = row.chunks_exact(2 * S::LANES);
            let rest = pairs.remainder();
            for pair in pairs {
                let (first, second) = (simd.read(pair), simd.read(&pair[S::LANES..]));
                sums = [simd.fma(first, first, sums[0]), simd.fma(second, second, sums[1])];
            }
            for rest in rest.chunks(S::LANES) {
                let x = simd.read_partial(rest, 0.0);
                sums[0] = simd.fma(x, x, sums[0]);
            }
            let square = simd.sums([simd.add(sums[0], sums[1]); 4])[0];
            let scale = 1.0 / (square / width as f32 + self.eps).sqrt();
            for (x, weight) in row.iter_mut().zip(self.weight) {
                *x = *x * scale * weight;
            }
        }
    }
}

/// Centres and normalises rows in place; see [`djinn_device::args::LayerNorm`].
pub(super) struct CentreRows<'a> {
    pub(super) x: &'a mut [f32],
    pub(super) weight: &'a [f32],
    pub(super) bias: &'a [f32],
    pub(super) eps: f32,
}

impl Kernel for CentreRows<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let width = self.weight.len();
        for row in self.x.chunks_exact_mut(width) {
            let mean = deviations::<S, false>(simd, row, 0.0) / width as f32;
            let variance = deviations::<S, true>(simd, row, mean) / width as f32;
            let scale = 1.0 / (variance + self.eps).sqrt();
            for ((x, weight), bias) in row.iter_mut().zip(self.weight).zip(self.bias) {
                *x = (*x - mean) * scale * weight + bias;
            }
        }
    }
}

/// The sum of the differences to `centre`, or of their squares.
#[inline(always)]
fn deviations<S: Simd, const SQUARED: bool>(simd: S, row: &[f32], centre: f32) -> f32 {
    let splat = simd.splat(centre);
    // Two sums, so that additions overlap.
    let mut sums = [simd.splat(0.0); 2];
    let pairs = row.chunks_exact(2 * S::LANES);
    let rest = pairs.remainder();
    for pair in pairs {
        let first = simd.sub(simd.read(pair), splat);
        let second = simd.sub(simd.read(&pair[S::LANES..]), splat);
        sums = match SQUARED {
            true => [simd.fma(first, first, sums[0]), simd.fma(second, second, sums[1])],
            false => [simd.add(first, sums[0]), simd.add(second, sums[1])],
        };
    }
    for rest in rest.chunks(S::LANES) {
        let x = simd.sub(simd.read_partial(rest, centre), splat);
        sums[0] = if SQUARED { simd.fma(x, x, sums[0]) } else { simd.add(x, sums[0]) };
    }
    simd.sums([simd.add(sums[0], sums[1]); 4])[0]
}

/// Rotates rows of queries and keys in place; see [`djinn_device::args::Rope`].
pub(super) struct RotateRows<'a> {
    pub(super) x: &'a mut [f32],
    pub(super) table: &'a [f32],
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) rotary_dim: usize,
    pub(super) style: RopeStyle,
}

impl Kernel for RotateRows<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let width = (self.heads + 2 * self.kv_heads) * self.head_dim;
        let rotated = (self.heads + self.kv_heads) * self.head_dim;
        let tables = self.table.chunks_exact(self.rotary_dim);
        for (row, table) in self.x.chunks_exact_mut(width).zip(tables) {
            let (cos, sin) = table.split_at(self.rotary_dim / 2);
            for head in row[..rotated].chunks_exact_mut(self.head_dim) {
                let head = &mut head[..self.rotary_dim];
                match self.style {
                    RopeStyle::Half => {
                        let (a, b) = head.split_at_mut(self.rotary_dim / 2);
                        for (((a, b), cos), sin) in a.iter_mut().zip(b).zip(cos).zip(sin) {
                            (*a, *b) = rotate(*a, *b, *cos, *sin);
                        }
                    }
                    RopeStyle::Interleaved => {
                        for ((pair, cos), sin) in head.chunks_exact_mut(2).zip(cos).zip(sin) {
                            (pair[0], pair[1]) = rotate(pair[0], pair[1], *cos, *sin);
                        }
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn rotate(a: f32, b: f32, cos: f32, sin: f32) -> (f32, f32) {
    (a * cos - b * sin, b * cos + a * sin)
}

/// `out = silu(gate) · up`; see [`djinn_device::args::SiluMul`].
pub(super) struct SiluRows<'a> {
    pub(super) x: &'a [f32],
    pub(super) width: usize,
    pub(super) out: &'a mut [f32],
}

impl Kernel for SiluRows<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let whole = self.width / S::LANES * S::LANES;
        for (x, out) in self.x.chunks_exact(2 * self.width).zip(self.out.chunks_exact_mut(self.width)) {
            let (gate, up) = x.split_at(self.width);
            for i in (0..whole).step_by(S::LANES) {
                let value = silu_mul(simd, simd.read(&gate[i..]), simd.read(&up[i..]));
                simd.write(&mut out[i..], value);
            }
            if whole < self.width {
                let gate = simd.read_partial(&gate[whole..], 0.0);
                let value = silu_mul(simd, gate, simd.read_partial(&up[whole..], 0.0));
                simd.write_partial(&mut out[whole..], value);
            }
        }
    }
}

#[inline(always)]
fn silu_mul<S: Simd>(simd: S, gate: S::V, up: S::V) -> S::V {
    let e = simd.exp(simd.sub(simd.splat(0.0), gate));
    simd.mul(simd.div(gate, simd.add(simd.splat(1.0), e)), up)
}

/// GELU in place; see [`djinn_device::args::Gelu`].
pub(super) struct GeluRows<'a> {
    pub(super) x: &'a mut [f32],
    pub(super) form: GeluForm,
}

impl Kernel for GeluRows<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let whole = self.x.len() / S::LANES * S::LANES;
        let (vectors, rest) = self.x.split_at_mut(whole);
        for x in vectors.chunks_exact_mut(S::LANES) {
            let value = gelu(simd, simd.read(x), self.form);
            simd.write(x, value);
        }
        let value = gelu(simd, simd.read_partial(rest, 0.0), self.form);
        simd.write_partial(rest, value);
    }
}

#[inline(always)]
fn gelu<S: Simd>(simd: S, x: S::V, form: GeluForm) -> S::V {
    let zero = simd.splat(0.0);
    match form {
        // x/2 (1 + tanh(y)) is x / (1 + e^(-2y)).
        GeluForm::Tanh => {
            let cube = simd.mul(simd.mul(x, x), x);
            let y = simd.fma(simd.splat(0.044_715), cube, x);
            // -2 √(2/π).
            let e = simd.exp(simd.mul(simd.splat(-1.595_769), y));
            simd.div(x, simd.add(simd.splat(1.0), e))
        }
        // With erfc at |x|/√2, x/2 (1 + erf(x/√2)) is x erfc/2, plus x (1 - erfc) where x is positive.
        GeluForm::Erf => {
            let magnitude = simd.max(x, simd.sub(zero, x));
            let tail = erfc(simd, simd.mul(magnitude, simd.splat(std::f32::consts::FRAC_1_SQRT_2)));
            let body = simd.mul(x, simd.sub(simd.splat(1.0), tail));
            let half = simd.mul(x, simd.mul(simd.splat(0.5), tail));
            simd.add(half, simd.zero_where_less(x, zero, body))
        }
    }
}

/// The complementary error function of lanes that are not negative, within 4e-7 (Hastings 1955, as Abramowitz &
/// Stegun 7.1.26).
#[inline(always)]
fn erfc<S: Simd>(simd: S, x: S::V) -> S::V {
    let one = simd.splat(1.0);
    let t = simd.div(one, simd.fma(simd.splat(0.327_591_1), x, one));
    let mut p = simd.splat(1.061_405_4);
    for c in [-1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
        p = simd.fma(p, t, simd.splat(c));
    }
    let e = simd.exp(simd.sub(simd.splat(0.0), simd.mul(x, x)));
    simd.mul(simd.mul(p, t), e)
}

/// `out = a + b`, where `None` stands for `out`'s own elements.
pub(super) struct AddRows<'a> {
    pub(super) a: Option<&'a [f32]>,
    pub(super) b: Option<&'a [f32]>,
    pub(super) out: &'a mut [f32],
}

impl Kernel for AddRows<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        match (self.a, self.b) {
            (Some(a), Some(b)) => {
                for ((out, a), b) in self.out.iter_mut().zip(a).zip(b) {
                    *out = a + b;
                }
            }
            (Some(other), None) | (None, Some(other)) => {
                for (out, other) in self.out.iter_mut().zip(other) {
                    *out += other;
                }
            }
            (None, None) => {
                for out in self.out {
                    *out *= 2.0;
                }
            }
        }
    }
}
