//! Raw FFI of Djinn's CUDA kernels.
//!
//! The launchers of `kernels/*.cu` are declared once, in `kernels/djinn.h`; the bindings here were made from it
//! by bindgen (`scripts/bindgen.sh`) and are committed. Under the feature `cuda` or `cuda-12040` the kernels are
//! compiled and linked; without them only the types are there, and calling a launcher does not link.
#![doc = include_str!("../README.md")]

#[allow(
    unsafe_code,
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    unreachable_pub,
    clippy::all,
    reason = "generated from kernels/djinn.h, which documents it"
)]
mod bindings;

pub use bindings::*;

#[cfg(test)]
mod tests;
