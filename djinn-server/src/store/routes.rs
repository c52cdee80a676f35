//! `/v1/store`: registers a model, receives its pieces, and makes it visible.

use super::upload::Arrived;
use super::{ModelStore, name};
use crate::ApiError;
use crate::blocking;
use crate::fields::STORE_MANIFESTS;
use crate::pace::Pace;
use crate::reply::{self, Answered};
use crate::request::{Asker, tenant_of};
use crate::server::{ApiRequest, Server};
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use bytes::Bytes;
use djinn_models::stored::{COMPLETE_HEADER, ContentHash, LENGTH_HEADER, ModelManifest, OFFSET_HEADER};
use http_body_util::BodyExt;
use serde_json::json;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

/// The least average rate of a sender. Several pieces may share a slow line.
const SLOWEST_BYTES_PER_S: u64 = 8 << 10;
/// Frames of a body that wait to be written.
const WAITING: usize = 8;

/// The store, for clients that may push.
fn store(server: &Server, asker: Asker) -> Result<Arc<ModelStore>, ApiError> {
    server.store_for(tenant_of(asker))
}

/// Begins the disk's work on a blocking thread, and waits for its result.
fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> impl Future<Output = Result<T, ApiError>> {
    let done = blocking::run(work);
    async { done.await.unwrap_or_else(|| Err(ApiError::failed("the store failed"))) }
}

fn hash(text: &str) -> Result<ContentHash, ApiError> {
    text.parse().map_err(ApiError::invalid)
}

/// Answers `GET /v1/store`.
pub(crate) async fn show(State(server): State<Arc<Server>>, asker: Asker) -> Answered {
    let store = store(&server, asker)?;
    reply::ok(&on_disk(move || Ok(store.show())).await?)
}

/// Answers `POST /v1/store/manifests`.
pub(crate) async fn register(request: ApiRequest) -> Answered {
    let store = request.server.store_for(request.tenant)?;
    let (fields, server) = (request.fields(&STORE_MANIFESTS)?, request.server);
    let missing = |name: &'static str| ApiError::field(name, format!("`{name}` is missing"));
    let name: String = fields.read("name")?.ok_or_else(|| missing("name"))?;
    let files = fields.read("files")?.ok_or_else(|| missing("files"))?;
    let lacking = on_disk(move || store.register(name, ModelManifest { files }, &*server)).await?;
    reply::ok(&lacking)
}

/// Answers `DELETE /v1/store/manifests/{id}`.
pub(crate) async fn unregister(
    State(server): State<Arc<Server>>,
    asker: Asker,
    Path(id): Path<String>,
) -> Answered {
    let (store, id) = (store(&server, asker)?, hash(&id)?);
    on_disk(move || store.unregister(&id)).await?;
    reply::ok(&json!({ "id": id, "object": "store.manifest", "deleted": true }))
}

/// Answers `HEAD /v1/store/blobs/{hash}`: how far a piece has come.
pub(crate) async fn head(
    State(server): State<Arc<Server>>,
    asker: Asker,
    Path(name): Path<String>,
) -> Answered {
    let (store, hash) = (store(&server, asker)?, hash(&name)?);
    let arrived = on_disk(move || store.arrived(&hash)).await?;
    Ok(with_progress(StatusCode::OK, arrived))
}

/// Answers `PUT /v1/store/blobs/{hash}`: the bytes of a piece, from where it has come to, all or the next of them.
pub(crate) async fn put(
    State(server): State<Arc<Server>>,
    asker: Asker,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Answered {
    let (store, hash) = (store(&server, asker)?, hash(&name)?);
    let offset = match headers.get(OFFSET_HEADER) {
        None => 0,
        Some(value) => value
            .to_str()
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| ApiError::invalid(format!("{OFFSET_HEADER} is a number of bytes")))?,
    };
    let _permit = store.upload_permit()?;
    let arrived = arrive(&server, &store, hash, offset, body).await?;
    let status = if arrived.is_whole() { StatusCode::CREATED } else { StatusCode::ACCEPTED };
    Ok(with_progress(status, arrived))
}

