//! `/v1/sessions/{id}/activations/{hook}`: reads and changes a paused session.

use super::engine::{debug, look, paused_at};
use super::tensors::{Lists, WithLists};
use super::{hooks, pattern, tensors};
use crate::ApiError;
use crate::body::{Fields, Part, in_words};
use crate::fields::ACTIVATIONS;
use crate::reply::{self, Answered};
use crate::request::Pairs;
use crate::server::ApiRequest;
use crate::sessions::Named;
use crate::steering::{BodyForm, body_form, check_rows, one_tensor};
use axum::extract::Path;
use djinn_engine::Edit;
use djinn_engine::debug::{AttentionPattern, Look, Looked};
use djinn_models::safetensors::TensorWriter;
use djinn_srg::Hook;
use serde::Deserialize;
use serde_json::{Value, json};
use std::ops::Range;

/// The most changes, each of adjacent columns of adjacent tokens, that one request makes.
const MOST_EDITS: usize = 1024;

/// Answers `GET /v1/sessions/{id}/activations/{hook}`.
pub(crate) async fn read(named: Named, Path((_, hook)): Path<(String, String)>, query: Pairs) -> Answered {
    let as_tensors = tensors::is_asked(&query)?;
    let (engine, graph) = (named.engine()?, named.model.graph());
    if let Some(pattern) = AttentionPattern::named(graph, &hook) {
        return pattern::show(&named, pattern, as_tensors).await;
    }
    let hook = hooks::find(graph, &hook, "hook")?.clone();
    let at = paused_at(engine, graph).await?;
    let wanted = Look { hooks: vec![hook.clone()], ..Look::default() };
    let Looked { positions, values, .. } = look(engine, graph, wanted).await?;
    let values = values.into_iter().next().map_or_else(Vec::new, |(_, values)| values);
    named.touch();
    let body = move || {
        let (width, tokens) = (hook.columns.1 as usize, values.len() / hook.columns.1 as usize);
        // After the selection of rows, only the last token has values.
        let from = positions.end - tokens as u64;
        let token_ids = &at.tokens[at.tokens.len().saturating_sub(tokens)..];
        if as_tensors {
            let (from, to) = (from.to_string(), positions.end.to_string());
            let about = [("hook", hook.name.clone()), ("from", from), ("to", to)];
            let mut file = TensorWriter::default();
            file.floats("values", &[tokens, width], &values);
            file.integers("token_ids", token_ids.iter().map(|&token| i64::from(token)));
            return tensors::file(file, about);
        }
        let shape = [tokens, width];
        let about = json!({
            "object": "activation",
            "hook": hook.name,
            "positions": { "from": from, "to": positions.end },
            "token_ids": token_ids,
            "shape": shape,
            "dtype": "float32",
        });
        let lists = [("values", Lists::new(&values, &shape))];
        reply::ok(&WithLists { about, lists })
    };
    named.model.work(move |_| body()).await
}

/// Answers `POST /v1/sessions/{id}/activations/{hook}`.
pub(crate) async fn write(
    Path((id, hook)): Path<(String, String)>,
    query: Pairs,
    request: ApiRequest,
) -> Answered {
    let named = Named::find(&request.server, request.salt(), &id, &query)?;
    let (engine, graph) = (named.engine()?, named.model.graph());
    if AttentionPattern::named(graph, &hook).is_some() {
        return Err(ApiError::field("hook", "a pattern is only read; change queries or keys instead"));
    }
    let hook = hooks::find(graph, &hook, "hook")?.clone();
    let at = paused_at(engine, graph).await?;
    let width = hook.columns.1 as usize;
    let read = named.model.work(move |_| match body_form(&request.body) {
        BodyForm::Json => {
            Ok(Written { fields: request.fields(&ACTIVATIONS)?.only_of(&ACTIVATIONS)?, values: None })
        }
        _ => {
            let fields = Fields::of_query(&query, &ACTIVATIONS)?;
            Ok(Written { fields, values: Some(one_tensor(request.body.to_vec(), "values", width)?) })
        }
    });
    let written = read.await?;
    let op = written.op()?;
    // After the selection of rows, only the last token has values.
    let mut all = at.positions.clone();
    if hooks::of_logits(graph, &hook) {
        all.start = all.end - 1;
    }
    let runs = written.positions(&at.positions, &all)?;
    let tokens: u64 = runs.iter().map(|run| run.end - run.start).sum();
    let edits = written.edits(&hook, &op, &runs)?;
    debug(engine, graph, move |debugger, id| debugger.edit(id, edits)).await?;
    named.touch();
    reply::ok(&json!({ "object": "edit", "hook": hook.name, "op": op, "tokens": tokens }))
}

