//! Stored responses, within bounds.

use crate::ApiError;
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

/// A response, its own input, and the response that it continues.
#[derive(Debug)]
pub(super) struct Kept {
    tenant: Option<Tenant>,
    previous: Option<String>,
    /// The session that it was a turn of.
    session: Option<String>,
    input: Vec<Value>,
    body: Value,
    /// Bytes of input and body as JSON.
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
        let bytes = length(&body) + input.iter().map(length).sum::<usize>();
        Kept { tenant, previous, session: None, input, body, bytes, used: 0, cancel: None }
    }

    /// The same as a turn of a session.
    pub(super) fn in_session(self, session: Option<String>) -> Self {
        Kept { session, ..self }
    }

    fn id(&self) -> &str {
        self.body["id"].as_str().unwrap_or_default()
    }
}

fn length(value: &Value) -> usize {
    value.to_string().len()
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
        let id = entry.id().to_owned();
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
    ) -> Result<(Vec<Value>, Option<String>), ApiError> {
        let mut entries = self.entries();
        let mut session = None;
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
            let output = entry.body["output"].as_array().cloned().unwrap_or_default();
            turns.push([entry.input.clone(), output].concat());
            next = entry.previous.clone();
        }
        turns.reverse();
        Ok((turns.concat(), session))
    }

    fn with<T>(
        &self,
        id: &str,
        tenant: Option<Tenant>,
        read: impl FnOnce(&Kept) -> T,
    ) -> Result<T, ApiError> {
        self.entries().entry(id, tenant).map(|entry| read(entry)).ok_or_else(|| not_found(id))
    }

    /// The response's body.
    pub(super) fn body(&self, id: &str, tenant: Option<Tenant>) -> Result<Value, ApiError> {
        self.with(id, tenant, |entry| entry.body.clone())
    }

    /// The response's own input.
    pub(super) fn input(&self, id: &str, tenant: Option<Tenant>) -> Result<Vec<Value>, ApiError> {
        self.with(id, tenant, |entry| entry.input.clone())
    }

    /// Deletes a response, and cancels it if it runs. Returns its session.
    pub(super) fn delete(&self, id: &str, tenant: Option<Tenant>) -> Result<Option<String>, ApiError> {
        let mut entries = self.entries();
        entries.entry(id, tenant).ok_or_else(|| not_found(id))?;
        let entry = entries.remove(id).ok_or_else(|| not_found(id))?;
        entry.cancel.iter().for_each(|cancel| cancel.notify_one());
        Ok(entry.session)
    }

    /// Cancels a running response. Returns its body.
    pub(super) fn cancel(&self, id: &str, tenant: Option<Tenant>) -> Result<Value, ApiError> {
        let mut entries = self.entries();
        let entry = entries.entry(id, tenant).ok_or_else(|| not_found(id))?;
        if entry.body["status"] == "cancelled" {
            return Ok(entry.body.clone());
        }
        let Some(cancel) = entry.cancel.take() else {
            return Err(ApiError::invalid(format!("the response `{id}` has ended already")));
        };
        cancel.notify_one();
        entry.body["status"] = json!("cancelled");
        Ok(entry.body.clone())
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
        let (id, cancel) = (kept.id().to_owned(), Arc::new(Notify::new()));
        server.responses.entries().insert(Kept { cancel: Some(Arc::clone(&cancel)), ..kept });
        Keeping { server: Arc::clone(server), id, cancel, has_ended: false }
    }

    /// Waits until the response is cancelled.
    pub(super) async fn cancelled(&self) {
        self.cancel.notified().await;
    }

    /// Stores the finished response, unless it was deleted.
    pub(super) fn finish(mut self, body: Value) {
        self.has_ended = true;
        let mut entries = self.server.responses.entries();
        if let Some(entry) = entries.remove(&self.id) {
            let kept = Kept::new(entry.tenant, entry.previous, entry.input, body);
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
            entry.body["status"] = json!("cancelled");
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
        let store = ResponseStore::default();
        store.entries().insert(kept("a", None, "1"));
        store.entries().insert(kept("b", Some("a"), "2"));
        let all = json!([{ "in": "1" }, { "out": "1" }, { "in": "2" }, { "out": "2" }]);
        assert_eq!(Value::from(store.items("b", None).unwrap().0), all);
        store.delete("a", None).unwrap();
        let error = store.items("b", None).unwrap_err();
        assert_eq!(
            (error.status, error.code),
            (StatusCode::BAD_REQUEST, Some("previous_response_not_found"))
        );
        assert_eq!(store.delete("a", None).unwrap_err().status, StatusCode::NOT_FOUND);
    }

    #[test]
    fn what_was_not_used_for_longest_goes_first() {
        let store = ResponseStore::default();
        let large = "x".repeat(MOST_BYTES / 8);
        for id in ["a", "b", "c"] {
            store.entries().insert(kept(id, None, &large));
        }
        assert!(store.body("a", None).is_ok());
        store.entries().insert(kept("d", None, &large));
        assert_eq!(store.body("b", None).unwrap_err().status, StatusCode::NOT_FOUND);
        for id in ["a", "c", "d"] {
            assert!(store.body(id, None).is_ok(), "{id}");
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
        assert!(store.body("9", None).is_err() && store.body("10", None).is_ok());
    }
}
