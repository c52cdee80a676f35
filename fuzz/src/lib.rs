//! What every target does with a file that opened. `cargo +nightly fuzz run gguf` from the repository's root.

#![forbid(unsafe_code)]

use djinn_models::TensorFile;
use djinn_srg::DType;

/// Reads every tensor to its end in two types. Errors are fine; panics are what is looked for.
pub fn read_everything(file: &impl TensorFile) {
    for info in file.tensors() {
        let rows = info.shape.first().copied().unwrap_or(1);
        let elements: u64 = if rows == 0 { 0 } else { info.shape.iter().product() };
        for dtype in [DType::F32, DType::BF16] {
            let mut out = vec![0; (elements * dtype.bytes()) as usize];
            let _ = file.read_rows(&info.name, 0..rows, dtype, &mut out);
        }
    }
}
