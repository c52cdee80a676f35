//! `/v1/models/{name}/hooks`: the hook points of a model, and how requests name them.

use crate::ApiError;
use crate::reply::{self, Answered};
use crate::server::Server;
use djinn_engine::debug::AttentionPattern;
use djinn_host::{last_layer, nearest};
use djinn_models::printable::one_line;
use djinn_srg::{Dim, Graph, Hook};
use serde_json::{Value, json};
use std::borrow::Cow;

const LOGITS: &str = "unembed.hook_out";

/// Answers `GET /v1/models/{name}/hooks`.
pub(crate) fn list(server: &Server, name: &str) -> Answered {
    let model = server.served(name).ok_or_else(|| ApiError::no_model(name))?;
    let points = model.graph().hook_points();
    let mut data: Vec<Value> =
        points.iter().map(|names| point(names, of_logits(model.graph(), names[0]))).collect();
    data.extend(AttentionPattern::all(model.graph()).map(|pattern| pattern_point(&pattern)));
    reply::ok(&json!({ "object": "list", "data": data }))
}

fn point(names: &[&Hook], logits_only: bool) -> Value {
    let aliases: Vec<&str> = names[1..].iter().map(|hook| hook.name.as_str()).collect();
    json!({
        "object": "hook",
        "name": names[0].name,
        "aliases": aliases,
        "shape": ["tokens", names[0].columns.1],
        "dtype": "float32",
        "writable": true,
        "logits_only": logits_only,
        "paused_only": false,
        "computed_on": "device",
    })
}

/// The attention pattern, computed on request, so not a point of a pass.
fn pattern_point(pattern: &AttentionPattern) -> Value {
    json!({
        "object": "hook",
        "name": pattern.name(),
        "aliases": [],
        "shape": [pattern.heads, "tokens", "keys"],
        "dtype": "float32",
        "writable": false,
        "logits_only": false,
        "paused_only": true,
        "computed_on": "host",
    })
}

/// The hook point that a request's `param` names. `logits` is a name of the last one.
///
/// # Errors
/// 400 with what is wrong: the layer, that it is a pattern, or the whole name. Then it has a similar one, if there is one.
pub(crate) fn find<'a>(
    graph: &'a Graph,
    name: &str,
    param: impl Into<Cow<'static, str>>,
) -> Result<&'a Hook, ApiError> {
    let own = if name == "logits" { LOGITS } else { name };
    graph.hook(own).ok_or_else(|| {
        let is_pattern = |name: &str| AttentionPattern::named(graph, name).is_some();
        if is_pattern(name) {
            let message = format!(
                "`{name}` is computed when a paused session is read; breakpoints, steering and the lens take other hooks"
            );
            return ApiError::field(param, message);
        }
        if let Some(last) = last_layer(name, |name| graph.hook(name).is_some() || is_pattern(name)) {
            let message = format!("the model has no hook `{}`; its layers are 0 to {last}", one_line(name));
            return ApiError::field(param, message);
        }
        let near = nearest(name, graph.hooks.iter().map(|hook| hook.name.as_str()));
        let near = near.map_or_else(String::new, |near| format!(" (near: `{near}`)"));
        let message =
            format!("the model has no hook `{}`{near}; see /v1/models/{{name}}/hooks", one_line(name));
        ApiError::field(param, message)
    })
}

/// The hook after a block, at which a layer's vector is added.
///
/// # Errors
/// 400 for an unknown block.
pub(crate) fn of_layer(
    graph: &Graph,
    layer: u64,
    param: impl Into<Cow<'static, str>>,
) -> Result<&Hook, ApiError> {
    graph.hook(&format!("blocks.{layer}.hook_out")).ok_or_else(|| {
        let last = graph.nodes.iter().filter_map(|node| node.layer).max().unwrap_or(0);
        ApiError::field(param, format!("the model has no layer {layer}; give 0 to {last}"))
    })
}

/// Whether two names are of the same point.
pub(crate) fn is_same_point(a: &Hook, b: &Hook) -> bool {
    (a.after, a.value, a.columns) == (b.after, b.value, b.columns)
}

/// Whether a hook has values only for tokens whose logits are computed.
pub(crate) fn of_logits(graph: &Graph, hook: &Hook) -> bool {
    matches!(graph.value(hook.value).shape.first(), Some(Dim::LogitRows))
}

/// A hook's name within its block.
pub(crate) fn in_block(hook: &Hook) -> Option<&str> {
    Some(hook.name.strip_prefix("blocks.")?.split_once('.')?.1)
}

/// The block that a hook's name contains, if any.
pub(crate) fn layer(hook: &Hook) -> Option<u64> {
    hook.name.strip_prefix("blocks.")?.split('.').next()?.parse().ok()
}
