//! `/v1/models`.

use crate::ApiError;
use crate::model::ServedModel;
use crate::reply::{self, Answered};
use crate::server::Server;
use axum::body::Body;
use axum::http::{Response, StatusCode};
use djinn_engine::Residence;
use serde_json::{Value, json};

pub(crate) fn list(server: &Server) -> Response<Body> {
    let models: Vec<Value> = server.names().iter().filter_map(|name| model(server, name)).collect();
    reply::json(StatusCode::OK, &json!({ "object": "list", "data": models }))
}

pub(crate) fn get(server: &Server, name: &str) -> Answered {
    let model = model(server, name).ok_or_else(|| ApiError::no_model(name))?;
    reply::ok(&model)
}

fn model(server: &Server, name: &str) -> Option<Value> {
    let model = server.served(name)?;
    Some(json!({
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "djinn",
        "root": model.name(),
        "max_model_len": model.context(),
        "tokenizer": model.tokenizer().is_some(),
        "chat_template": model.template().is_some(),
        "generation_defaults": model.defaults(),
        "activations": model.activations,
        "status": status(&model),
    }))
}

/// Whether a model is loaded, in the format of llama.cpp's router, and where its weights are.
pub(crate) fn status(model: &ServedModel) -> Value {
    let residence = model.residence();
    let (value, weights) = match &residence {
        Residence::Device => ("loaded", "device"),
        Residence::Loading => ("loading", "moving"),
        Residence::Host => ("unloaded", "host"),
        Residence::Unloaded(_) => ("unloaded", "source"),
    };
    let mut status = json!({ "value": value, "weights": weights });
    match residence {
        Residence::Loading => {
            let [done, total] = model.progress();
            status["loaded_bytes"] = json!(done);
            status["total_bytes"] = json!(total);
        }
        Residence::Unloaded(Some(why)) => {
            status["failed"] = json!(true);
            status["reason"] = json!(why);
        }
        Residence::Unloaded(None) | Residence::Device | Residence::Host => {}
    }
    status
}
