//! `/v1/models`.

use crate::ApiError;
use crate::reply;
use crate::server::Server;
use axum::body::Body;
use axum::http::{Response, StatusCode};
use serde_json::{Value, json};

/// All models.
pub(crate) fn list(server: &Server) -> Response<Body> {
    let models: Vec<Value> = server.names().map(|name| model(server, name)).collect();
    reply::json(StatusCode::OK, &json!({ "object": "list", "data": models }))
}

/// One model.
pub(crate) fn get(server: &Server, name: &str) -> Result<Response<Body>, ApiError> {
    match server.names().find(|&known| known == name) {
        Some(known) => Ok(reply::json(StatusCode::OK, &model(server, known))),
        None => Err(ApiError::no_model(name)),
    }
}

fn model(server: &Server, name: &str) -> Value {
    let served = server.served(name);
    json!({
        "id": name,
        "object": "model",
        "created": served.map_or(0, |model| model.created()),
        "owned_by": "djinn",
        "root": served.map(|model| model.name()),
        "max_model_len": served.map(|model| model.context()),
    })
}
