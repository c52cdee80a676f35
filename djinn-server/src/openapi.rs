//! `/openapi.json`: the routes and the fields of their requests, as OpenAPI 3.1.
//!
//! Paths come from the table of routes, fields from the tables that also make docs/server-fields.md. For answers, see
//! OpenAI's and Anthropic's documents.

use crate::fields::{ENDPOINTS, Endpoint, RequestField, Support};
use crate::routes::Route;
use serde_json::{Map, Value, json};

pub(crate) fn document(routes: &[Route]) -> Value {
    let mut paths = Map::new();
    for route in routes {
        // A name with slashes is still one parameter.
        let path = route.path.replace("{*", "{");
        let methods = paths.entry(path).or_insert_with(|| json!({}));
        methods[route.method.as_str().to_ascii_lowercase()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Djinn",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "OpenAI's and Anthropic's APIs over models that Djinn serves.",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        // Only servers with keys require one.
        "security": [{}, { "bearer": [] }, { "x-api-key": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer" },
                "x-api-key": { "type": "apiKey", "in": "header", "name": "x-api-key" },
            },
            "schemas": { "Error": error_schema() },
        },
    })
}

fn operation(route: &Route) -> Value {
    let endpoint =
        ENDPOINTS.iter().find(|endpoint| endpoint.path == route.path && route.method == endpoint.method);
    let named = |place: &str, name: &str| json!({ "name": name, "in": place, "required": place == "path", "schema": { "type": "string" } });
    let in_path = route.path.split(['{', '}']).skip(1).step_by(2).map(|name| name.trim_start_matches('*'));
    let parameters = in_path.map(|name| named("path", name));
    let parameters: Vec<Value> =
        parameters.chain(route.query.iter().map(|name| named("query", name))).collect();
    let mut content = Map::from_iter([(route.content.to_owned(), json!({}))]);
    if endpoint.is_some_and(|endpoint| endpoint.fields.iter().any(|field| field.name == "stream")) {
        content.insert("text/event-stream".to_owned(), json!({}));
    }
    let failure = json!({ "schema": { "$ref": "#/components/schemas/Error" } });
    let mut operation = json!({
        "summary": route.summary,
        "parameters": parameters,
        "responses": {
            "200": { "description": "The answer.", "content": content },
            "default": { "description": "A failure.", "content": { "application/json": failure } },
        },
    });
    if let Some(content) = route.takes {
        operation["requestBody"] = json!({ "required": true, "content": { content: {} } });
    }
    if let Some(endpoint) = endpoint {
        let schema = json!({ "schema": request_schema(endpoint) });
        operation["requestBody"] = json!({ "required": true, "content": { "application/json": schema } });
    }
    operation
}

/// The schema of a request's body. Fields that it does not list are ignored.
fn request_schema(endpoint: &Endpoint) -> Value {
    let properties = endpoint.fields.iter().map(|field| (field.name.to_owned(), field_schema(field)));
    json!({
        "type": "object",
        "required": required(endpoint.path),
        "properties": properties.collect::<Map<_, _>>(),
    })
}

fn field_schema(field: &RequestField) -> Value {
    match field.support {
        Support::Supported { note } => json!({ "description": note, "type": types(field.name) }),
        Support::Ignored { because } => json!({ "description": format!("Ignored: {because}.") }),
        Support::Refused { neutral, instead } => {
            let neutral = neutral.iter().filter_map(|text| serde_json::from_str::<Value>(text).ok());
            let neutral: Vec<Value> = [Value::Null].into_iter().chain(neutral).collect();
            json!({ "description": format!("Not supported: {instead}."), "enum": neutral })
        }
    }
}

/// The fields that a request must have.
fn required(path: &str) -> &'static [&'static str] {
    match path {
        "/v1/chat/completions" | "/v1/messages/count_tokens" => &["messages"],
        "/v1/completions" => &["prompt"],
        "/v1/responses" => &["input"],
        "/v1/messages" => &["messages", "max_tokens"],
        "/detokenize" | "/v1/logits" => &["tokens"],
        "/v1/store/manifests" => &["name", "files"],
        _ => &[],
    }
}

/// The types of a supported field's values, over all requests. Null means the field is absent.
fn types(name: &str) -> &'static [&'static str] {
    match name {
        "stream"
        | "ignore_eos"
        | "echo"
        | "store"
        | "parallel_tool_calls"
        | "add_generation_prompt"
        | "add_special_tokens"
        | "add_special"
        | "return_token_strs"
        | "with_pieces" => &["boolean", "null"],
        "temperature" | "top_p" | "min_p" | "repetition_penalty" | "frequency_penalty"
        | "presence_penalty" => &["number", "null"],
        "max_tokens"
        | "max_completion_tokens"
        | "max_output_tokens"
        | "n"
        | "seed"
        | "top_k"
        | "top_logprobs"
        | "priority" => &["integer", "null"],
        // A flag of chats, a number of completions.
        "logprobs" => &["boolean", "integer", "null"],
        "model" | "cache_salt" | "instructions" | "previous_response_id" | "content" => &["string", "null"],
        "stop" | "prompt" | "input" | "system" => &["string", "array", "null"],
        "messages" | "tools" | "documents" | "stop_token_ids" | "stop_sequences" | "include" | "tokens"
        | "files" => &["array", "null"],
        "stream_options"
        | "logit_bias"
        | "response_format"
        | "chat_template_kwargs"
        | "metadata"
        | "text"
        | "reasoning"
        | "thinking"
        | "output_config"
        | "steering" => &["object", "null"],
        "tool_choice" => &["string", "object", "null"],
        // Free-form: the templates decide.
        _ => &["string", "number", "boolean", "array", "object", "null"],
    }
}

fn error_schema() -> Value {
    json!({
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type"],
                "properties": {
                    "message": { "type": "string" },
                    "type": { "type": "string" },
                    "param": { "type": ["string", "null"] },
                    "code": { "type": ["string", "null"] },
                },
            },
        },
    })
}
