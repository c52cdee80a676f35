//! The instruction sets for products of bytes.

use super::bytes::{ByteKernel, Integers};
#[cfg(target_arch = "x86_64")]
use super::x86::{Avx2Bytes, Avx512Vnni, AvxVnni};
use crate::kernels::simd::{Portable, Simd};

/// The instruction set in use.
#[derive(Clone, Copy)]
pub(crate) enum ByteIsa {
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni(Avx512Vnni),
    #[cfg(target_arch = "x86_64")]
    AvxVnni(AvxVnni),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2Bytes),
    Portable(Portable),
}

/// `$body` with `$integers` bound to the proof in `$isa`.
macro_rules! with_integers {
    ($isa:expr, $integers:ident => $body:expr) => {
        match $isa {
            #[cfg(target_arch = "x86_64")]
            ByteIsa::Avx512Vnni($integers) => $body,
            #[cfg(target_arch = "x86_64")]
            ByteIsa::AvxVnni($integers) => $body,
            #[cfg(target_arch = "x86_64")]
            ByteIsa::Avx2($integers) => $body,
            ByteIsa::Portable($integers) => $body,
        }
    };
}

impl ByteIsa {
    /// All that this CPU has, best first.
    pub(crate) fn available() -> Vec<ByteIsa> {
        let mut all = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(Avx512Vnni::detect().map(ByteIsa::Avx512Vnni));
            all.extend(AvxVnni::detect().map(ByteIsa::AvxVnni));
            all.extend(Avx2Bytes::detect().map(ByteIsa::Avx2));
        }
        all.push(ByteIsa::Portable(Portable));
        all
    }

    /// For people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            ByteIsa::Avx512Vnni(_) => "avx512-vnni",
            #[cfg(target_arch = "x86_64")]
            ByteIsa::AvxVnni(_) => "avx-vnni",
            #[cfg(target_arch = "x86_64")]
            ByteIsa::Avx2(_) => "avx2",
            ByteIsa::Portable(_) => "portable",
        }
    }

    /// Lanes of a vector: rows of weights that are multiplied side by side.
    pub(crate) fn lanes(self) -> usize {
        fn of<I: Integers>(_: I) -> usize {
            I::S::LANES
        }
        with_integers!(self, integers => of(integers))
    }

    /// Rows of activations of a whole register tile.
    pub(crate) fn tile_rows(self) -> usize {
        fn of<I: Integers>(_: I) -> usize {
            I::ROWS
        }
        with_integers!(self, integers => of(integers))
    }

    /// Runs a kernel with this instruction set.
    // As `Isa::run`.
    #[cfg_attr(not(debug_assertions), inline)]
    pub(crate) fn run(self, kernel: impl ByteKernel) {
        match self {
            #[cfg(target_arch = "x86_64")]
            ByteIsa::Avx512Vnni(integers) => integers.run(kernel),
            #[cfg(target_arch = "x86_64")]
            ByteIsa::AvxVnni(integers) => integers.run(kernel),
            #[cfg(target_arch = "x86_64")]
            ByteIsa::Avx2(integers) => integers.run(kernel),
            ByteIsa::Portable(integers) => kernel.run(integers),
        }
    }
}
