//! What a device is made of, and what a card is.

use djinn_device::Encoding;

/// Encodings that the device computes from besides plain elements, if it is [made](CudaConfig::decoded_bytes) for it.
pub const ENCODINGS: &[Encoding] = &Encoding::ENCODED;

/// The most elements of a head for attention.
pub const MOST_HEAD_DIM: u32 = 256;

/// The version of CUDA that the build needs, the driver that first had it, and the package of its matrix library.
#[cfg(not(feature = "cuda-12040"))]
pub(crate) const CUDA: (u32, u32) = (13, 0);
#[cfg(not(feature = "cuda-12040"))]
pub(crate) const DRIVER: u32 = 580;
#[cfg(not(feature = "cuda-12040"))]
pub(crate) const CUBLAS: &str = "nvidia-cublas";
#[cfg(feature = "cuda-12040")]
pub(crate) const CUDA: (u32, u32) = (12, 4);
#[cfg(feature = "cuda-12040")]
pub(crate) const DRIVER: u32 = 550;
#[cfg(feature = "cuda-12040")]
pub(crate) const CUBLAS: &str = "nvidia-cublas-cu12";

/// What a [`CudaDevice`](crate::CudaDevice) is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaConfig {
    /// The card, counted as CUDA counts (after `CUDA_VISIBLE_DEVICES`).
    pub ordinal: u32,
    /// Cap on all that the process takes on the card, in bytes: driver context, code, workspaces and
    /// [`Space::Device`](djinn_device::Space::Device). Without it only the card's memory limits.
    pub vram: Option<u64>,
    /// Cap on [`Space::Host`](djinn_device::Space::Host), in bytes. `None`: no cap.
    pub ram: Option<u64>,
    /// Bytes of [`Space::Host`](djinn_device::Space::Host) that will be asked for, at most: what the driver takes
    /// on the card to map them ([`mapping_bytes`]) is set aside under the cap.
    pub pinned_bytes: u64,
    /// Bytes of device memory for activations rounded to 16 bits on the way into a matrix product, and for
    /// partial results of attention. A product whose activations are larger runs in pieces of rows.
    pub activation_bytes: u64,
    /// Bytes of device memory for rows of encoded weights as 16-bit elements, for products that do not read them as
    /// they are; 0 for a device that computes from plain elements alone. Products with more decoded bytes run in
    /// pieces of their weight's rows. See `Options::workspaces` of djinn-engine.
    pub decoded_bytes: u64,
}

impl Default for CudaConfig {
    /// The first card, no caps, 64 MiB for activations, as much for decoded weights.
    fn default() -> Self {
        let (activation_bytes, decoded_bytes) = (64 << 20, 64 << 20);
        CudaConfig { ordinal: 0, vram: None, ram: None, pinned_bytes: 0, activation_bytes, decoded_bytes }
    }
}

/// Device memory that the driver takes to map pinned host memory: 8 bytes for each 4 KiB, as seen with
/// small and with huge pages, in units of 2 MiB.
pub const fn mapping_bytes(pinned_bytes: u64) -> u64 {
    pinned_bytes.div_ceil(512).next_multiple_of(2 << 20)
}

/// What is known of a card before a device is made of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The card's name.
    pub name: String,
    /// Its memory, in bytes.
    pub total_bytes: u64,
    /// Free bytes, where the management library (NVML) tells.
    pub free_bytes: Option<u64>,
    /// Major and minor compute capability.
    pub compute_capability: (u32, u32),
    /// The CUDA version that the driver speaks, major and minor.
    pub driver_cuda: (u32, u32),
}
