//! `/v1/sessions/{id}/kv/{layer}`: reads and changes keys and values of a paused session.

use super::engine::{edit_cache, look, paused_at};
use super::tensors::{Lists, WithLists};
use super::{not_paused, tensors};
use crate::ApiError;
use crate::body::{Fields, Part, in_words};
use crate::fields::CACHE;
use crate::reply::{self, Answered};
use crate::request::Pairs;
use crate::server::ApiRequest;
use crate::sessions::Named;
use crate::steering::{BodyForm, ReadTensor, body_form, tensor_of};
use axum::extract::Path;
use djinn_engine::debug::{KvEdit, KvHalf, KvOp, KvRange, KvValues, Look};
use djinn_models::printable::one_line;
use djinn_models::safetensors::{SafetensorsDir, TensorWriter};
use djinn_srg::{Dim, Graph, Op};
use serde::Deserialize;
use serde_json::{Value, json};
use std::ops::Range;

#[derive(Clone, Copy)]
struct Layer {
    number: u32,
    kv_heads: usize,
    head_dim: usize,
}

impl Layer {
    fn find(graph: &Graph, layer: &str) -> Result<Self, ApiError> {
        let number: Option<u32> = layer.parse().ok();
        let writes = |node: &&djinn_srg::Node| {
            node.layer.is_some() && node.layer == number && matches!(node.op, Op::KvWrite { .. })
        };
        let cache = graph.nodes.iter().find(writes).map(|node| graph.value(node.outputs[0]));
        match (number, cache.map(|cache| cache.shape.as_slice())) {
            (Some(number), Some(&[_, Dim::Fixed(kv_heads), Dim::Fixed(head_dim)])) => {
                Ok(Layer { number, kv_heads: kv_heads as usize, head_dim: head_dim as usize })
            }
            _ => {
                let last = graph.nodes.iter().filter_map(|node| node.layer).max().unwrap_or(0);
                let message = format!("the model has no layer `{}`; give 0 to {last}", one_line(layer));
                Err(ApiError::field("layer", message))
            }
        }
    }

