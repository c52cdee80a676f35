//! Loading a block of keys or values from the pages.
#![allow(unsafe_code, reason = "vectors are read and written by pointer")]

use super::BLOCK;
use crate::kernels::element::Element;
use crate::kernels::simd::{Kernel, Simd};

/// Widens positions `hidden..count`, counted from `start`, into `to[BLOCK, width]`, zeros elsewhere; then, if `across` is
/// given, transposes that into `across[width, BLOCK]`.
pub(super) struct Load<'a, E, F> {
    pub(super) pages: &'a [E],
    /// The first element of a position's vector.
    pub(super) from: F,
    pub(super) start: usize,
    /// Leading positions that are not read.
    pub(super) hidden: usize,
    pub(super) count: usize,
    pub(super) page_tokens: usize,
    pub(super) dim: usize,
    pub(super) width: usize,
    pub(super) to: &'a mut [f32],
    pub(super) across: Option<&'a mut [f32]>,
}

impl<E: Element, F: Fn(usize) -> usize> Kernel for Load<'_, E, F> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        self.to[..self.hidden * self.width].fill(0.0);
        let mut done = self.hidden;
        while done < self.count {
            let position = self.start + done;
            let run = (self.count - done).min(self.page_tokens - position % self.page_tokens);
            let from = &self.pages[(self.from)(position)..][..run * self.dim];
            let to = &mut self.to[done * self.width..][..run * self.width];
            for (from, to) in from.chunks_exact(self.dim).zip(to.chunks_exact_mut(self.width)) {
                widen(simd, from, to);
            }
            done += run;
        }
        self.to[self.count * self.width..BLOCK * self.width].fill(0.0);
        if let Some(across) = self.across {
            assert!(across.len() >= self.width * BLOCK && self.to.len() >= self.width * BLOCK);
            for position in (0..BLOCK).step_by(S::LANES) {
                for column in (0..self.width).step_by(S::LANES) {
                    let from = self.to[position * self.width + column..].as_ptr();
                    let to = across[column * BLOCK + position..].as_mut_ptr();
                    // SAFETY: `BLOCK` and `width` are multiples of `LANES`, and both matrices were checked
                    // to be whole, so each square of `LANES` rows is within them.
                    unsafe { simd.transpose(from, self.width, to, BLOCK) };
                }
            }
        }
    }
}

/// Widens one vector, with zeros after it.
#[inline(always)]
fn widen<S: Simd, E: Element>(simd: S, from: &[E], to: &mut [f32]) {
    let whole = from.len() / S::LANES * S::LANES;
    for i in (0..whole).step_by(S::LANES) {
        let at = from[i..i + S::LANES].as_ptr();
        // SAFETY: the slice above has `LANES` elements.
        let vector = unsafe { E::load(simd, at) };
        simd.write(&mut to[i..], vector);
    }
    to[whole..].fill(0.0);
    for (to, from) in to[whole..].iter_mut().zip(&from[whole..]) {
        *to = from.widen();
    }
}