/// A change that a client requests.
struct Written {
    fields: Fields,
    /// The values, if they came in a file.
    values: Option<Vec<f32>>,
}

impl Written {
    fn op(&self) -> Result<String, ApiError> {
        let op: Option<String> = self.fields.read("op")?;
        let known = ["set", "add", "scale", "clamp", "project_out"];
        let from_file = self.values.is_some();
        let op = op.or_else(|| from_file.then(|| "set".to_owned()));
        let known = if from_file { &known[..2] } else { &known };
        match op.filter(|op| known.contains(&op.as_str())) {
            Some(op) => Ok(op),
            None => Err(ApiError::field("op", format!("`op` must be one of {}", known.join(", ")))),
        }
    }

    /// The tokens among `all`, those of the `paused` ones that have values at the hook, as ascending runs of positions.
    fn positions(&self, paused: &Range<u64>, all: &Range<u64>) -> Result<Vec<Range<u64>>, ApiError> {
        self.runs("positions", all, |position| match paused.contains(&position) {
            true => format!("only position {} has values at this hook, the last that is paused", all.start),
            false => {
                let (first, last) = (paused.start, paused.end - 1);
                format!("position {position} is not among those that are paused, {first} to {last}")
            }
        })
    }

    /// The columns of the hook, as parts of it in ascending order.
    fn columns(&self, hook: &Hook) -> Result<Vec<Hook>, ApiError> {
        let last = hook.columns.1 - 1;
        let outside = |column: u64| format!("`{}` has columns 0 to {last}, not {column}", hook.name);
        let runs = self.runs("columns", &(0..hook.columns.1), outside)?;
        Ok(runs.into_iter().filter_map(|run| hook.part(run)).collect())
    }

    /// What a list, or an object with `from` and `to`, chooses of `all`, as ascending runs; all of it, if the field is
    /// absent.
    fn runs(
        &self,
        name: &'static str,
        all: &Range<u64>,
        outside: impl Fn(u64) -> String,
    ) -> Result<Vec<Range<u64>>, ApiError> {
        let wrong = |message: String| ApiError::field(name, message);
        let runs = match self.fields.get(name) {
            None => vec![all.clone()],
            Some(list @ Value::Array(_)) => {
                let list = Vec::<u64>::deserialize(list)
                    .map_err(|error| wrong(format!("`{name}`: {}", in_words(&error))))?;
                if list.is_empty() || !list.is_sorted_by(|a, b| a < b) {
                    return Err(wrong(format!("`{name}` must ascend, and hold one at least")));
                }
                if let Some(&one) = list.iter().find(|one| !all.contains(one)) {
                    return Err(wrong(outside(one)));
                }
                list.chunk_by(|a, b| a + 1 == *b).map(|run| run[0]..run[0] + run.len() as u64).collect()
            }
            Some(_) => {
                let part = Part::of(&self.fields, name)?;
                part.only(&["from", "to"])?;
                let (from, to) = (part.read("from")?, part.read("to")?);
                let run = from.unwrap_or(all.start)..to.unwrap_or(all.end);
                vec![run]
            }
        };
        for run in &runs {
            if run.is_empty() {
                return Err(wrong(format!("there is nothing from {} to {}", run.start, run.end)));
            }
            let one = [run.start, run.end - 1].into_iter().find(|one| !all.contains(one));
            one.map_or(Ok(()), |one| Err(wrong(outside(one))))?;
        }
        Ok(runs)
    }

    /// Values for `tokens` tokens: a row of `width`, or one for each.
    fn values(&self, hook: &Hook, width: usize, tokens: usize) -> Result<Vec<f32>, ApiError> {
        let wrong = |error: &dyn std::fmt::Display| ApiError::field("values", format!("`values`: {error}"));
        let values = match (&self.values, self.fields.get("values")) {
            (Some(values), _) => values.clone(),
            (None, None) => return Err(ApiError::field("values", "`values` is missing")),
            (None, Some(Value::Array(rows))) if rows.first().is_some_and(Value::is_array) => {
                let mut all = Vec::new();
                for (at, row) in rows.iter().enumerate() {
                    let row = Vec::<f32>::deserialize(row).map_err(|error| wrong(&in_words(&error)))?;
                    if row.len() != width {
                        return Err(wrong(&format_args!("row {at} has {} values, not {width}", row.len())));
                    }
                    all.extend(row);
                }
                all
            }
            (None, Some(values)) => {
                Vec::<f32>::deserialize(values).map_err(|error| wrong(&in_words(&error)))?
            }
        };
        check_rows(&hook.name, width, &values, tokens, "values")?;
        Ok(values)
    }