    fn width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

/// Positions from a query or a part of the body. By default all below `end`.
fn within(from: Option<u64>, to: Option<u64>, end: u64, param: &'static str) -> Result<Range<u64>, ApiError> {
    let positions = from.unwrap_or(0)..to.unwrap_or(end);
    if positions.is_empty() || positions.end > end {
        let Range { start, end: to } = positions;
        let message = format!("there are keys and values from 0 to {end}, not from {start} to {to}");
        return Err(ApiError::field(param, message));
    }
    Ok(positions)
}

fn number(query: &Pairs, name: &'static str) -> Result<Option<u64>, ApiError> {
    let Some(text) = query.get(name) else { return Ok(None) };
    let number =
        text.parse().map_err(|_| ApiError::field(name, format!("`{name}` must be a whole number")))?;
    Ok(Some(number))
}

/// Answers `GET /v1/sessions/{id}/kv/{layer}`.
pub(crate) async fn read(named: Named, Path((_, layer)): Path<(String, String)>, query: Pairs) -> Answered {
    let as_tensors = tensors::is_asked(&query)?;
    let graph = named.model.graph();
    let layer = Layer::find(graph, &layer)?;
    let at = paused_at(named.engine()?, graph).await?;
    let positions = within(number(&query, "from")?, number(&query, "to")?, at.positions.end, "to")?;
    let range = KvRange { layer: layer.number, positions: positions.clone() };
    let looked = look(named.engine()?, graph, Look { caches: vec![range], ..Look::default() }).await?;
    let KvValues { keys, values, .. } = looked.caches.into_iter().next().ok_or_else(not_paused)?;
    named.touch();
    let body = move || {
        let shape = [keys.len() / layer.width(), layer.kv_heads, layer.head_dim];
        if as_tensors {
            let of =
                [positions.start, positions.end, u64::from(layer.number)].map(|number| number.to_string());
            let [from, to, number] = of;
            let mut file = TensorWriter::default();
            file.floats("keys", &shape, &keys);
            file.floats("values", &shape, &values);
            return tensors::file(file, [("layer", number), ("from", from), ("to", to)]);
        }
        let about = json!({
            "object": "kv",
            "layer": layer.number,
            "positions": { "from": positions.start, "to": positions.end },
            "shape": shape,
            "dtype": "float32",
        });
        let lists = [("keys", Lists::new(&keys, &shape)), ("values", Lists::new(&values, &shape))];
        reply::ok(&WithLists { about, lists })
    };
    named.model.work(move |_| body()).await
}

/// Answers `POST /v1/sessions/{id}/kv/{layer}`.
pub(crate) async fn write(
    Path((id, layer)): Path<(String, String)>,
    query: Pairs,
    request: ApiRequest,
) -> Answered {
    let named = Named::find(&request.server, request.salt(), &id, &query)?;
    let graph = named.model.graph();
    let layer = Layer::find(graph, &layer)?;
    let end = paused_at(named.engine()?, graph).await?.positions.start;
    if end == 0 {
        let message =
            "no token is before the paused ones; change those by `attn.k.hook_out` and `attn.v.hook_out`";
        return Err(ApiError::field("positions", message));
    }
    let edits = named.model.work(move |_| match body_form(&request.body) {
        BodyForm::Json => Ok(vec![from_json(&request.fields(&CACHE)?.only_of(&CACHE)?, layer, end)?]),
        _ => from_file(request.body.to_vec(), &query, layer, end),
    });
    let edits = edits.await?;
    let positions = edits[0].range.positions.clone();
    for edit in edits {
        edit_cache(named.engine()?, graph, edit).await?;
    }
    named.touch();
    let body = json!({
        "object": "kv.edit",
        "layer": layer.number,
        "positions": { "from": positions.start, "to": positions.end },
        "tokens": positions.end - positions.start,
    });
    reply::ok(&body)
}

/// Refuses numbers that are not finite, and any number of rows but one, or one for each token.
fn check(values: &[f32], layer: Layer, tokens: usize, param: &'static str) -> Result<(), ApiError> {
    if !values.iter().all(|x| x.is_finite()) {
        return Err(ApiError::field(param, format!("`{param}` has numbers that are not finite")));
    }
    if values.len() == layer.width() || values.len() == tokens * layer.width() {
        return Ok(());
    }
    let Layer { kv_heads, head_dim, .. } = layer;
    let message = format!(
        "`{param}` has {} values, and takes [{tokens}, {kv_heads}, {head_dim}], or one row of {}",
        values.len(),
        layer.width()
    );
    Err(ApiError::field(param, message))
}

fn from_json(fields: &Fields, layer: Layer, end: u64) -> Result<KvEdit, ApiError> {
    let half = match fields.read::<String>("part")?.as_deref() {
        Some("keys") => KvHalf::Keys,
        Some("values") => KvHalf::Values,
        _ => return Err(ApiError::field("part", "`part` must be keys or values")),
    };
    let part = Part::of(fields, "positions")?;
    part.only(&["from", "to"])?;
    let positions = within(part.read("from")?, part.read("to")?, end, "positions")?;
    let tokens = (positions.end - positions.start) as usize;
    let op = fields.read::<String>("op")?;
    // A row for each of the tokens, or one for all.
    let values = |tokens: usize| {
        let wrong = |why: &dyn std::fmt::Display| ApiError::field("values", format!("`values`: {why}"));
        let all = match fields.get("values").ok_or_else(|| wrong(&"it is missing"))? {
            Value::Array(rows) if rows.first().is_some_and(Value::is_array) => {
                let rows = Vec::<Vec<Vec<f32>>>::deserialize(&Value::Array(rows.clone()));
                let rows = rows.map_err(|error| wrong(&in_words(&error)))?;
                let fits = |row: &Vec<Vec<f32>>| {
                    row.len() == layer.kv_heads && row.iter().all(|head| head.len() == layer.head_dim)
                };
                if !rows.iter().all(fits) {
                    let Layer { kv_heads, head_dim, .. } = layer;
                    return Err(wrong(&format_args!("each token takes [{kv_heads}, {head_dim}]")));
                }
                rows.concat().concat()
            }
            row => Vec::<f32>::deserialize(row).map_err(|error| wrong(&in_words(&error)))?,
        };
        check(&all, layer, tokens, "values")?;
        Ok(all)
    };
    let allowed: &[&str] = match op.as_deref() {
        Some("set" | "add" | "project_out") => &["values"],
        Some("scale") => &["factor"],
        Some("clamp") => &["low", "high"],
        _ => return Err(ApiError::field("op", "`op` must be one of set, add, scale, clamp, project_out")),
    };
    let mut other = ["values", "factor", "low", "high"].into_iter().filter(|name| !allowed.contains(name));
    if let Some(name) = other.find(|name| fields.get(name).is_some()) {
        return Err(ApiError::field(name, format!("`{name}` means nothing for this `op`")));
    }
    let number = |name: &'static str| fields.number(name, f32::MIN..=f32::MAX);
    let missing = |name: &'static str| ApiError::field(name, format!("`{name}` is missing"));
    let op = match op.as_deref() {
        Some("set") => KvOp::Set(values(tokens)?),
        Some("add") => KvOp::Add(values(tokens)?),
        Some("scale") => KvOp::Scale(number("factor")?.ok_or_else(|| missing("factor"))?),
        Some("clamp") => match (number("low")?, number("high")?) {
            (None, None) => {
                return Err(ApiError::field("low", "`low` and `high` are missing; give one at least"));
            }
            (Some(low), Some(high)) if low > high => {
                return Err(ApiError::field("low", format!("`low` is {low}, above `high`, {high}")));
            }
            (low, high) => KvOp::Clamp(low.unwrap_or(f32::NEG_INFINITY), high.unwrap_or(f32::INFINITY)),
        },
        _ => match values(1)? {
            direction if direction.iter().any(|&value| value != 0.0) => KvOp::ProjectOut(direction),
            _ => return Err(ApiError::field("values", "a direction of length 0 is none")),
        },
    };
    Ok(KvEdit { range: KvRange { layer: layer.number, positions }, half, op })
}

/// The changes of a file with `keys`, `values` or both.
fn from_file(body: Vec<u8>, query: &Pairs, layer: Layer, end: u64) -> Result<Vec<KvEdit>, ApiError> {
    let op: fn(Vec<f32>) -> KvOp = match query.get("op").map(String::as_str) {
        None | Some("set") => KvOp::Set,
        Some("add") => KvOp::Add,
        Some(_) => return Err(ApiError::field("op", "`op` of a file must be set or add")),
    };
    let from = number(query, "from")?.unwrap_or(0);
    let file = SafetensorsDir::from_bytes(body).map_err(|error| ApiError::of_text(&error, "body"))?;
    let mut edits = Vec::new();
    for (name, half) in [("keys", KvHalf::Keys), ("values", KvHalf::Values)] {
        let Some(ReadTensor { shape, values }) = tensor_of(&file, name)? else { continue };
        let &[tokens, heads, dim] = shape.as_slice() else {
            return Err(ApiError::field(
                name,
                format!("`{name}` is {shape:?}; give [tokens, kv_heads, head_dim]"),
            ));
        };
        if (heads, dim) != (layer.kv_heads as u64, layer.head_dim as u64) {
            let Layer { kv_heads, head_dim, .. } = layer;
            let message = format!("`{name}` is {shape:?}; each token takes [{kv_heads}, {head_dim}]");
            return Err(ApiError::field(name, message));
        }
        let positions = within(Some(from), Some(from.saturating_add(tokens)), end, "from")?;
        check(&values, layer, tokens as usize, name)?;
        edits.push(KvEdit { range: KvRange { layer: layer.number, positions }, half, op: op(values) });
    }
    match edits.as_slice() {
        [] => Err(ApiError::field("body", "the file has neither `keys` nor `values`")),
        [one, other] if one.range != other.range => {
            Err(ApiError::field("values", "`keys` and `values` have different numbers of tokens"))
        }
        _ => Ok(edits),
    }
}
