//! The arithmetic of the CPU devices: the scalar reference, or a fast path.
//!
//! [`data`] turns spans into slices; the other modules compute with threads and vectors what
//! [`reference`] defines. Every element of a fast result comes from
//! its own row by one fixed sequence of operations, whatever the batch, the threads or the tiling: results
//! are bitwise equal between runs and batch sizes on one instruction set.

pub(crate) mod attention;
mod blocks;
mod buffer;
mod checksum;
mod choice;
pub(crate) mod data;
pub(crate) mod element;
mod gemm;
mod int8;
mod linear;
mod lossless;
mod pool;
mod routing;
mod rows;
mod simd;
mod view;

use crate::memory::Memory;
use buffer::Scratch;
use djinn_device::{Operation, Result, reference};
use int8::ByteIsa;
use pool::Pool;
use simd::Isa;
use std::sync::Mutex;
use view::View;

/// Which arithmetic a CPU device uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Math {
    /// Scalar loops that accumulate in f64, on the calling thread only: the definition of each result.
    Reference,
    /// Threads and the processor's vectors.
    #[default]
    Fast,
    /// As [`Fast`](Math::Fast), but products with weights in blocks of integers round activations to 8 bits, as llama.cpp's
    /// do: runs of 32 or 256 with one scale each.
    Int8,
}

/// The operations, on one choice of arithmetic.
pub(crate) struct Kernels {
    path: Path,
}

enum Path {
    Reference,
    Fast(Fast),
}

/// What the fast path computes with.
struct Fast {
    isa: Isa,
    /// That of products with rounded activations, where they are chosen.
    int8: Option<ByteIsa>,
    pool: Pool,
    /// Activations as `linear` packs them, kept between calls.
    packed: Mutex<Scratch>,
}

impl Kernels {
    /// Arithmetic on `threads` threads, the calling one included; 0 for as many as the machine runs at
    /// once. The reference uses one, whatever `threads` says.
    ///
    /// # Errors
    /// [`Error::Resource`](djinn_device::Error::Resource) if the system refuses a thread.
    pub(crate) fn new(math: Math, threads: usize) -> Result<Kernels> {
        let path = match math {
            Math::Reference => Path::Reference,
            Math::Fast => Path::Fast(Fast::new(Isa::detect(), threads)?),
            Math::Int8 => {
                Path::Fast(Fast { int8: Some(ByteIsa::detect()), ..Fast::new(Isa::detect(), threads)? })
            }
        };
        Ok(Kernels { path })
    }

    /// For people, e.g. `2 threads, avx512`, or `2 threads, avx512, activations int8 (avx512-vnni)`.
    pub(crate) fn name(&self) -> String {
        match &self.path {
            Path::Reference => "scalar reference, 1 thread".to_owned(),
            Path::Fast(fast) => {
                let threads = fast.pool.threads();
                let int8 =
                    fast.int8.map_or_else(String::new, |isa| format!(", activations int8 ({})", isa.name()));
                format!("{threads} thread{}, {}{int8}", if threads == 1 { "" } else { "s" }, fast.isa.name())
            }
        }
    }
}

macro_rules! run {
    ($($op:ident: $Args:ident $uses:tt,)*) => {
        impl Kernels {
            /// Carries an operation out on this thread and the pool.
            pub(crate) fn run(&self, memory: &Memory, operation: &Operation) {
                let view = View(memory);
                match (operation, &self.path) {
                    (_, Path::Reference) => {
                        for written in reference::written(operation, &view) {
                            view.output_bytes(written.span).copy_from_slice(&written.bytes);
                        }
                    }
                    $((Operation::$Args(args), Path::Fast(fast)) => fast.$op(data::$Args::new(view, args)),)*
                }
            }
        }
    };
}

djinn_device::for_each_op!(run);

impl Fast {
    fn new(isa: Isa, threads: usize) -> Result<Fast> {
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
            n => n,
        };
        Ok(Fast { isa, int8: None, pool: Pool::new(threads)?, packed: Mutex::default() })
    }
}

#[cfg(test)]
mod tests;
