//! Answers as files of safetensors.

use crate::ApiError;
use crate::request::Pairs;
use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use djinn_models::safetensors::TensorWriter;

/// Whether a query's `format` asks for a file of tensors.
///
/// # Errors
/// 400 for an unknown format.
pub(super) fn is_asked(query: &Pairs) -> Result<bool, ApiError> {
    match query.get("format").map(String::as_str) {
        None | Some("json") => Ok(false),
        Some("safetensors") => Ok(true),
        Some(_) => Err(ApiError::field("format", "`format` must be json or safetensors")),
    }
}

/// Tensors by name.
#[derive(Default)]
pub(super) struct File {
    tensors: TensorWriter,
}

impl File {
    /// See [`TensorWriter::floats`].
    pub(super) fn floats(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        self.tensors.floats(name, shape, values);
    }

    /// See [`TensorWriter::integers`].
    pub(super) fn integers(&mut self, name: &str, values: impl IntoIterator<Item = i64>) {
        self.tensors.integers(name, values);
    }

    /// The file, with texts about it.
    ///
    /// # Errors
    /// 500 for what [`TensorWriter::finish`] refuses.
    pub(super) fn response(
        self,
        about: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Result<Response<Body>, ApiError> {
        let bytes = self.tensors.finish(about).map_err(|error| ApiError::failed(error.to_string()))?;
        let mut response = Response::new(Body::from(bytes));
        let kind = HeaderValue::from_static("application/octet-stream");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        Ok(response)
    }
}
