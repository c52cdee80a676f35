//! `/v1/sessions/{id}/export` and `/v1/sessions/import`: sessions between servers.
//!
//! Files are streamed a few pages at a time; no session is in the server's memory as a whole.

use super::file::{self, CHECKSUM_BYTES, FileKind, LENGTH_BYTES, LONGEST_HEADER, Sizes, malformed};
use super::identity;
use super::routes::Named;
use super::table::{EngineSession, exists};
use crate::ApiError;
use crate::ask::ask;
use crate::model::ServedModel;
use crate::openai::answer_id;
use crate::pace::Pace;
use crate::reply::{self, Answered};
use crate::request::{Asker, Pairs, tenant_salt};
use crate::server::Server;
use axum::body::{Body, BodyDataStream};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Response, StatusCode, header};
use bytes::{Buf, Bytes, BytesMut};
use djinn_engine::{Client, Error as EngineError, ExportedSession, IncomingSession, SessionId};
use futures_util::{StreamExt, stream};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

/// The least average rate of a sender or reader, besides the time for any body or write, since pages are held meanwhile.
const SLOWEST_BYTES_PER_S: u64 = 1 << 20;

/// Answers `GET /v1/sessions/{id}/export`.
pub(crate) async fn export(State(server): State<Arc<Server>>, named: Named) -> Answered {
    let permit = named.model.transfer_permit()?;
    let EngineSession { client, id: session } = named.engine()?.clone();
    let told = ask(|answer| client.begin_export(session, answer)).await;
    let session = told.ok_or_else(|| named.no_state())?.map_err(|error| match error {
        EngineError::NotAtRest { .. } => {
            let message =
                format!("the session `{}` computes; export it between turns, or pause it", named.key.1);
            ApiError::conflict(message, "session_state")
        }
        EngineError::Hooked { .. } | EngineError::ConstrainedTurn { .. } => {
            ApiError::conflict(error.to_string(), "session_state")
        }
        EngineError::NoSession { .. } => named.no_state(),
        error => of_engine(&error),
    })?;
    let kind = FileKind { model: fingerprint(&named.model).await?, shape: session.shape };
    let head = file::head(&kind, &session.image);
    let sizes = Sizes::of(&session.image);
    let bytes = head.len() as u64 - sizes.text_bytes() + sizes.bytes(&session.shape);
    let source = Export {
        name: named.key.1.chars().take(64).collect(),
        pages: session.image.pages(&session.shape),
        read: 0,
        head: Some(head),
        hasher: Some(blake3::Hasher::new()),
        pace: Pace::new(server.limits.write_time, SLOWEST_BYTES_PER_S),
        given: None,
        client,
        session,
        _permit: permit,
    };
    let pieces = stream::try_unfold(source, async |mut source| {
        Ok::<_, std::io::Error>(source.next().await?.map(|bytes| (bytes, source)))
    });
    let mut response = Response::new(Body::from_stream(pieces));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes));
    let disposition = HeaderValue::from_static("attachment; filename=\"session.safetensors\"");
    headers.insert(header::CONTENT_DISPOSITION, disposition);
    Ok(response)
}

/// A file that is being sent.
struct Export {
    name: String,
    head: Option<Vec<u8>>,
    /// `None` after the checksum was sent.
    hasher: Option<blake3::Hasher>,
    pace: Pace,
    /// When the latest bytes were given to the connection, and how many.
    given: Option<(Instant, usize)>,
    client: Client,
    session: ExportedSession,
    pages: u32,
    read: u32,
    _permit: OwnedSemaphorePermit,
}

