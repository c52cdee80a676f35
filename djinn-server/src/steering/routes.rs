//! `/v1/steering`: vectors by name.

use super::Direction;
use super::apply::SteeredTokens;
use super::parse::{self, BodyForm};
use super::store::{DefaultUse, Stored};
use crate::ApiError;
use crate::body::Fields;
use crate::debug::hooks;
use crate::fields::{STEERING, STEERING_DEFAULT};
use crate::model::ServedModel;
use crate::reply::{self, Answered};
use crate::request::{Asker, Pairs, tenant_salt};
use crate::server::{ApiRequest, Server};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use djinn_models::printable::one_line;
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// Answers `POST /v1/steering`.
pub(crate) async fn create(Query(query): Pairs, request: ApiRequest) -> Answered {
    let is_json = parse::form(&request.body) == BodyForm::Json;
    let fields = match is_json {
        true => request.fields(&STEERING)?,
        false => Fields::of_query(&query, &STEERING)?,
    };
    let model = request.model(&fields)?;
    let name: Option<String> = fields.read("name")?;
    let name = parse::name(&name.ok_or_else(|| ApiError::field("name", "`name` is missing"))?)?;
    let (model_name, tenant, body) = (request.model_name(&model), request.salt(), request.body);
    let made = model.work(move |model| {
        let vectors = match is_json {
            true => parse::json(&fields, model.graph())?,
            false => parse::tensors(body.to_vec(), &fields, model.graph())?,
        };
        let is_new = model.steering.insert(Some(tenant.clone()), name.clone(), vectors)?;
        Ok((is_new, Named::find(model, &tenant, &name)?.body(&model_name)))
    });
    let (is_new, body) = made.await?;
    Ok(reply::json(if is_new { StatusCode::CREATED } else { StatusCode::OK }, &body))
}

/// Answers `GET /v1/steering`.
pub(crate) async fn list(State(server): State<Arc<Server>>, asker: Asker) -> Answered {
    let tenant = tenant_salt(asker);
    let mut data = Vec::new();
    for (model_name, model) in server.distinct_models() {
        let tenant = tenant.clone();
        let listed = model.work(move |model| {
            // A vector may be gone meanwhile.
            let named = |name: String| Named::find(model, &tenant, &name).ok();
            let named = model.steering.names(&tenant).into_iter().filter_map(named);
            Ok(named.map(|named| named.body(&model_name)).collect::<Vec<Value>>())
        });
        data.extend(listed.await?);
    }
    reply::ok(&json!({ "object": "list", "data": data }))
}

/// Answers `GET /v1/steering/{name}`: with all values.
pub(crate) async fn show(
    State(server): State<Arc<Server>>,
    asker: Asker,
    Path(name): Path<String>,
    query: Pairs,
) -> Answered {
    let tenant = tenant_salt(asker);
    let (model_name, model) = of_query(&server, &tenant, &name, &query)?;
    let shown = model.work(move |model| {
        let named = Named::find(model, &tenant, &name)?;
        reply::ok(&Whole::of(&named, &model_name))
    });
    shown.await
}

/// Answers `DELETE /v1/steering/{name}`.
pub(crate) async fn delete(
    State(server): State<Arc<Server>>,
    asker: Asker,
    Path(name): Path<String>,
    query: Pairs,
) -> Answered {
    let tenant = tenant_salt(asker);
    let (_, model) = of_query(&server, &tenant, &name, &query)?;
    match model.steering.remove(&tenant, &name)? {
        true => reply::ok(&json!({ "name": name, "object": "steering_vector", "deleted": true })),
        false => Err(missing(&name)),
    }
}

/// Answers `PUT /v1/steering/{name}/default`.
pub(crate) async fn set_default(Path(name): Path<String>, query: Pairs, request: ApiRequest) -> Answered {
    let fields = request.fields_or_none(&STEERING_DEFAULT)?;
    let part = fields.whole();
    let default =
        DefaultUse { scale: part.finite("scale")?.unwrap_or(1.0), tokens: SteeredTokens::read(part)? };
    change_default(&request.server, &request.salt(), &name, &query, Some(default))
}

