//! Tensors in answers: as files of safetensors, and as lists of JSON.

use crate::ApiError;
use crate::reply::{self, Answered};
use crate::request::Pairs;
use djinn_models::safetensors::TensorWriter;
use serde::{Serialize, Serializer};
use serde_json::Value;

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

/// The tensors as a file, with texts about it.
///
/// # Errors
/// 500 for what [`TensorWriter::finish`] refuses.
pub(super) fn file(
    tensors: TensorWriter,
    about: impl IntoIterator<Item = (&'static str, String)>,
) -> Answered {
    let bytes = tensors.finish(about).map_err(|error| ApiError::failed(error.to_string()))?;
    Ok(reply::of_type("application/octet-stream", bytes))
}

/// Row-major numbers as nested lists of JSON. They are written as they stand: a tree of them would take twenty times their
/// bytes.
pub(super) struct Lists<'a> {
    values: &'a [f32],
    shape: &'a [usize],
}

impl<'a> Lists<'a> {
    /// Of f32 `shape`.
    pub(super) fn new(values: &'a [f32], shape: &'a [usize]) -> Self {
        Lists { values, shape }
    }
}

impl Serialize for Lists<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.shape {
            [] | [_] => serializer.collect_seq(self.values),
            [_, inner @ ..] => {
                let rows = self.values.chunks_exact(inner.iter().product::<usize>().max(1));
                serializer.collect_seq(rows.map(|row| Lists::new(row, inner)))
            }
        }
    }
}

/// An object of JSON: what is said of tensors, and their numbers by name.
#[derive(Serialize)]
pub(super) struct WithLists<'a, const N: usize> {
    #[serde(flatten)]
    pub(super) about: Value,
    #[serde(flatten, serialize_with = "by_name")]
    pub(super) lists: [(&'static str, Lists<'a>); N],
}

fn by_name<S: Serializer>(lists: &[(&'static str, Lists<'_>)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(lists.iter().map(|(name, list)| (name, list)))
}
