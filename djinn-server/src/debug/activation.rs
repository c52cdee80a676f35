//! `/v1/sessions/{id}/activations/{hook}`: reads and changes a paused session.

use super::change::Change;
use super::engine::{debug, look, paused_at};
use super::tensors::{Lists, WithLists};
use super::{hooks, pattern, tensors};
use crate::ApiError;
use crate::body::Fields;
use crate::fields::ACTIVATIONS;
use crate::reply::{self, Answered};
use crate::request::Pairs;
use crate::server::ApiRequest;
use crate::sessions::Named;
use crate::steering::{BodyForm, body_form, one_tensor};
use axum::extract::Path;
use djinn_engine::debug::{AttentionPattern, Look, Looked};
use djinn_models::safetensors::TensorWriter;
use serde_json::json;

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
        BodyForm::Json => Ok((request.fields(&ACTIVATIONS)?.only_of(&ACTIVATIONS)?, None)),
        _ => {
            let fields = Fields::of_query(&query, &ACTIVATIONS)?;
            Ok((fields, Some(one_tensor(request.body.to_vec(), "values", width)?)))
        }
    });
    let (fields, values) = read.await?;
    let change = Change::new(fields.whole(), values)?;
    // After the selection of rows, only the last token has values.
    let mut all = at.positions.clone();
    if hooks::of_logits(graph, &hook) {
        all.start = all.end - 1;
    }
    let runs = change.positions(&at.positions, &all)?;
    let tokens: u64 = runs.iter().map(|run| run.end - run.start).sum();
    let (op, edits) = (change.op(), change.edits(&hook, &runs)?);
    debug(engine, graph, move |debugger, id| debugger.edit(id, edits)).await?;
    named.touch();
    reply::ok(&json!({ "object": "edit", "hook": hook.name, "op": op, "tokens": tokens }))
}
