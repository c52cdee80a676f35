//! Answers as files of safetensors.

use crate::ApiError;
use crate::request::Pairs;
use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize};

/// Whether a query asks for a file of tensors, with `format`.
///
/// # Errors
/// 400 for a format that there is not.
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
    tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)>,
}

impl File {
    /// A tensor of f32, whose shape has as many elements as there are values.
    pub(super) fn floats(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensors.push((name.to_owned(), Dtype::F32, shape.to_vec(), bytes));
    }

    /// A row of i64.
    pub(super) fn integers(&mut self, name: &str, values: impl IntoIterator<Item = i64>) {
        let bytes: Vec<u8> = values.into_iter().flat_map(i64::to_le_bytes).collect();
        self.tensors.push((name.to_owned(), Dtype::I64, vec![bytes.len() / 8], bytes));
    }

    /// The file, with texts about it.
    ///
    /// # Errors
    /// 500 for two tensors of one name, or a shape that is not its values'.
    pub(super) fn response(
        self,
        about: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Result<Response<Body>, ApiError> {
        let about = about.into_iter().map(|(name, text)| (name.to_owned(), text)).collect();
        let views: Result<Vec<_>, _> = self
            .tensors
            .iter()
            .map(|(name, dtype, shape, bytes)| Ok((name, TensorView::new(*dtype, shape.clone(), bytes)?)))
            .collect();
        let bytes = views.and_then(|views| serialize(views, Some(about)));
        let bytes =
            bytes.map_err(|error: safetensors::SafeTensorError| ApiError::failed(error.to_string()))?;
        let mut response = Response::new(Body::from(bytes));
        let kind = HeaderValue::from_static("application/octet-stream");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        Ok(response)
    }
}
