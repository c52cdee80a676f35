//! Loading a block of keys or values from the pages.
#![allow(unsafe_code, reason = "vectors are read and written by pointer")]

use super::BLOCK;
use crate::kernels::data::KvLayout;
use crate::kernels::element::Widen;
use crate::kernels::simd::{Kernel, Simd};

/// Widens positions `hidden..count`, counted from `start`, into `to[BLOCK, width]`, zeros elsewhere; then, if `across` is
/// given, transposes that into `across[width, BLOCK]`.
pub(super) struct Load<'a, E, F> {
    pub(super) pages: &'a [E],
    pub(super) layout: KvLayout<'a>,
    /// The first element of a position's vector.
    pub(super) from: F,
    pub(super) start: usize,
    /// Leading positions that are not read.
    pub(super) hidden: usize,
    pub(super) count: usize,
    pub(super) width: usize,
    pub(super) to: &'a mut [f32],
    pub(super) across: Option<&'a mut [f32]>,
}

impl<E: Widen, F: Fn(usize) -> usize> Kernel for Load<'_, E, F> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let KvLayout { page_tokens, head_dim, .. } = self.layout;
        self.to[..self.hidden * self.width].fill(0.0);
        let mut done = self.hidden;
        while done < self.count {
            let position = self.start + done;
            let run = (self.count - done).min(page_tokens - position % page_tokens);
            let first = (self.from)(position);
            let from = &self.pages[first..][..run * head_dim];
            let scales = match E::SCALED {
                true => &self.pages[self.layout.scale(first, position)..][..run * size_of::<f32>()],
                false => &[],
            };
            let (scales, _) = bytemuck::cast_slice::<E, u8>(scales).as_chunks();
            let to = &mut self.to[done * self.width..][..run * self.width];
            for (i, (from, to)) in
                from.chunks_exact(head_dim).zip(to.chunks_exact_mut(self.width)).enumerate()
            {
                widen(simd, from, if E::SCALED { f32::from_le_bytes(scales[i]) } else { 1.0 }, to);
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

/// Widens one vector, times its scale if it has one, with zeros after it.
#[inline(always)]
fn widen<S: Simd, E: Widen>(simd: S, from: &[E], scale: f32, to: &mut [f32]) {
    let whole = from.len() / S::LANES * S::LANES;
    for i in (0..whole).step_by(S::LANES) {
        let at = from[i..i + S::LANES].as_ptr();
        // SAFETY: the slice above has `LANES` elements.
        let vector = unsafe { E::load(simd, at) };
        let vector = if E::SCALED { simd.mul(vector, simd.splat(scale)) } else { vector };
        simd.write(&mut to[i..], vector);
    }
    to[whole..].fill(0.0);
    for (to, from) in to[whole..].iter_mut().zip(&from[whole..]) {
        *to = if E::SCALED { from.widen() * scale } else { from.widen() };
    }
}
