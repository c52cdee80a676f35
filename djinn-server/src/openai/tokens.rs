//! `/tokenize` and `/detokenize`, as vLLM and llama.cpp have them.

use super::messages;
use crate::ApiError;
use crate::body::Fields;
use crate::fields::{DETOKENIZE, TOKENIZE};
use crate::reply;
use crate::server::ApiRequest;
use axum::body::Body;
use axum::http::{Response, StatusCode};
use serde_json::{Value, json};

/// The tokens of a text or of a conversation.
pub(crate) async fn tokenize(request: ApiRequest) -> Result<Response<Body>, ApiError> {
    let fields = Fields::parse(&request.body, &TOKENIZE)?;
    let model = request.model(&fields)?;
    let body = model.work(move |model| {
        let ids = match (fields.read::<String>("prompt")?, fields.read::<String>("content")?) {
            (Some(text), _) => {
                let special = fields.read("add_special_tokens")?.unwrap_or(true);
                model.encode(&text, special, "prompt")?
            }
            (None, Some(text)) => model.encode(&text, fields.flag("add_special")?, "content")?,
            (None, None) if fields.get("messages").is_some() => {
                let prompts = fields.read("add_generation_prompt")?.unwrap_or(true);
                model.encode_conversation(&messages::conversation(&fields, None)?, prompts)?.0
            }
            (None, None) => return Err(ApiError::field("prompt", "give `prompt` or `messages`")),
        };
        let spelling = |id: u32| model.tokenizer().and_then(|tokenizer| tokenizer.id_to_token(id));
        let strings = fields.flag("return_token_strs")?;
        let strings = strings.then(|| ids.iter().map(|&id| spelling(id)).collect::<Vec<_>>());
        let count = ids.len();
        let tokens: Value = match fields.flag("with_pieces")? {
            false => json!(ids),
            true => {
                let piece = |&id: &u32| {
                    let text = model.tokenizer().and_then(|tokenizer| tokenizer.decode(&[id], false).ok());
                    json!({ "id": id, "piece": text })
                };
                ids.iter().map(piece).collect()
            }
        };
        Ok(json!({
            "count": count,
            "max_model_len": model.context(),
            "tokens": tokens,
            "token_strs": strings,
        }))
    });
    Ok(reply::json(StatusCode::OK, &body.await?))
}

/// The text of tokens.
pub(crate) async fn detokenize(request: ApiRequest) -> Result<Response<Body>, ApiError> {
    let fields = Fields::parse(&request.body, &DETOKENIZE)?;
    let model = request.model(&fields)?;
    let body = model.work(move |model| {
        let ids: Vec<u32> =
            fields.read("tokens")?.ok_or_else(|| ApiError::field("tokens", "`tokens` is missing"))?;
        model.check_tokens(&ids, "tokens")?;
        let none = || ApiError::field("tokens", "the model has no tokenizer");
        let text = model.tokenizer().ok_or_else(none)?.decode(&ids, false);
        let text = text.map_err(|error| ApiError::of_text(&error, "tokens"))?;
        Ok(json!({ "prompt": text, "content": text }))
    });
    Ok(reply::json(StatusCode::OK, &body.await?))
}
