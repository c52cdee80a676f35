//! `/v1/logits`: the logits of every position of a list of tokens.

use crate::ask::ask;
use crate::fields::LOGITS;
use crate::reply::{self, Answered};
use crate::server::ApiRequest;
use crate::{ApiError, ServedModel};
use axum::http::StatusCode;
use djinn_host::{LogitRows, logits_table};
use std::sync::Arc;

/// The most logits of an answer: 32 MiB as f32, and three times that as JSON.
const MOST_LOGITS: u64 = 8 << 20;

/// Answers a request. The model's sessions wait meanwhile.
pub(crate) async fn compute(request: ApiRequest) -> Answered {
    let fields = request.fields(&LOGITS)?;
    let model = request.model(&fields)?;
    let tokens: Vec<u32> =
        fields.read("tokens")?.ok_or_else(|| ApiError::field("tokens", "`tokens` is missing"))?;
    let as_text = match fields.read::<String>("format")?.as_deref() {
        None | Some("json") => false,
        Some("text") => true,
        Some(_) => return Err(ApiError::field("format", "`format` is `json` or `text`")),
    };
    check(&model, &tokens)?;
    let (client, failures) = (model.client()?, model.failures());
    let logits = match ask(|answer| client.begin_logits(tokens, answer)).await {
        Some(Ok(logits)) => logits,
        Some(Err(djinn_engine::Error::ContextFull { .. })) => {
            return Err(ApiError::busy("sessions have the KV cache's pages; try again later"));
        }
        Some(Err(error)) => return Err(ApiError::of_engine(&error, "tokens")),
        None => return Err(model.gone(failures).await),
    };
    let made = model.work(move |model| {
        Ok(match as_text {
            true => reply::of_type("text/plain; charset=utf-8", logits_table(model.model(), &logits)),
            false => reply::json(StatusCode::OK, &LogitRows::new(model.model(), &logits)),
        })
    });
    made.await
}

fn check(model: &Arc<ServedModel>, tokens: &[u32]) -> Result<(), ApiError> {
    let (count, context) = (tokens.len() as u64, model.context());
    if count == 0 {
        return Err(ApiError::field("tokens", "`tokens` has none; give at least one"));
    }
    if count > context {
        return Err(ApiError::too_long(
            "tokens",
            format!("{count} tokens exceed a context of {context}; give fewer"),
        ));
    }
    let most = (MOST_LOGITS / model.vocab().max(1)).max(1);
    if count > most {
        return Err(ApiError::field(
            "tokens",
            format!("the logits of {count} tokens are too many; give up to {most}"),
        ));
    }
    model.check_tokens(tokens, "tokens")
}
