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
mod cpu_ops;
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

use crate::CpuConfig;
use crate::memory::Memory;
use buffer::Scratch;
pub use cpu_ops::CpuKernels;
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
    /// Threads and the CPU's vectors.
    #[default]
    Fast,
    /// As [`Fast`](Math::Fast), but products with weights in blocks of integers round activations to 8 bits, as llama.cpp's
    /// do: runs of 32 or 256 with one scale each.
    Int8,
}

impl Math {
    /// The names of the instruction sets of this CPU that this arithmetic can use, best first; none for the
    /// reference.
    pub fn instruction_sets(self) -> Vec<&'static str> {
        match self {
            Math::Reference => Vec::new(),
            Math::Fast => Isa::available().into_iter().map(Isa::name).collect(),
            Math::Int8 => ByteIsa::available().into_iter().map(ByteIsa::name).collect(),
        }
    }
}

/// How operations are computed. Behind a pointer, so that what only uses the reference is compiled without the rest.
pub(crate) trait Arithmetic: Send + Sync {
    /// Carries an operation out, on this thread and others.
    fn run(&self, memory: &Memory, operation: &Operation);

    /// For people, e.g. `2 threads, avx512`, or `2 threads, avx512, activations int8 (avx512-vnni)`.
    fn name(&self) -> String;
}

/// The operations, on one choice of arithmetic.
pub(crate) type Kernels = Box<dyn Arithmetic>;

/// The arithmetic that `config` names. The reference uses one thread, whatever `threads` says.
///
/// # Errors
/// [`Error::Resource`](djinn_device::Error::Resource) if the system refuses a thread.
///
/// # Panics
/// If the CPU has no such instruction set.
pub(crate) fn kernels(config: &CpuConfig) -> Result<Kernels> {
    let CpuConfig { math, threads, instructions, .. } = *config;
    let sets = math.instruction_sets();
    let chosen = instructions.map(|name| {
        let place = sets.iter().position(|&set| set == name);
        place.unwrap_or_else(|| panic!("{math:?} has the instruction sets {sets:?}, not {name}"))
    });
    let chosen = chosen.unwrap_or(0);
    Ok(match math {
        Math::Reference => Box::new(Reference),
        Math::Fast => Box::new(Fast::new(Isa::available()[chosen], threads)?),
        Math::Int8 => {
            let int8 = Some(ByteIsa::available()[chosen]);
            Box::new(Fast { int8, ..Fast::new(Isa::detect(), threads)? })
        }
    })
}

/// [`Math::Reference`].
pub(crate) struct Reference;

impl Arithmetic for Reference {
    fn run(&self, memory: &Memory, operation: &Operation) {
        let view = View(memory);
        for written in reference::written(operation, &view) {
            view.output_bytes(written.span).copy_from_slice(&written.bytes);
        }
    }

    fn name(&self) -> String {
        "scalar reference, 1 thread".to_owned()
    }
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

macro_rules! fast {
    ($($op:ident: $Args:ident $uses:tt,)*) => {
        impl Arithmetic for Fast {
            fn run(&self, memory: &Memory, operation: &Operation) {
                match operation {
                    $(Operation::$Args(args) => self.$op(data::$Args::new(View(memory), args)),)*
                }
            }

            fn name(&self) -> String {
                let int8 =
                    self.int8.map_or_else(String::new, |isa| format!(", activations int8 ({})", isa.name()));
                format!("{}{int8}", self.threads_and_vectors())
            }
        }
    };
}

djinn_device::for_each_op!(fast);

/// Threads that the machine runs at once.
fn threads_at_once() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

impl Fast {
    /// On `threads` threads, the calling one included; 0 for as many as the machine runs at once.
    fn new(isa: Isa, threads: usize) -> Result<Fast> {
        let threads = if threads == 0 { threads_at_once() } else { threads };
        Ok(Fast { isa, int8: None, pool: Pool::new(threads)?, packed: Mutex::default() })
    }

    /// For people, e.g. `2 threads, avx512`.
    fn threads_and_vectors(&self) -> String {
        let threads = self.pool.threads();
        format!("{threads} thread{}, {}", if threads == 1 { "" } else { "s" }, self.isa.name())
    }
}

#[cfg(test)]
mod tests;
