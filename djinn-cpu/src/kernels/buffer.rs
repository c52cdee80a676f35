//! Scratch memory at a multiple of a cache line, and a way for tasks to write disjoint parts of a slice.
#![allow(unsafe_code, reason = "tasks of one parallel region write one slice")]

use std::marker::PhantomData;

/// A cache line of f32.
#[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// f32 at a multiple of 64 bytes, reused between calls.
#[derive(Default)]
pub(crate) struct Scratch {
    lines: Vec<Line>,
}

impl Scratch {
    /// `len` zeros.
    pub(crate) fn zeros(len: usize) -> Scratch {
        Scratch { lines: vec![Line([0.0; 16]); len.div_ceil(16)] }
    }

    /// `len` f32 of any value, allocated once for the largest `len`.
    pub(crate) fn get(&mut self, len: usize) -> &mut [f32] {
        if self.lines.len() < len.div_ceil(16) {
            *self = Scratch::zeros(len);
        }
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..len]
    }
}

/// A mutable slice that the tasks of a parallel region share, each writing its own elements.
pub(crate) struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: stands for a `&mut [T]`, whose elements are handed to one task each by `slice`'s contract;
// moving elements' ownership between threads needs `T: Send`.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Shared { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// `len` elements from `first`.
    ///
    /// # Panics
    /// If they are not within the slice.
    ///
    /// # Safety
    /// No two slices that live at once share an element.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "the caller keeps the parts disjoint")]
    pub(crate) unsafe fn slice(&self, first: usize, len: usize) -> &mut [T] {
        assert!(first <= self.len && len <= self.len - first, "{len} from {first} of {}", self.len);
        // SAFETY: the assertion above.
        let at = unsafe { self.start.add(first) };
        // SAFETY: within the borrowed slice; the caller keeps parts disjoint.
        unsafe { std::slice::from_raw_parts_mut(at, len) }
    }
}
