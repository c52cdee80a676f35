//! Spans of memory as slices, for one operation.
#![allow(unsafe_code, reason = "slices of shared memory")]

use super::element::{Cache, CacheMut, Elements, ElementsMut, Matrix};
use crate::memory::Memory;
use djinn_device::reference::Contents;
use djinn_device::{DType, HostWeight, Span, args};

/// Memory during one operation, which is the only user of the bytes that it writes, and whose inputs nothing
/// writes meanwhile: the device runs an operation only after all that its stream and events put before it.
#[derive(Clone, Copy)]
pub(super) struct View<'a>(pub(super) &'a Memory);

impl Contents for View<'_> {
    fn bytes(&self, span: Span) -> &[u8] {
        // SAFETY: an input of the operation, see `View`; the reference keeps no slice when it has given what to write.
        unsafe { self.0.slice(span) }
    }
}

impl<'a> View<'a> {
    pub(super) fn floats(&self, span: Span) -> &'a [f32] {
        // SAFETY: an input of the operation, see `View`.
        unsafe { self.0.slice(span) }
    }

    pub(super) fn indices(&self, span: Span) -> &'a [u32] {
        // SAFETY: an input of the operation, see `View`.
        unsafe { self.0.slice(span) }
    }

    pub(super) fn bytes(&self, span: Span) -> &'a [u8] {
        // SAFETY: an input of the operation, see `View`.
        unsafe { self.0.slice(span) }
    }

    pub(super) fn output(&self, span: Span) -> &'a mut [f32] {
        // SAFETY: an output of the operation, see `View`; taken once, and inputs that lie in it are not
        // taken.
        unsafe { self.0.slice_mut(span) }
    }

    pub(super) fn output_indices(&self, span: Span) -> &'a mut [u32] {
        // SAFETY: an output of the operation, see `View`; taken once.
        unsafe { self.0.slice_mut(span) }
    }

    pub(super) fn output_bytes(&self, span: Span) -> &'a mut [u8] {
        // SAFETY: the output of the operation, see `View`; taken once.
        unsafe { self.0.slice_mut(span) }
    }

    pub(super) fn elements(&self, span: Span, dtype: DType) -> Elements<'a> {
        Elements::of(self.bytes(span), dtype)
    }

    /// Keys and values.
    pub(super) fn cache(&self, span: Span, dtype: DType) -> Cache<'a> {
        match dtype {
            // SAFETY: an input of the operation, see `View`.
            DType::Int8 => Cache::Int8(unsafe { self.0.slice(span) }),
            _ => Cache::Plain(self.elements(span, dtype)),
        }
    }

    /// Keys and values, to be written.
    pub(super) fn cache_mut(&self, span: Span, dtype: DType) -> CacheMut<'a> {
        CacheMut::Plain(match dtype {
            DType::F32 => ElementsMut::F32(self.output(span)),
            // SAFETY: the output of the operation, see `View`.
            DType::F16 => ElementsMut::F16(unsafe { self.0.slice_mut(span) }),
            // SAFETY: the output of the operation, see `View`.
            DType::BF16 => ElementsMut::BF16(unsafe { self.0.slice_mut(span) }),
            DType::Int8 => return CacheMut::Int8(self.output_bytes(span)),
            DType::U32 => panic!("{dtype} is no type of keys and values"),
        })
    }

    pub(super) fn weight(&self, weight: args::Weight) -> Elements<'a> {
        self.elements(weight.span, weight.dtype)
    }

    /// A matrix of that many columns.
    pub(super) fn matrix(
        &self,
        args::Weight { span, dtype, encoding }: args::Weight,
        columns: u32,
    ) -> Matrix<'a> {
        Matrix::of(HostWeight { bytes: self.bytes(span), dtype, encoding }, columns)
    }

    /// The input, unless it is the output's own memory.
    pub(super) fn unless_output(&self, input: Span, output: Span) -> Option<&'a [f32]> {
        (input != output).then(|| self.floats(input))
    }
}
