//! Activations in safetensors files.

use anyhow::{Context, Result, bail};
use djinn_models::safetensors::TensorWriter;
use safetensors::{Dtype, SafeTensors};
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// The longest file that is read, in bytes.
const MAX_BYTES: u64 = 256 << 20;

/// Writes tokens' values, f32 `[tokens, width]`, to a new file: `values`, and the `token_ids`.
pub(super) fn write(file: &Path, hook: &str, from: u64, tokens: &[u32], values: &[f32]) -> Result<()> {
    let mut tensors = TensorWriter::default();
    tensors.floats("values", &[tokens.len(), values.len() / tokens.len().max(1)], values);
    tensors.integers("token_ids", tokens.iter().map(|&token| i64::from(token)));
    let to = from + tokens.len() as u64;
    let bytes =
        tensors.finish([("hook", hook.to_owned()), ("from", from.to_string()), ("to", to.to_string())])?;
    let written = File::create_new(file).and_then(|mut file| file.write_all(&bytes));
    written.with_context(|| format!("cannot write {}", file.display()))
}

/// The tensor `values` of a file, f32 and finite, whatever its shape.
pub(super) fn read(file: &Path) -> Result<Vec<f32>> {
    let bytes = djinn_models::file::read_bounded(file, MAX_BYTES)?;
    let named = || file.display().to_string();
    let tensors =
        SafeTensors::deserialize(&bytes).with_context(|| format!("{} is no file of safetensors", named()))?;
    let Ok(values) = tensors.tensor("values") else { bail!("{} has no tensor `values`", named()) };
    if values.dtype() != Dtype::F32 {
        bail!("`values` of {} is {:?}; it must be F32", named(), values.dtype());
    }
    let parts = values.data().chunks_exact(4);
    let values: Vec<f32> =
        parts.map(|part| f32::from_le_bytes([part[0], part[1], part[2], part[3]])).collect();
    match values.iter().all(|value| value.is_finite()) {
        true => Ok(values),
        false => bail!("`values` of {} has numbers that are not finite", named()),
    }
}
