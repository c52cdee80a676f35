//! What the instruction sets of x86 share: a proof that the CPU has one, and [`Simd`](super::Simd) by its
//! instructions.

/// Defines a proof, and its methods as calls of functions that have the instructions enabled.
macro_rules! x86_vectors {
    (
        $(#[$doc:meta])*
        $Isa:ident: $V:ident and $I:ident of $lanes:literal lanes, $registers:literal registers,
            tiles of $vectors:literal vectors or $rows:literal rows,
            with [$($feature:tt),*] = $features:literal;
        safe { $($name:ident($($arg:ident: $type:ty),*) -> $out:ty = $call:expr;)* }
        unsafe { $($raw_name:ident($($raw_arg:ident: $raw_type:ty),*) $(-> $raw_out:ty)? = $raw_call:expr;)* }
        transpose by $transposed:ident, $zero:ident, $load:ident, $store:ident;
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $Isa(());

        impl $Isa {
            /// The proof, where it holds.
            pub(crate) fn detect() -> Option<Self> {
                let has = $(is_x86_feature_detected!($feature))&&*;
                has.then_some($Isa(()))
            }

            /// Runs `kernel` with the instructions enabled.
            pub(crate) fn run(self, kernel: impl super::Kernel) {
                #[target_feature(enable = $features)]
                fn enabled(simd: $Isa, kernel: impl super::Kernel) {
                    kernel.run(simd);
                }
                // SAFETY: `self` proves the instructions.
                unsafe { enabled(self, kernel) }
            }
        }

        impl super::Simd for $Isa {
            type V = $V;
            type I = $I;
            const LANES: usize = $lanes;
            const TILE_VECTORS: usize = $vectors;
            const TILE_ROWS: usize = $rows;
            const REGISTERS: usize = $registers;

            $(
                #[inline(always)]
                fn $name(self, $($arg: $type),*) -> $out {
                    // SAFETY: `self` proves the instructions.
                    unsafe { $call }
                }
            )*

            $(
                #[inline(always)]
                unsafe fn $raw_name(self, $($raw_arg: $raw_type),*) $(-> $raw_out)? {
                    // SAFETY: `self` proves the instructions; the caller vouches for the memory.
                    unsafe { $raw_call }
                }
            )*

            #[inline(always)]
            unsafe fn transpose(self, from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
                // SAFETY: `self` proves the instructions; the caller vouches for the memory.
                unsafe { transpose(from, from_stride, to, to_stride) }
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
            let mut rows = [$zero(); $lanes];
            for (i, row) in rows.iter_mut().enumerate() {
                // SAFETY: the caller vouches for row `i`.
                let at = unsafe { from.add(i * from_stride) };
                // SAFETY: as above, all lanes.
                *row = unsafe { $load(at) };
            }
            for (i, row) in $transposed(rows).into_iter().enumerate() {
                // SAFETY: the caller vouches for row `i`.
                let at = unsafe { to.add(i * to_stride) };
                // SAFETY: as above, all lanes.
                unsafe { $store(at, row) };
            }
        }
    };
}
pub(super) use x86_vectors;
