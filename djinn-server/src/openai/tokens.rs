//! `/tokenize` and `/detokenize`, as vLLM and llama.cpp have them.

use super::{messages, structure};
use crate::ApiError;
use crate::body::Fields;
use crate::fields::{DETOKENIZE, TOKENIZE};
use crate::reply::{self, Answered};
use crate::server::ApiRequest;
use djinn_models::Tokenizer;
use serde::{Serialize, Serializer};
use serde_json::json;

/// Whether a text begins as the model's texts do, by either of the field's names.
fn special(fields: &Fields) -> Result<Option<bool>, ApiError> {
    Ok(fields.read("add_special_tokens")?.or(fields.read("add_special")?))
}

/// The tokens of a text or of a conversation.
pub(crate) async fn tokenize(request: ApiRequest) -> Answered {
    let fields = request.fields(&TOKENIZE)?;
    let model = request.model(&fields)?;
    let body = model.work(move |model| {
        let ids = match (fields.read::<String>("prompt")?, fields.read::<String>("content")?) {
            (Some(text), _) => model.encode(&text, special(&fields)?.unwrap_or(true), "prompt")?,
            (None, Some(text)) => model.encode(&text, special(&fields)?.unwrap_or(false), "content")?,
            (None, None) if fields.get("messages").is_some() => {
                let prompts = fields.read("add_generation_prompt")?.unwrap_or(true);
                let conversation =
                    messages::conversation(&fields, None, structure::loses_calls(model), model.context())?;
                model.encode_conversation(&conversation, prompts)?.0
            }
            (None, None) => return Err(ApiError::field("prompt", "give `prompt` or `messages`")),
        };
        let (strings, pieces) = (fields.flag("return_token_strs")?, fields.flag("with_pieces")?);
        let list = |form| TokenList { ids: &ids, form, tokenizer: model.tokenizer() };
        let body = Tokenized {
            count: ids.len(),
            max_model_len: model.context(),
            tokens: list(if pieces { Form::Pieces } else { Form::Ids }),
            token_strs: strings.then(|| list(Form::Spellings)),
        };
        reply::ok(&body)
    });
    body.await
}

#[derive(Serialize)]
struct Tokenized<'a> {
    count: usize,
    max_model_len: u64,
    tokens: TokenList<'a>,
    token_strs: Option<TokenList<'a>>,
}

/// Tokens as they are written one by one: a text may have millions.
struct TokenList<'a> {
    ids: &'a [u32],
    form: Form,
    tokenizer: Option<&'a Tokenizer>,
}

enum Form {
    Ids,
    Spellings,
    Pieces,
}

#[derive(Serialize)]
struct TokenPiece {
    id: u32,
    piece: Option<String>,
}

impl Serialize for TokenList<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (ids, tokenizer) = (self.ids.iter().copied(), self.tokenizer);
        match self.form {
            Form::Ids => serializer.collect_seq(ids),
            Form::Spellings => serializer
                .collect_seq(ids.map(|id| tokenizer.and_then(|tokenizer| tokenizer.id_to_token(id)))),
            Form::Pieces => serializer.collect_seq(ids.map(|id| TokenPiece {
                id,
                piece: tokenizer.and_then(|tokenizer| tokenizer.decode(&[id], false).ok()),
            })),
        }
    }
}

pub(crate) async fn detokenize(request: ApiRequest) -> Answered {
    let fields = request.fields(&DETOKENIZE)?;
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
    reply::ok(&body.await?)
}