/// Writes a body to a piece. If the client leaves, or is too slow, the bytes so far stay.
async fn arrive(
    server: &Server,
    store: &Arc<ModelStore>,
    hash: ContentHash,
    offset: u64,
    mut body: Body,
) -> Result<Arrived, ApiError> {
    let (sender, mut frames) = mpsc::channel::<Option<Bytes>>(WAITING);
    let store = Arc::clone(store);
    let writing = on_disk(move || {
        let mut upload = store.begin(hash, offset)?;
        loop {
            match frames.blocking_recv() {
                Some(Some(bytes)) => upload.write(&bytes)?,
                Some(None) => return upload.finish(),
                None => {
                    return Err(ApiError::invalid(
                        "the request's body broke off; go on from where it came to",
                    ));
                }
            }
        }
    });
    let slow = || {
        ApiError::refused(
            StatusCode::REQUEST_TIMEOUT,
            "the piece came too slowly; go on from where it came to",
        )
    };
    let mut pace = Pace::new(server.limits.body_time, SLOWEST_BYTES_PER_S);
    let received = async {
        loop {
            let asked = Instant::now();
            let frame = timeout(pace.left(), body.frame()).await.map_err(|_| slow())?;
            let next = match frame {
                None => None,
                Some(Ok(frame)) => Some(frame.into_data().unwrap_or_default()),
                Some(Err(_)) => return Ok(()),
            };
            pace.took(asked.elapsed(), next.as_ref().map_or(0, Bytes::len));
            let ends = next.is_none();
            // The writer reports its own failure.
            if sender.send(next).await.is_err() || ends {
                return Ok(());
            }
        }
    };
    let received = received.await;
    drop(sender);
    let written = writing.await;
    if written.is_err() && received.is_ok() {
        // A client that still sends reads no answer, so the rest of the body is discarded.
        let rest = async { while let Some(Ok(_)) = body.frame().await {} };
        let _ = timeout(server.limits.body_time, rest).await;
    }
    received.and(written)
}

fn with_progress(status: StatusCode, arrived: Arrived) -> Response<Body> {
    let Arrived { bytes, have } = arrived;
    let complete = arrived.is_whole();
    let mut response = reply::json(status, &json!({ "bytes": bytes, "have": have, "complete": complete }));
    let headers = response.headers_mut();
    headers.insert(OFFSET_HEADER, HeaderValue::from(have));
    headers.insert(LENGTH_HEADER, HeaderValue::from(bytes));
    headers.insert(COMPLETE_HEADER, HeaderValue::from_static(if complete { "?1" } else { "?0" }));
    response
}

/// Answers `POST /v1/store/manifests/{id}/commit`.
pub(crate) async fn commit(Path(id): Path<String>, request: ApiRequest) -> Answered {
    let (store, id, server) = (request.server.store_for(request.tenant)?, hash(&id)?, request.server);
    let name = on_disk(move || store.commit(&id, &*server)).await?;
    Ok(reply::json(StatusCode::CREATED, &json!({ "id": name, "object": "model", "owned_by": "djinn" })))
}

/// Answers `DELETE /v1/models/{name}`, for models that were pushed.
pub(crate) async fn delete_model(
    State(server): State<Arc<Server>>,
    asker: Asker,
    Path(name): Path<String>,
) -> Answered {
    if name.rsplit_once('/').is_some_and(|(_, part)| name::PARTS.contains(&part)) {
        return Err(ApiError::refused(StatusCode::METHOD_NOT_ALLOWED, "this path takes another method"));
    }
    let store = store(&server, asker)?;
    let gone = name.clone();
    on_disk(move || {
        if !store.has(&gone) {
            return Err(match server.served(&gone).is_some() {
                true => ApiError::refused(StatusCode::CONFLICT, "this model was given at the server's start"),
                false => ApiError::no_model(&gone),
            });
        }
        store.remove(&gone, &*server)
    })
    .await?;
    reply::ok(&json!({ "id": name, "object": "model", "deleted": true }))
}
