//! Element types of weights and caches, slices of any of them, and matrices as they are stored.
#![allow(unsafe_code, reason = "vector loads by pointer")]

use super::lossless::Lossless;
use super::simd::Simd;
use djinn_device::{BlockFormat, DType, Encoding, HostWeight};
use djinn_srg::lossless_row;
use half::{bf16, f16};

/// An element that widens to f32 exactly.
pub(crate) trait Widen: bytemuck::Pod + Send + Sync {
    /// Whether a vector of keys or values of these has a scale.
    const SCALED: bool = false;

    /// `LANES` consecutive elements.
    ///
    /// # Safety
    /// They are readable.
    unsafe fn load<S: Simd>(simd: S, from: *const Self) -> S::V;

    /// Widens.
    fn widen(self) -> f32;
}

/// f32, f16 or bf16.
pub(crate) trait Element: Widen {
    /// Whether [`load_half`](Element::load_half) takes even and odd elements instead of the first and the
    /// last `LANES`.
    const INTERLEAVED: bool;

    /// One half (the second if `SECOND`) of `2 LANES` consecutive elements.
    ///
    /// # Safety
    /// All `2 LANES` are readable.
    unsafe fn load_half<S: Simd, const SECOND: bool>(simd: S, from: *const Self) -> S::V;

    /// Rounds to nearest, ties to even.
    fn narrow(x: f32) -> Self;
}

impl Widen for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const f32) -> S::V {
        // SAFETY: the caller vouches for `LANES` elements.
        unsafe { simd.load(from) }
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

impl Element for f32 {
    const INTERLEAVED: bool = false;

    #[inline(always)]
    unsafe fn load_half<S: Simd, const SECOND: bool>(simd: S, from: *const f32) -> S::V {
        // SAFETY: the caller vouches for `2 LANES` elements.
        let at = unsafe { from.add(if SECOND { S::LANES } else { 0 }) };
        // SAFETY: as above.
        unsafe { simd.load(at) }
    }

    #[inline(always)]
    fn narrow(x: f32) -> f32 {
        x
    }
}

impl Widen for f16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const f16) -> S::V {
        // SAFETY: the caller vouches for `LANES` elements.
        unsafe { simd.load_f16(from) }
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
}

impl Element for f16 {
    const INTERLEAVED: bool = false;

    #[inline(always)]
    unsafe fn load_half<S: Simd, const SECOND: bool>(simd: S, from: *const f16) -> S::V {
        // SAFETY: the caller vouches for `2 LANES` elements.
        let at = unsafe { from.add(if SECOND { S::LANES } else { 0 }) };
        // SAFETY: as above.
        unsafe { simd.load_f16(at) }
    }

    #[inline(always)]
    fn narrow(x: f32) -> f16 {
        f16::from_f32(x)
    }
}

impl Widen for bf16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const bf16) -> S::V {
        // SAFETY: the caller vouches for `LANES` elements.
        unsafe { simd.load_bf16(from) }
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
}

impl Element for bf16 {
    // Even and odd elements of 32-bit pairs cost one instruction each; consecutive ones cost two.
    const INTERLEAVED: bool = true;

    #[inline(always)]
    unsafe fn load_half<S: Simd, const SECOND: bool>(simd: S, from: *const bf16) -> S::V {
        if SECOND {
            // SAFETY: the caller vouches for `2 LANES` elements.
            unsafe { simd.load_bf16_odd(from) }
        } else {
            // SAFETY: the caller vouches for `2 LANES` elements.
            unsafe { simd.load_bf16_even(from) }
        }
    }

    #[inline(always)]
    fn narrow(x: f32) -> bf16 {
        bf16::from_f32(x)
    }
}

/// An integer of a vector of keys or values; the scale is not part of it.
impl Widen for i8 {
    const SCALED: bool = true;

    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const i8) -> S::V {
        // SAFETY: the caller vouches for `LANES` elements.
        simd.to_float(unsafe { simd.load_i8(from.cast()) })
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self.into()
    }
}

/// A slice of elements whose type is known at run time.
#[derive(Clone, Copy)]
pub(crate) enum Elements<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    BF16(&'a [bf16]),
}

/// As [`Elements`], writable.
pub(crate) enum ElementsMut<'a> {
    F32(&'a mut [f32]),
    F16(&'a mut [f16]),
    BF16(&'a mut [bf16]),
}

/// `$body` with `$slice` bound to the slice inside `$elements`, for each type of element.
macro_rules! with_elements {
    ($enum:ident, $elements:expr, $slice:ident => $body:expr) => {
        match $elements {
            $crate::kernels::element::$enum::F32($slice) => $body,
            $crate::kernels::element::$enum::F16($slice) => $body,
            $crate::kernels::element::$enum::BF16($slice) => $body,
        }
    };
}
pub(crate) use with_elements;

/// The pages of keys and values. Those of int8 have scales among the bytes.
#[derive(Clone, Copy)]
pub(crate) enum Cache<'a> {
    Plain(Elements<'a>),
    Int8(&'a [i8]),
}

/// As [`Cache`], writable.
pub(crate) enum CacheMut<'a> {
    Plain(ElementsMut<'a>),
    Int8(&'a mut [u8]),
}

/// A matrix of weights as it is stored.
#[derive(Clone, Copy)]
pub(crate) enum Matrix<'a> {
    Plain(Elements<'a>),
    Lossless(Lossless<'a>),
    Blocks(BlockFormat, &'a [u8]),
}

impl<'a> Matrix<'a> {
    /// Bytes as a matrix of that many columns.
    ///
    /// # Panics
    /// As [`Elements::of`].
    pub(crate) fn of(HostWeight { bytes, dtype, encoding }: HostWeight<'a>, columns: u32) -> Self {
        match encoding {
            Encoding::Plain => Matrix::Plain(Elements::of(bytes, dtype)),
            Encoding::Lossless => {
                let (form, row) = lossless_row(dtype, columns.into()).expect("a device checks sizes");
                Matrix::Lossless(Lossless { form, row, bytes })
            }
            Encoding::Blocks(format) => Matrix::Blocks(format, bytes),
            other => panic!("no kernel reads {other}"),
        }
    }
}

impl<'a> Elements<'a> {
    /// Bytes as elements.
    ///
    /// # Panics
    /// If they are no aligned whole number of elements, or `dtype` is no type of weights.
    pub(crate) fn of(bytes: &'a [u8], dtype: DType) -> Self {
        match dtype {
            DType::F32 => Elements::F32(bytemuck::cast_slice(bytes)),
            DType::F16 => Elements::F16(bytemuck::cast_slice(bytes)),
            DType::BF16 => Elements::BF16(bytemuck::cast_slice(bytes)),
            DType::Int8 | DType::U32 => panic!("{dtype} is no type of weights"),
        }
    }

    /// Element `i`, widened.
    pub(crate) fn get(self, i: usize) -> f32 {
        with_elements!(Elements, self, slice => slice[i].widen())
    }

    /// All of them, widened.
    pub(crate) fn to_vec(self) -> Vec<f32> {
        with_elements!(Elements, self, slice => slice.iter().map(|x| x.widen()).collect())
    }
}
