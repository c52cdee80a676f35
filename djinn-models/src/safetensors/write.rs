//! Writes small safetensors files in memory.

use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize};
use std::error::Error as StdError;

/// Tensors by name, for a file.
#[derive(Clone, Debug, Default)]
pub struct TensorWriter {
    tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)>,
}

impl TensorWriter {
    /// Adds a tensor of f32. Its shape has as many elements as there are values.
    pub fn floats(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensors.push((name.to_owned(), Dtype::F32, shape.to_vec(), bytes));
    }

    /// Adds a row of i64.
    pub fn integers(&mut self, name: &str, values: impl IntoIterator<Item = i64>) {
        let bytes: Vec<u8> = values.into_iter().flat_map(i64::to_le_bytes).collect();
        self.tensors.push((name.to_owned(), Dtype::I64, vec![bytes.len() / 8], bytes));
    }

    /// The file, with metadata.
    ///
    /// # Errors
    /// Two tensors of one name, or a shape that does not match its values.
    pub fn finish(
        self,
        about: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Result<Vec<u8>, impl StdError + Send + Sync + 'static> {
        let about = about.into_iter().map(|(name, text)| (name.to_owned(), text)).collect();
        let views: Result<Vec<_>, safetensors::SafeTensorError> = self
            .tensors
            .iter()
            .map(|(name, dtype, shape, bytes)| Ok((name, TensorView::new(*dtype, shape.clone(), bytes)?)))
            .collect();
        views.and_then(|views| serialize(views, Some(about)))
    }
}
