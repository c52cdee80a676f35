//! Activations in files of safetensors.

use anyhow::{Context, Result, bail};
use safetensors::tensor::{TensorView, serialize};
use safetensors::{Dtype, SafeTensors};
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// The longest file that is read, in bytes.
const MAX_BYTES: u64 = 256 << 20;

/// Writes tokens' values, f32 `[tokens, width]`, to a new file: `values`, and `token_ids` beside them.
pub(super) fn write(file: &Path, hook: &str, from: u64, tokens: &[u32], values: &[f32]) -> Result<()> {
    let shape = vec![tokens.len(), values.len() / tokens.len().max(1)];
    let values: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let ids: Vec<u8> = tokens.iter().flat_map(|&token| i64::from(token).to_le_bytes()).collect();
    let views = [
        ("values", TensorView::new(Dtype::F32, shape, &values)?),
        ("token_ids", TensorView::new(Dtype::I64, vec![tokens.len()], &ids)?),
    ];
    let about = [
        ("hook", hook.to_owned()),
        ("from", from.to_string()),
        ("to", (from + tokens.len() as u64).to_string()),
    ];
    let about: HashMap<String, String> =
        about.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let bytes = serialize(views, Some(about))?;
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