impl Export {
    /// The next bytes of the file; `None` at its end. An error ends the response early, which its length shows.
    async fn next(&mut self) -> std::io::Result<Option<Bytes>> {
        let Some(hasher) = &mut self.hasher else { return Ok(None) };
        if let Some((at, bytes)) = self.given.take() {
            self.pace.took(at.elapsed(), bytes);
        }
        if self.pace.left().is_zero() {
            log::warn!(target: "djinn::server", "the export of {:?} broke off: it is read too slowly", self.name);
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        let bytes = if let Some(head) = self.head.take() {
            head
        } else if self.read < self.pages {
            let to = self.pages.min(self.read.saturating_add(self.session.most_pages));
            let (client, session, pages) = (&self.client, &self.session, self.read..to);
            let told = ask(|answer| client.begin_read(session, pages, answer)).await;
            let bytes = told.unwrap_or_else(|| Err(EngineError::Stopped("it has ended".to_owned())));
            self.read = to;
            bytes.map_err(|error| {
                log::warn!(target: "djinn::server", "the export of {:?} broke off: {error}", self.name);
                std::io::Error::other(error.to_string())
            })?
        } else {
            let sum = hasher.finalize();
            self.hasher = None;
            return Ok(Some(Bytes::copy_from_slice(sum.as_bytes())));
        };
        hasher.update(&bytes);
        self.given = Some((Instant::now(), bytes.len()));
        Ok(Some(bytes.into()))
    }
}

/// Answers `POST /v1/sessions/import`.
pub(crate) async fn import(
    State(server): State<Arc<Server>>,
    asker: Asker,
    query: Pairs,
    request: Request,
) -> Answered {
    let model = server.model_of(query.get("model").map(String::as_str))?;
    let table = &model.sessions;
    if !table.keeps() {
        let message = "this server's policy keeps no sessions between turns";
        return Err(ApiError::conflict(message, "session_state"));
    }
    let id = match query.get("id") {
        Some(id) => identity::check(id, "id")?,
        None => answer_id("sess_"),
    };
    let key = (tenant_salt(asker), id);
    if table.record(&key).is_some() {
        return Err(exists(&key.1));
    }
    let keeps_turn = match query.get("turn").map(String::as_str) {
        None | Some("hold") => true,
        Some("end") => false,
        Some(_) => return Err(ApiError::field("turn", "`turn` must be hold or end")),
    };
    let _permit = model.transfer_permit()?;
    let mut upload = Upload::new(request.into_body(), server.limits.body_time);
    match receive(&model, &mut upload, keeps_turn).await {
        Ok((engine, is_held)) => table.bring_in(&key, engine, is_held)?,
        Err(error) => {
            upload.drain().await;
            return Err(error);
        }
    }
    let model_name = server.first_name(&model);
    let named = Named::of(model, model_name, key)?;
    reply::ok(&named.body().await)
}

/// Imports a file's session into the model's engine. Returns whether it is paused in a turn, which ends unless
/// `keeps_turn`.
async fn receive(
    model: &Arc<ServedModel>,
    upload: &mut Upload,
    keeps_turn: bool,
) -> Result<(EngineSession, bool), ApiError> {
    let client = model.client()?;
    let length = u64::from_le_bytes(upload.array().await?);
    if length > LONGEST_HEADER {
        return Err(malformed("its header is too long"));
    }
    let header = upload.take(length as usize).await?;
    let kind = FileKind { model: fingerprint(model).await?, shape: model.kv_shape(&client).await? };
    let (sizes, turn) = file::sizes(&header, &kind, model.context())?;
    let turn = turn.filter(|_| keeps_turn);
    upload.allow(sizes.bytes(&kind.shape));
    let image = file::image(&sizes, turn, &upload.take(sizes.text_bytes() as usize).await?);
    let (pages, is_held) = (image.pages(&kind.shape), image.turn.is_some());
    let incoming = Incoming::begin(client, kind.shape, image).await?;
    let mut written = 0;
    while written < pages {
        let count = (pages - written).min(incoming.session.most_pages);
        let bytes = upload.take(count as usize * kind.shape.page_bytes as usize).await?;
        incoming.write(written, bytes).await?;
        written += count;
    }
    let sum = upload.hasher.finalize();
    let told: [u8; CHECKSUM_BYTES] = upload.array().await?;
    if sum.as_bytes() != &told {
        return Err(malformed("its checksum is another; it was damaged on its way"));
    }
    upload.end().await?;
    Ok((incoming.keep().await?, is_held))
}

/// An imported session of the engine whose pages are being written. Dropping it ends the import.
struct Incoming {
    client: Client,
    session: IncomingSession,
    kept: bool,
}

impl Incoming {
    async fn begin(
        client: Client,
        shape: djinn_engine::KvShape,
        image: djinn_engine::SessionImage,
    ) -> Result<Self, ApiError> {
        let own = client.clone();
        let begun = ask(|answer| {
            // If the client has left, the answer is dropped, which gives the pages back.
            client.begin_import(shape, image, move |begun| {
                answer(begun.map(|session| Incoming { client: own, session, kept: false }));
            });
        });
        begun.await.ok_or_else(gone)?.map_err(|error| of_engine(&error))
    }