/// Answers `DELETE /v1/steering/{name}/default`.
pub(crate) async fn end_default(
    State(server): State<Arc<Server>>,
    asker: Asker,
    Path(name): Path<String>,
    query: Pairs,
) -> Answered {
    change_default(&server, &tenant_salt(asker), &name, &query, None)
}

fn change_default(
    server: &Server,
    tenant: &[u8],
    name: &str,
    query: &Pairs,
    default: Option<DefaultUse>,
) -> Answered {
    let (model_name, model) = of_query(server, tenant, name, query)?;
    model.steering.set_default(tenant, name, default);
    reply::ok(&Named::find(&model, tenant, name)?.body(&model_name))
}

/// The model whose vectors a path names. If several models have them, the query names the model.
fn of_query(
    server: &Server,
    tenant: &[u8],
    name: &str,
    query: &Pairs,
) -> Result<(String, Arc<ServedModel>), ApiError> {
    let models = server.asked_models(query).into_iter();
    let mut found = models.filter(|(_, model)| model.steering.get(tenant, name).is_some());
    let first = found.next().ok_or_else(|| missing(name))?;
    match found.next() {
        None => Ok(first),
        Some(_) => {
            let message = "several models have vectors of this name; give `model` in the query";
            Err(ApiError::field("model", message))
        }
    }
}

fn missing(name: &str) -> ApiError {
    let message = format!("there is no steering vector `{}`; see /v1/steering", one_line(name));
    let error = ApiError::refused(StatusCode::NOT_FOUND, message);
    ApiError { code: Some("steering_not_found"), param: Some("name".into()), ..error }
}

/// A tenant's vectors under a name.
struct Named {
    name: String,
    stored: Stored,
    default: Option<DefaultUse>,
}

impl Named {
    fn find(model: &ServedModel, tenant: &[u8], name: &str) -> Result<Self, ApiError> {
        let (stored, default) = model.steering.get(tenant, name).ok_or_else(|| missing(name))?;
        Ok(Named { name: name.to_owned(), stored, default })
    }

    /// All but its directions.
    fn about(&self, model: &str) -> Value {
        let Named { name, stored: Stored { vectors, created, is_fixed }, default } = self;
        json!({
            "name": name,
            "object": "steering_vector",
            "model": model,
            "created_at": created,
            "read_only": is_fixed,
            "bytes": vectors.bytes(),
            "default": default.map(|default| json!({ "scale": default.scale, "apply": default.tokens.json() })),
        })
    }

    /// All but its values.
    fn body(&self, model: &str) -> Value {
        let mut body = self.about(model);
        body["directions"] = self.stored.vectors.directions.iter().map(Direction::about).collect();
        body
    }
}

impl Direction {
    /// All but its values.
    fn about(&self) -> Value {
        let Direction { hook, values } = self;
        let squares: f64 = values.iter().map(|&value| f64::from(value) * f64::from(value)).sum();
        json!({
            "hook": hook.name,
            "layer": hooks::layer(hook),
            "width": values.len(),
            "norm": squares.sqrt(),
        })
    }
}

/// A vector with its values. They are written as they stand: a tree of them would take many times their bytes.
#[derive(Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    about: Value,
    directions: Vec<WithValues<'a>>,
}

#[derive(Serialize)]
struct WithValues<'a> {
    #[serde(flatten)]
    about: Value,
    values: &'a [f32],
}

impl<'a> Whole<'a> {
    fn of(named: &'a Named, model: &str) -> Self {
        let with =
            |direction: &'a Direction| WithValues { about: direction.about(), values: &direction.values };
        let directions = named.stored.vectors.directions.iter().map(with).collect();
        Whole { about: named.about(model), directions }
    }
}
