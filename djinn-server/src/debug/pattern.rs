//! The attention pattern of a block, as a read-only activation.

use super::engine::attention;
use super::tensors::{self, Lists, WithLists};
use crate::reply::{self, Answered};
use crate::sessions::Named;
use djinn_engine::debug::AttentionPattern;
use djinn_models::safetensors::TensorWriter;
use serde_json::json;

/// Answers with `[heads, tokens, keys]`, for the paused tokens and all keys up to the last of them.
pub(super) async fn show(named: &Named, pattern: AttentionPattern, as_tensors: bool) -> Answered {
    let scores = attention(named.engine()?, named.model.graph(), pattern.layer).await?;
    named.touch();
    let body = move || {
        let (name, queries) = (pattern.name(), scores.queries.clone());
        let pattern = scores.pattern();
        let keys = queries.end as usize;
        let shape = [scores.heads as usize, (queries.end - queries.start) as usize, keys];
        if as_tensors {
            let (from, to) = (queries.start.to_string(), queries.end.to_string());
            let mut file = TensorWriter::default();
            file.floats("values", &shape, &pattern);
            return tensors::file(file, [("hook", name), ("from", from), ("to", to)]);
        }
        let about = json!({
            "object": "activation",
            "hook": name,
            "positions": { "from": queries.start, "to": queries.end },
            "shape": shape,
            "dtype": "float32",
        });
        let lists = [("values", Lists::new(&pattern, &shape))];
        reply::ok(&WithLists { about, lists })
    };
    named.model.work(move |_| body()).await
}
