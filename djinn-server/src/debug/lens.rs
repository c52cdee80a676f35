//! `/v1/sessions/{id}/lens`: the tokens that the model would choose if its blocks ended at a hook.

use super::engine::{look, paused_at};
use super::{hooks, not_paused};
use crate::ApiError;
use crate::body::Fields;
use crate::fields::LENS;
use crate::model::ServedModel;
use crate::reply::{self, Answered};
use crate::request::Pairs;
use crate::server::ApiRequest;
use crate::sessions::{EngineSession, Named};
use axum::extract::Path;
use djinn_engine::Edit;
use djinn_engine::debug::Look;
use djinn_srg::{Graph, Hook};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ops::Range;

const MOST_HOOKS: usize = 1024;

/// Answers `POST /v1/sessions/{id}/lens`.
pub(crate) async fn show(Path(id): Path<String>, query: Pairs, request: ApiRequest) -> Answered {
    let named = Named::find(&request.server, request.salt(), &id, &query)?;
    let fields = request.fields_or_none(&LENS)?.only_of(&LENS)?;
    let (engine, graph) = (named.engine()?, named.model.graph());
    let last = ends(graph).pop().ok_or_else(|| ApiError::invalid("the model has no blocks"))?;
    let chosen = chosen(&fields, graph, last)?;
    let top = fields.integer("top", 1..=100)?.unwrap_or(5) as usize;
    let at = paused_at(engine, graph).await?.positions;
    let position = fields.read("position")?.unwrap_or(at.end - 1);
    if !at.contains(&position) {
        let message =
            format!("position {position} is not among those that are paused, {} to {}", at.start, at.end - 1);
        return Err(ApiError::field("position", message));
    }
    let mut data = Vec::new();
    let row = (position - at.start) as usize * last.columns.1 as usize;
    for (hook, values) in read_all(engine, graph, &chosen, row..row + last.columns.1 as usize).await? {
        if !values.iter().all(|value| value.is_finite()) {
            return Err(ApiError::field("hooks", format!("the values at `{hook}` are not all finite")));
        }
        // Only the last token has logits, so it gets the values of the requested one.
        let edits = vec![(last.clone(), at.end - 1..at.end, Edit::set(values))];
        let seen = look(engine, graph, Look { edits, logits: true, ..Look::default() }).await?;
        data.push(json!({ "hook": hook, "top": best(&named.model, &seen.logits, top) }));
    }
    named.touch();
    reply::ok(&json!({ "object": "list", "position": position, "data": data }))
}

/// Some values at each hook, by its name: in one look, or in several if the hook memory is too small for one.
async fn read_all(
    engine: &EngineSession,
    graph: &Graph,
    hooks: &[&Hook],
    part: Range<usize>,
) -> Result<Vec<(String, Vec<f32>)>, ApiError> {
    let mut values = Vec::new();
    let mut left: Vec<&[&Hook]> = vec![hooks];
    while let Some(next) = left.pop() {
        let wanted = Look { hooks: next.iter().map(|&hook| hook.clone()).collect(), ..Look::default() };
        match look(engine, graph, wanted).await {
            Ok(read) => {
                for (hook, all) in read.values {
                    values.push((hook, all.get(part.clone()).ok_or_else(not_paused)?.to_vec()));
                }
            }
            Err(error) if error.code == Some("hook_memory") && next.len() > 1 => {
                let (first, second) = next.split_at(next.len() / 2);
                left.extend([second, first]);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(values)
}

/// The hooks at the ends of blocks, in order.
fn ends(graph: &Graph) -> Vec<&Hook> {
    (0..).map_while(|block| graph.hook(&format!("blocks.{block}.hook_out"))).collect()
}

/// Whether the residual stream is at a hook: before a block, between its attention and its MLP, or after it. Values of
/// other hooks may be as many, but the logit lens makes no sense of them.
pub fn is_residual(graph: &Graph, hook: &Hook) -> bool {
    let is_same = |other: &&Hook| (other.value, other.columns) == (hook.value, hook.columns);
    let is_named = |other: &Hook| {
        let name = other.name.strip_prefix("blocks.").and_then(|name| name.split_once('.'));
        name.is_some_and(|(_, name)| ["hook_in", "hook_resid_mid", "hook_out"].contains(&name))
    };
    graph.hooks.iter().filter(is_same).any(is_named)
}

/// The hooks of the residual stream that a request names.
fn chosen<'a>(fields: &Fields, graph: &'a Graph, last: &Hook) -> Result<Vec<&'a Hook>, ApiError> {
    let Some(names) = fields.read::<BTreeSet<String>>("hooks")? else { return Ok(ends(graph)) };
    if names.is_empty() || names.len() > MOST_HOOKS {
        return Err(ApiError::field("hooks", format!("give 1 to {MOST_HOOKS} hooks")));
    }
    let mut chosen = Vec::new();
    for name in &names {
        let hook = hooks::find(graph, name, "hooks")?;
        if !is_residual(graph, hook) || hook.after > last.after {
            let message = format!(
                "`{name}` is not of the residual stream; give hooks such as `blocks.0.hook_in`, \
                 `blocks.0.hook_resid_mid` or `blocks.0.hook_out`"
            );
            return Err(ApiError::field("hooks", message));
        }
        chosen.push(hook);
    }
    chosen.sort_by_key(|hook| hook.after);
    Ok(chosen)
}

/// The most probable tokens.
fn best(model: &ServedModel, logits: &[f32], top: usize) -> Value {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    let top = top.min(order.len());
    if top == 0 {
        return json!([]);
    }
    order.select_nth_unstable_by(top - 1, |&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    order.truncate(top);
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let most = f64::from(logits[order[0]]);
    let total: f64 = logits.iter().map(|&logit| (f64::from(logit) - most).exp()).sum();
    let one = |&token: &usize| {
        let probability = (f64::from(logits[token]) - most).exp() / total;
        json!({ "token_id": token, "text": model.text_of(&[token as u32]), "probability": probability })
    };
    order.iter().map(one).collect()
}
