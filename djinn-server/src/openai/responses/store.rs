//! Stored responses, within bounds.

use crate::ApiError;
use crate::body::{ParsingRoom, RoomTaken};
use crate::guard::Tenant;
use crate::server::Server;
use axum::http::StatusCode;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The most stored responses, and their bytes. The least recently used go first.
const MOST_RESPONSES: usize = 10_000;
const MOST_BYTES: usize = 256 << 20;

/// Bytes of all items up to the end of a response, at most: far more than a prompt may have.
const MOST_ITEM_BYTES: usize = 16 << 20;

/// A response, its own input, and the response that it continues. They are kept as text: values take many times the bytes of
/// their text.
#[derive(Debug)]
pub(super) struct Kept {
    id: String,
    tenant: Option<Tenant>,
    previous: Option<String>,
    /// The session that it was a turn of.
    session: Option<String>,
    /// A list of JSON.
    input: String,
    /// A list of JSON.
    output: String,
    /// An object of JSON with null for its output.
    body: String,
    /// Of these three.
    bytes: usize,
    /// Its position in the order of use.
    used: u64,
    /// Set while it runs.
    cancel: Option<Arc<Notify>>,
}

impl Kept {
    pub(super) fn new(
        tenant: Option<Tenant>,
        previous: Option<String>,
        input: Vec<Value>,
        body: Value,
    ) -> Self {
        Self::of_text(tenant, previous, Value::Array(input).to_string(), body)
    }

    fn of_text(tenant: Option<Tenant>, previous: Option<String>, input: String, mut body: Value) -> Self {
        let output = body["output"].take().to_string();
        let id = body["id"].as_str().unwrap_or_default().to_owned();
        let body = body.to_string();
        let bytes = input.len() + output.len() + body.len();
        Kept { id, tenant, previous, session: None, input, output, body, bytes, used: 0, cancel: None }
    }

    /// The same as a turn of a session.
    pub(super) fn in_session(self, session: Option<String>) -> Self {
        Kept { session, ..self }
    }

    fn set_cancelled(&mut self) {
        let mut body = value(&self.body);
        body["status"] = json!("cancelled");
        self.body = body.to_string();
    }

    /// Its body, within the room that its values take.
    fn whole(&self, room: &ParsingRoom) -> Result<Roomy<Value>, ApiError> {
        let taken = [room.try_take(self.body.as_bytes())?, room.try_take(self.output.as_bytes())?];
        let mut body = value(&self.body);
        body["output"] = value(&self.output);
        Ok(Roomy { value: body, _room: taken.into_iter().flatten().collect() })
    }
}

/// The value of a text that was written here.
fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

/// What was read of texts that are kept, with the room that it takes.
#[derive(Debug)]
pub(super) struct Roomy<T> {
    pub(super) value: T,
    _room: Vec<RoomTaken>,
}

/// All responses that are kept.
#[derive(Debug, Default)]
pub(crate) struct ResponseStore {
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    by_id: HashMap<String, Kept>,
    by_use: BTreeMap<u64, String>,
    bytes: usize,
    uses: u64,
}

impl Entries {
    /// A tenant's entry, which counts as used now.
    fn entry(&mut self, id: &str, tenant: Option<Tenant>) -> Option<&mut Kept> {
        let entry = self.by_id.get_mut(id).filter(|entry| entry.tenant == tenant)?;
        self.uses += 1;
        if let Some(name) = self.by_use.remove(&entry.used) {
            self.by_use.insert(self.uses, name);
        }
        entry.used = self.uses;
        Some(entry)
    }

    fn remove(&mut self, id: &str) -> Option<Kept> {
        let entry = self.by_id.remove(id)?;
        self.by_use.remove(&entry.used);
        self.bytes -= entry.bytes;
        Some(entry)
    }

    fn insert(&mut self, mut entry: Kept) {
        let id = entry.id.clone();
        self.remove(&id);
        self.uses += 1;
        entry.used = self.uses;
        self.bytes += entry.bytes;
        self.by_use.insert(self.uses, id.clone());
        self.by_id.insert(id, entry);
        while self.by_id.len() > MOST_RESPONSES || self.bytes > MOST_BYTES {
            let Some((_, oldest)) = self.by_use.pop_first() else { break };
            self.remove(&oldest);
        }
    }
}

