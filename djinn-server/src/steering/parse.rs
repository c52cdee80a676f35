//! Parses vectors: JSON, a safetensors file, or a GGUF file of control vectors.
//!
//! Tensors are named `direction.{layer}`, as in llama.cpp, or by a hook. The only tensor of a file may have any name
//! if the query has the hook or the layer.

use super::{Direction, Vectors};
use crate::ApiError;
use crate::body::{Fields, in_words};
use crate::debug::hooks;
use crate::sessions::check_name;
use djinn_models::gguf::Gguf;
use djinn_models::printable::one_line;
use djinn_models::safetensors::SafetensorsDir;
use djinn_models::{TensorFile, TensorInfo};
use djinn_srg::{DType, Graph, Hook};
use serde_json::{Map, Value};
use std::borrow::Cow;

/// The format of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyForm {
    Json,
    Safetensors,
    Gguf,
}

/// The format, by its first bytes. A safetensors file begins with the length of its header, then `{`.
pub(crate) fn form(body: &[u8]) -> BodyForm {
    let length = body.first_chunk().map(|length| u64::from_le_bytes(*length));
    match length {
        _ if body.starts_with(b"GGUF") => BodyForm::Gguf,
        Some(length) if body.get(8) == Some(&b'{') && length <= body.len() as u64 => BodyForm::Safetensors,
        _ => BodyForm::Json,
    }
}

/// Checks a vector's name.
pub(super) fn name(name: &str) -> Result<String, ApiError> {
    check_name(name, "name")
}

/// The vectors of a JSON body.
///
/// # Errors
/// 400 that names the field: an unknown hook or layer, or a vector of another width.
pub(super) fn json(fields: &Fields, graph: &Graph) -> Result<Vectors, ApiError> {
    let vector: Option<Vec<f32>> = fields.read("vector")?;
    let layers: Option<Map<String, Value>> = fields.read("layers")?;
    let mut directions = Vec::new();
    match (vector, layers) {
        (Some(values), None) => {
            let hook = place(fields, graph)?.ok_or_else(|| {
                ApiError::field("hook", "`hook` or `layer` must say where `vector` is added")
            })?;
            directions.push(direction(hook, values, "vector".into())?);
        }
        (None, Some(layers)) => {
            if fields.get("hook").is_some() || fields.get("layer").is_some() {
                return Err(ApiError::field(
                    "layers",
                    "`layers` says where its vectors are added; leave `hook` and `layer` out",
                ));
            }
            for (layer, values) in &layers {
                let param = format!("layers.{}", one_line(layer));
                let number = layer
                    .parse()
                    .map_err(|_| ApiError::field(param.clone(), "a layer must be a whole number"))?;
                let hook = hooks::of_layer(graph, number, param.clone())?;
                let values: Vec<f32> = serde::Deserialize::deserialize(values).map_err(|error| {
                    ApiError::field(param.clone(), format!("`{param}`: {}", in_words(&error)))
                })?;
                directions.push(direction(hook, values, param.into())?);
            }
        }
        _ => return Err(ApiError::field("vector", "give `vector` with `hook` or `layer`, or `layers`")),
    }
    vectors(directions, graph)
}

/// The hook that the fields `hook` or `layer` name.
fn place<'a>(fields: &Fields, graph: &'a Graph) -> Result<Option<&'a Hook>, ApiError> {
    let layer = match fields.get("layer") {
        None => None,
        Some(Value::String(layer)) => layer.parse().map(Some).unwrap_or(Some(u64::MAX)),
        Some(_) => fields.read::<u64>("layer")?,
    };
    match (fields.read::<String>("hook")?, layer) {
        (None, None) => Ok(None),
        (Some(hook), None) => hooks::find(graph, &hook, "hook").map(Some),
        (None, Some(layer)) => hooks::of_layer(graph, layer, "layer").map(Some),
        (Some(_), Some(_)) => Err(ApiError::field("layer", "give `hook` or `layer`, not both")),
    }
}

/// The vectors of a file of tensors; `fields` are those of the query.
///
/// # Errors
/// 400 for a file that cannot be read, and as [`json`].
pub(super) fn tensors(body: Vec<u8>, fields: &Fields, graph: &Graph) -> Result<Vectors, ApiError> {
    let unreadable = |error: djinn_models::Error| ApiError::of_text(&error, "body");
    let file: Box<dyn TensorFile> = match form(&body) {
        BodyForm::Gguf => Box::new(Gguf::from_bytes(body).map_err(unreadable)?),
        _ => Box::new(SafetensorsDir::from_bytes(body).map_err(unreadable)?),
    };
    let all: Vec<&TensorInfo> = file.tensors().collect();
    let mut directions = Vec::new();
    match (place(fields, graph)?, all.as_slice()) {
        (_, []) => return Err(ApiError::field("body", "the file has no tensor")),
        (Some(hook), [only]) => {
            directions.push(direction(hook, values(&*file, only)?, only.name.clone().into())?)
        }
        (Some(_), _) => {
            let message = format!("the file has {} tensors; only one can be added at one place", all.len());
            return Err(ApiError::field("hook", message));
        }
        (None, all) => {
            for tensor in all {
                let param = tensor.name.clone();
                let layer = tensor.name.strip_prefix("direction.").and_then(|layer| layer.parse().ok());
                let hook = match layer {
                    Some(layer) => hooks::of_layer(graph, layer, param.clone())?,
                    None => hooks::find(graph, &tensor.name, param.clone())?,
                };
                directions.push(direction(hook, values(&*file, tensor)?, param.into())?);
            }
        }
    }
    vectors(directions, graph)
}