    async fn write(&self, first: u32, bytes: Bytes) -> Result<(), ApiError> {
        let (client, id) = (&self.client, self.session.id);
        let told = ask(|answer| client.begin_write(id, first, bytes.to_vec(), answer)).await;
        told.ok_or_else(gone)?.map_err(|error| of_engine(&error))
    }

    async fn keep(mut self) -> Result<EngineSession, ApiError> {
        let (client, id): (Client, SessionId) = (self.client.clone(), self.session.id);
        self.kept = true;
        let own = EngineSession { client: client.clone(), id };
        let told = ask(|answer| {
            // If the client has left, the answer is dropped, which ends the session.
            client.begin_finish(id, true, move |told| answer(told.map(|()| Begun(Some(own)))));
        });
        let mut begun = told.await.ok_or_else(gone)?.map_err(|error| of_engine(&error))?;
        begun.0.take().ok_or_else(gone)
    }
}

/// An imported session that has begun in the engine. Dropping it ends the session, unless it was taken.
struct Begun(Option<EngineSession>);

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(EngineSession { client, id }) = self.0.take() {
            client.abort(id);
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.kept {
            self.client.begin_finish(self.session.id, false, |_| ());
        }
    }
}

/// A file that is being received.
struct Upload {
    body: BodyDataStream,
    buffer: BytesMut,
    hasher: blake3::Hasher,
    began: Instant,
    until: Instant,
    time: Duration,
}

impl Upload {
    fn new(body: Body, time: Duration) -> Self {
        let (body, buffer, hasher) = (body.into_data_stream(), BytesMut::new(), blake3::Hasher::new());
        let began = Instant::now();
        Upload { body, buffer, hasher, began, until: began + time, time }
    }

    /// Extends the sender's time for this many bytes.
    fn allow(&mut self, bytes: u64) {
        self.until = self.began + self.time + Duration::from_secs(bytes / SLOWEST_BYTES_PER_S);
    }

    /// Reads more bytes of the body; false at its end.
    async fn more(&mut self) -> Result<bool, ApiError> {
        let slow = |_| ApiError::refused(StatusCode::REQUEST_TIMEOUT, "the session's file came too slowly");
        match timeout_at(self.until, self.body.next()).await.map_err(slow)? {
            Some(Ok(bytes)) => {
                self.buffer.extend_from_slice(&bytes);
                Ok(true)
            }
            Some(Err(_)) => Err(malformed("it broke off")),
            None => Ok(false),
        }
    }

    async fn fill(&mut self, count: usize) -> Result<(), ApiError> {
        while self.buffer.len() < count {
            if !self.more().await? {
                return Err(malformed("it ends too early"));
            }
        }
        Ok(())
    }

    /// The next `count` bytes, which are added to the checksum.
    async fn take(&mut self, count: usize) -> Result<Bytes, ApiError> {
        self.fill(count).await?;
        let bytes = self.buffer.split_to(count).freeze();
        self.hasher.update(&bytes);
        Ok(bytes)
    }

    /// The next bytes. They are added to the checksum, unless they are the checksum.
    async fn array<const N: usize>(&mut self) -> Result<[u8; N], ApiError> {
        self.fill(N).await?;
        let mut bytes = [0; N];
        self.buffer.copy_to_slice(&mut bytes);
        if N == LENGTH_BYTES {
            self.hasher.update(&bytes);
        }
        Ok(bytes)
    }

    /// Reads what a sender is still sending, for a moment: a sender that is cut off might not read the error.
    async fn drain(&mut self) {
        const MOMENT: Duration = Duration::from_secs(1);
        const MOST: usize = 1 << 20;
        let (mut drained, until) = (0, Instant::now() + MOMENT);
        while drained < MOST
            && let Ok(Some(Ok(bytes))) = timeout_at(until, self.body.next()).await
        {
            drained += bytes.len();
        }
    }

    /// Expects the end of the body.
    async fn end(&mut self) -> Result<(), ApiError> {
        while self.buffer.is_empty() {
            if !self.more().await? {
                return Ok(());
            }
        }
        Err(malformed("bytes follow its end"))
    }
}

async fn fingerprint(model: &Arc<ServedModel>) -> Result<String, ApiError> {
    model.work(ServedModel::fingerprint).await
}

fn gone() -> ApiError {
    ApiError::unavailable("the model's engine has ended")
}

fn of_engine(error: &EngineError) -> ApiError {
    match error {
        EngineError::Image { .. } => malformed(&error.to_string()),
        error => ApiError::of_engine(error, "id"),
    }
}

#[cfg(test)]
mod tests;