impl ResponseStore {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All items up to the end of a response, beginning with the first one that it continues, and its session.
    pub(super) fn items(
        &self,
        id: &str,
        tenant: Option<Tenant>,
        room: &ParsingRoom,
    ) -> Result<(Roomy<Vec<Value>>, Option<String>), ApiError> {
        let mut entries = self.entries();
        let (mut session, mut bytes) = (None, 0);
        let mut turns = Vec::new();
        let mut next = Some(id.to_owned());
        while let Some(id) = next {
            let entry = entries.entry(&id, tenant).ok_or_else(|| {
                let error = ApiError::field("previous_response_id", not_kept(&id));
                ApiError { code: Some("previous_response_not_found"), ..error }
            })?;
            if entry.cancel.is_some() {
                let message = format!("the response `{id}` is still in progress");
                return Err(ApiError::field("previous_response_id", message));
            }
            if turns.is_empty() {
                session.clone_from(&entry.session);
            }
            bytes += entry.input.len() + entry.output.len();
            if bytes > MOST_ITEM_BYTES {
                let message =
                    format!("the items before this response have more than {MOST_ITEM_BYTES} bytes");
                return Err(ApiError::field("previous_response_id", message));
            }
            // The last one first.
            turns.extend([entry.output.clone(), entry.input.clone()]);
            next = entry.previous.clone();
        }
        drop(entries);
        turns.reverse();
        let mut read = Roomy { value: Vec::new(), _room: Vec::new() };
        for items in turns {
            read._room.extend(room.try_take(items.as_bytes())?);
            if let Value::Array(items) = value(&items) {
                read.value.extend(items);
            }
        }
        Ok((read, session))
    }

    fn with<T>(
        &self,
        id: &str,
        tenant: Option<Tenant>,
        read: impl FnOnce(&Kept) -> T,
    ) -> Result<T, ApiError> {
        self.entries().entry(id, tenant).map(|entry| read(entry)).ok_or_else(|| not_found(id))
    }

    pub(super) fn body(
        &self,
        id: &str,
        tenant: Option<Tenant>,
        room: &ParsingRoom,
    ) -> Result<Roomy<Value>, ApiError> {
        self.with(id, tenant, |entry| entry.whole(room))?
    }

    pub(super) fn input(
        &self,
        id: &str,
        tenant: Option<Tenant>,
        room: &ParsingRoom,
    ) -> Result<Roomy<Value>, ApiError> {
        let text = self.with(id, tenant, |entry| entry.input.clone())?;
        let taken = room.try_take(text.as_bytes())?;
        Ok(Roomy { value: value(&text), _room: taken.into_iter().collect() })
    }

    /// Deletes a response, and cancels it if it runs. Returns its session.
    pub(super) fn delete(&self, id: &str, tenant: Option<Tenant>) -> Result<Option<String>, ApiError> {
        let mut entries = self.entries();
        entries.entry(id, tenant).ok_or_else(|| not_found(id))?;
        let entry = entries.remove(id).ok_or_else(|| not_found(id))?;
        entry.cancel.iter().for_each(|cancel| cancel.notify_one());
        Ok(entry.session)
    }

    /// Cancels a response that runs; its body.
    pub(super) fn cancel(
        &self,
        id: &str,
        tenant: Option<Tenant>,
        room: &ParsingRoom,
    ) -> Result<Roomy<Value>, ApiError> {
        let mut entries = self.entries();
        let entry = entries.entry(id, tenant).ok_or_else(|| not_found(id))?;
        match entry.cancel.take() {
            Some(cancel) => {
                cancel.notify_one();
                entry.set_cancelled();
            }
            None if value(&entry.body)["status"] == "cancelled" => {}
            None => return Err(ApiError::invalid(format!("the response `{id}` has ended already"))),
        }
        entry.whole(room)
    }
}

fn not_kept(id: &str) -> String {
    let id: String = id.chars().take(64).collect();
    format!("there is no response `{id}`, or it is kept no longer")
}

fn not_found(id: &str) -> ApiError {
    ApiError::refused(StatusCode::NOT_FOUND, not_kept(id))
}

/// A running response in the store. If it is dropped before its end, its client has left.
pub(super) struct Keeping {
    server: Arc<Server>,
    id: String,
    cancel: Arc<Notify>,
    has_ended: bool,
}

