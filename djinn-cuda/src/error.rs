//! What can go wrong when a CUDA device is made or used.

use crate::config::{CUBLAS, CUDA, DRIVER};

/// A failure, told in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each message says what its fields are")]
pub enum Error {
    /// The feature `cuda` was off.
    #[error("this build has no CUDA support; build with --features cuda, or use `device` cpu")]
    NotBuilt,
    /// The driver's library is not on this machine.
    #[error(
        "no CUDA driver: libcuda.so.1 was not found; install the NVIDIA driver (version {DRIVER} or later), or use \
         `device` cpu"
    )]
    NoDriver,
    /// The driver is older than the build needs.
    #[error(
        "the NVIDIA driver speaks CUDA {}.{}, but this build needs {}.{}; update the driver to version {DRIVER} or later",
        found.0, found.1, CUDA.0, CUDA.1
    )]
    DriverTooOld {
        /// Major and minor version.
        found: (u32, u32),
    },
    /// The matrix library is not on this machine.
    #[error(
        "libcublasLt.so.{0} was not found; install CUDA {0}'s cuBLAS (`pip install {CUBLAS}` will do) and set \
         LD_LIBRARY_PATH to its folder", CUDA.0
    )]
    NoCublas,
    /// There is no such card.
    #[error(
        "there is no CUDA device {ordinal}: {count} are visible; see `nvidia-smi` and CUDA_VISIBLE_DEVICES"
    )]
    NoSuchDevice { ordinal: u32, count: u32 },
    /// The cap leaves nothing to allocate.
    #[error(
        "`vram` of {vram_bytes} bytes is too small: the CUDA context, code and workspaces alone take \
         {needed_bytes} bytes"
    )]
    CapTooSmall { vram_bytes: u64, needed_bytes: u64 },
    /// Others hold the card's memory.
    #[error(
        "the card has {free_bytes} bytes free, but {requested_bytes} are needed to fill `vram`; lower `vram`, or \
         stop other processes on the card"
    )]
    CardFull {
        /// Bytes asked for.
        requested_bytes: u64,
        /// Bytes free.
        free_bytes: u64,
    },
    /// A call into the driver failed.
    #[error("{call} failed: {name} ({code}): {text}")]
    Driver {
        call: &'static str,
        /// `CUresult`.
        code: i32,
        name: String,
        text: String,
    },
    /// A kernel could not be launched.
    #[error("launching {kernel} failed: {text} (CUDA error {code})")]
    Launch {
        kernel: &'static str,
        /// `cudaError_t`.
        code: i32,
        text: String,
    },
    /// The build has code for other cards only.
    #[error(
        "this build has no code for the card; build with the card's compute capability in DJINN_CUDA_ARCHS, as in \
         DJINN_CUDA_ARCHS=80"
    )]
    NoCode,
    /// The kernels do not run on this card.
    #[error("the kernels do not run on this card: {reason}")]
    WarmUp { reason: String },
    /// There is no room for what captured work takes.
    #[error("no room for {kernels} kernels beside the {others} of other captures")]
    CaptureTooLarge { kernels: u64, others: u64 },
    /// A call into cuBLASLt failed.
    #[error("{call} failed: {status}")]
    Cublas {
        call: &'static str,
        /// `cublasStatus_t`, by name.
        status: String,
    },
}

impl Error {
    /// Whether the process's context of the card is at fault, and not what the machine is or has: after an illegal
    /// access, for one, the driver refuses all further work of the process.
    pub fn is_of_context(&self) -> bool {
        /// `CUDA_ERROR_OUT_OF_MEMORY`.
        const OUT_OF_MEMORY: i32 = 2;
        match self {
            Error::Driver { code, .. } => *code != OUT_OF_MEMORY,
            Error::Launch { .. } | Error::WarmUp { .. } | Error::Cublas { .. } => true,
            _ => false,
        }
    }

    /// As the failure of a working device. Sticky.
    #[cfg(feature = "device")]
    pub(crate) fn lost(&self) -> djinn_device::Error {
        djinn_device::Error::DeviceLost { reason: self.to_string() }
    }

    /// As the refusal of a resource.
    #[cfg(feature = "device")]
    pub(crate) fn refused(&self, what: &'static str) -> djinn_device::Error {
        djinn_device::Error::Resource { what, reason: self.to_string() }
    }
}

impl From<Error> for djinn_device::Error {
    /// For callers that speak every device's error: making the device was refused.
    fn from(error: Error) -> Self {
        djinn_device::Error::Resource { what: "the CUDA device", reason: error.to_string() }
    }
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