/// The vectors of a file that names their hooks itself.
///
/// # Errors
/// As [`json`] and [`tensors`].
pub(super) fn file(bytes: Vec<u8>, graph: &Graph) -> Result<Vectors, ApiError> {
    match form(&bytes) {
        BodyForm::Json => json(&Fields::of_text(&bytes, "the file", &crate::fields::STEERING)?, graph),
        _ => tensors(bytes, &Fields::default(), graph),
    }
}

/// The values of one tensor of a file, `[tokens, width]` or `[width]`.
///
/// # Errors
/// 400 for a file that cannot be read, or has no such tensor.
pub(crate) fn one_tensor(body: Vec<u8>, name: &str, width: usize) -> Result<Vec<f32>, ApiError> {
    let file = SafetensorsDir::from_bytes(body).map_err(|error| ApiError::of_text(&error, "body"))?;
    let wrong = |why: String| ApiError::field("values", format!("the tensor `{name}` {why}"));
    let tensor = file.tensor(name).ok_or_else(|| wrong("is missing".to_owned()))?;
    if tensor.shape.last() != Some(&(width as u64)) || tensor.shape.len() > 2 {
        return Err(wrong(format!("is {:?}; it must be [tokens, {width}]", tensor.shape)));
    }
    decode(&file, tensor).map_err(wrong)
}

/// A tensor of a file.
pub(crate) struct ReadTensor {
    pub(crate) shape: Vec<u64>,
    pub(crate) values: Vec<f32>,
}

/// A file's tensor, if it has one of this name.
///
/// # Errors
/// 400 for a tensor of another type.
pub(crate) fn tensor_of(file: &dyn TensorFile, name: &'static str) -> Result<Option<ReadTensor>, ApiError> {
    let Some(tensor) = file.tensor(name) else { return Ok(None) };
    let wrong = |why: String| ApiError::field(name, format!("the tensor `{name}` {why}"));
    Ok(Some(ReadTensor { shape: tensor.shape.clone(), values: decode(file, tensor).map_err(wrong)? }))
}

fn decode(file: &dyn TensorFile, tensor: &TensorInfo) -> Result<Vec<f32>, String> {
    let count = tensor.shape.iter().product::<u64>();
    if tensor.stored.dtype().is_none() {
        return Err(format!("is {}; it must be F32, F16 or BF16", tensor.stored.name()));
    }
    // The tensor's bounds were checked against the file's length when it was opened.
    let mut bytes = vec![0; count as usize * 4];
    file.read(&tensor.name, 0..count, DType::F32, &mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect())
}

/// All values of a tensor that is one row.
fn values(file: &dyn TensorFile, tensor: &TensorInfo) -> Result<Vec<f32>, ApiError> {
    let wrong = |why: String| ApiError::field(tensor.name.clone(), format!("tensor `{}` {why}", tensor.name));
    if tensor.shape.iter().product::<u64>() != tensor.shape.last().copied().unwrap_or(0) {
        return Err(wrong(format!("is {:?}; it must be one row", tensor.shape)));
    }
    decode(file, tensor).map_err(wrong)
}

fn direction(hook: &Hook, values: Vec<f32>, param: Cow<'static, str>) -> Result<Direction, ApiError> {
    check_values(hook, &values, 1, param)?;
    Ok(Direction { hook: hook.clone(), values })
}

/// Refuses values that are not finite, or not of the hook's width: one row, or one for each of `tokens`.
///
/// # Errors
/// 400 that names `param`.
pub(crate) fn check_values(
    hook: &Hook,
    values: &[f32],
    tokens: usize,
    param: impl Into<Cow<'static, str>>,
) -> Result<(), ApiError> {
    check_rows(&hook.name, hook.columns.1 as usize, values, tokens, param)
}

/// As [`check_values`], for rows of `width` values at the hook of this name.
pub(crate) fn check_rows(
    hook: &str,
    width: usize,
    values: &[f32],
    tokens: usize,
    param: impl Into<Cow<'static, str>>,
) -> Result<(), ApiError> {
    let (param, count) = (param.into(), values.len());
    if let Some(at) = values.iter().position(|value| !value.is_finite()) {
        let message = format!("`{param}`: value {at} is {}; all must be finite", values[at]);
        return Err(ApiError::field(param, message));
    }
    if count != width && count != width * tokens {
        let each =
            if tokens == 1 { String::new() } else { format!(", or {} for {tokens} tokens", width * tokens) };
        let message = format!("`{param}` has {count} values, and `{hook}` takes {width}{each}");
        return Err(ApiError::field(param, message));
    }
    Ok(())
}

/// In order of execution, at most one at each hook point.
fn vectors(mut directions: Vec<Direction>, graph: &Graph) -> Result<Vectors, ApiError> {
    let point = |hook: &Hook| (hook.after, hook.value, hook.columns);
    directions
        .sort_by_key(|direction| graph.hooks.iter().position(|hook| point(hook) == point(&direction.hook)));
    let twice = directions.windows(2).find(|pair| point(&pair[0].hook) == point(&pair[1].hook));
    match twice {
        _ if directions.is_empty() => Err(ApiError::field("layers", "there is no vector")),
        None => Ok(Vectors::new(directions)),
        Some(pair) => {
            let message = format!("there are two vectors at `{}`", pair[0].hook.name);
            Err(ApiError::field("layers", message))
        }
    }
}