impl Keeping {
    /// Stores a response that begins.
    pub(super) fn begin(server: &Arc<Server>, kept: Kept) -> Self {
        let (id, cancel) = (kept.id.clone(), Arc::new(Notify::new()));
        server.responses.entries().insert(Kept { cancel: Some(Arc::clone(&cancel)), ..kept });
        Keeping { server: Arc::clone(server), id, cancel, has_ended: false }
    }

    pub(super) async fn cancelled(&self) {
        self.cancel.notified().await;
    }

    /// Stores the finished response, unless it was deleted.
    pub(super) fn finish(mut self, body: Value) {
        self.has_ended = true;
        let mut entries = self.server.responses.entries();
        if let Some(entry) = entries.remove(&self.id) {
            let kept = Kept::of_text(entry.tenant, entry.previous, entry.input, body);
            entries.insert(kept.in_session(entry.session));
        }
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        if let Some(entry) = self.server.responses.entries().by_id.get_mut(&self.id) {
            entry.cancel = None;
            entry.set_cancelled();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(id: &str, previous: Option<&str>, text: &str) -> Kept {
        let body = json!({ "id": id, "status": "completed", "output": [{ "out": text }] });
        Kept::new(None, previous.map(str::to_owned), vec![json!({ "in": text })], body)
    }

    #[test]
    fn a_response_has_the_items_of_those_before_it() {
        let (store, room) = (ResponseStore::default(), ParsingRoom::default());
        store.entries().insert(kept("a", None, "1"));
        store.entries().insert(kept("b", Some("a"), "2"));
        let all = json!([{ "in": "1" }, { "out": "1" }, { "in": "2" }, { "out": "2" }]);
        assert_eq!(Value::from(store.items("b", None, &room).unwrap().0.value), all);
        store.delete("a", None).unwrap();
        let error = store.items("b", None, &room).unwrap_err();
        assert_eq!(
            (error.status, error.code),
            (StatusCode::BAD_REQUEST, Some("previous_response_not_found"))
        );
        assert_eq!(store.delete("a", None).unwrap_err().status, StatusCode::NOT_FOUND);
    }

    #[test]
    fn items_are_read_within_bounds() {
        let (store, room) = (ResponseStore::default(), ParsingRoom::default());
        let long = "x".repeat(MOST_ITEM_BYTES / 2);
        store.entries().insert(kept("a", None, &long));
        let error = store.items("a", None, &room).unwrap_err();
        assert_eq!(
            (error.status, error.param.as_deref()),
            (StatusCode::BAD_REQUEST, Some("previous_response_id"))
        );
        // Many values of few bytes, while others take the room.
        let many = vec![json!({ "in": vec![json!({}); 1 << 16] }); 4];
        store.entries().insert(Kept::new(None, None, many, json!({ "id": "b", "output": [] })));
        let read = store.items("b", None, &room).unwrap().0;
        assert_eq!(read.value.len(), 4);
        assert_eq!(store.input("b", None, &room).unwrap_err().status, StatusCode::TOO_MANY_REQUESTS);
        drop(read);
        assert_eq!(store.input("b", None, &room).unwrap().value[3]["in"][0], json!({}));
    }

    #[test]
    fn what_was_not_used_for_longest_goes_first() {
        let store = ResponseStore::default();
        let large = "x".repeat(MOST_BYTES / 8);
        for id in ["a", "b", "c"] {
            store.entries().insert(kept(id, None, &large));
        }
        assert!(store.body("a", None, &ParsingRoom::default()).is_ok());
        store.entries().insert(kept("d", None, &large));
        assert_eq!(store.body("b", None, &ParsingRoom::default()).unwrap_err().status, StatusCode::NOT_FOUND);
        for id in ["a", "c", "d"] {
            assert!(store.body(id, None, &ParsingRoom::default()).is_ok(), "{id}");
        }
        let entries = store.entries();
        let bytes: usize = entries.by_id.values().map(|entry| entry.bytes).sum();
        assert_eq!((entries.bytes, entries.by_use.len()), (bytes, entries.by_id.len()));
    }

    #[test]
    fn the_number_of_responses_is_bounded() {
        let store = ResponseStore::default();
        for at in 0..MOST_RESPONSES + 10 {
            store.entries().insert(kept(&at.to_string(), None, ""));
        }
        assert_eq!(store.entries().by_id.len(), MOST_RESPONSES);
        assert!(
            store.body("9", None, &ParsingRoom::default()).is_err()
                && store.body("10", None, &ParsingRoom::default()).is_ok()
        );
    }
}