    fn number(&self, name: &'static str) -> Result<Option<f32>, ApiError> {
        self.fields.number(name, f32::MIN..=f32::MAX)
    }

    /// The change of each part of the hook, for each run of tokens.
    fn edits(
        &self,
        hook: &Hook,
        op: &str,
        runs: &[Range<u64>],
    ) -> Result<Vec<(Hook, Range<u64>, Edit)>, ApiError> {
        let parts = self.columns(hook)?;
        if parts.len() * runs.len() > MOST_EDITS {
            let message =
                format!("`columns` and `positions` make more than {MOST_EDITS} changes; send several");
            return Err(ApiError::field("columns", message));
        }
        let width = parts.iter().map(|part| part.columns.1 as usize).sum();
        let tokens = runs.iter().map(|run| (run.end - run.start) as usize).sum();
        let allowed: &[&str] = match op {
            "set" => &["values"],
            "add" => &["values", "strength"],
            "scale" => &["factor"],
            "clamp" => &["low", "high"],
            _ => &["values"],
        };
        let other = ["values", "strength", "factor", "low", "high"].into_iter();
        if let Some(name) =
            other.filter(|name| self.fields.get(name).is_some()).find(|name| !allowed.contains(name))
        {
            return Err(ApiError::field(name, format!("`{name}` means nothing for `{op}`")));
        }
        let each = || runs.iter().flat_map(|run| parts.iter().map(move |part| (part.clone(), run.clone())));
        let same = |edit: Edit| each().map(|(part, run)| (part, run, edit.clone())).collect::<Vec<_>>();
        let missing = |name: &'static str| ApiError::field(name, format!("`{name}` is missing"));
        match op {
            "scale" => Ok(same(Edit::scale(self.number("factor")?.ok_or_else(|| missing("factor"))?))),
            "clamp" => {
                let (low, high) = (self.number("low")?, self.number("high")?);
                if low.is_none() && high.is_none() {
                    return Err(ApiError::field("low", "`low` and `high` are missing; give one at least"));
                }
                let (low, high) = (low.unwrap_or(f32::NEG_INFINITY), high.unwrap_or(f32::INFINITY));
                match low <= high {
                    true => Ok(same(Edit::clamp(low, high))),
                    false => Err(ApiError::field("low", format!("`low` is {low}, above `high`, {high}"))),
                }
            }
            "project_out" if parts.len() > 1 => {
                Err(ApiError::field("columns", "`columns` of `project_out` must have no gaps"))
            }
            "project_out" => {
                let direction = self.values(hook, width, 1)?;
                match direction.iter().any(|&value| value != 0.0) {
                    true => Ok(same(Edit::along(direction, -1.0))),
                    false => Err(ApiError::field("values", "a direction of length 0 is none")),
                }
            }
            op => {
                let values = self.values(hook, width, tokens)?;
                let strength = self.number("strength")?.unwrap_or(1.0);
                if values.iter().any(|value| !(value * strength).is_finite()) {
                    return Err(ApiError::field("strength", format!("{strength} makes values infinite")));
                }
                let edit = |values: Vec<f32>| match op {
                    "set" => Edit::set(values),
                    _ => Edit::add(values, strength),
                };
                let is_one_row = values.len() == width;
                let (mut row, mut edits) = (0, Vec::new());
                for run in runs {
                    let count = if is_one_row { 1 } else { (run.end - run.start) as usize };
                    let rows = &values[row * width..(row + count) * width];
                    let mut column = 0;
                    for part in &parts {
                        let next = column + part.columns.1 as usize;
                        let own = rows.chunks_exact(width).flat_map(|row| &row[column..next]);
                        edits.push((part.clone(), run.clone(), edit(own.copied().collect())));
                        column = next;
                    }
                    row += if is_one_row { 0 } else { count };
                }
                Ok(edits)
            }
        }
    }
}
