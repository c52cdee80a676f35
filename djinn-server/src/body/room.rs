//! Room for bodies that are being read: JSON of a few bytes may take a hundred times as many as values.

use crate::ApiError;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Bytes that the values of all bodies may take at a time, besides those of small bodies.
const MOST: usize = 1 << 30;
/// A body of fewer bytes is small.
const SMALL: usize = 16 << 10;
/// The most bytes that one JSON value takes, from parsing until it has been translated.
const OF_VALUE: usize = 512;
/// The same for an object.
const OF_OBJECT: usize = 2 << 10;
/// A permit of the semaphore, in bytes.
const PERMIT: usize = 1 << 10;

/// Room that is given back when the last copy is dropped.
pub(crate) type RoomTaken = Arc<OwnedSemaphorePermit>;

/// Shared by all requests.
#[derive(Clone, Debug)]
pub(crate) struct ParsingRoom(Arc<Semaphore>);

impl Default for ParsingRoom {
    fn default() -> Self {
        ParsingRoom(Arc::new(Semaphore::new(MOST / PERMIT)))
    }
}

impl ParsingRoom {
    /// Room for a text's values, if it is there.
    ///
    /// # Errors
    /// 429 if it is not.
    pub(crate) fn try_take(&self, text: &[u8]) -> Result<Option<RoomTaken>, ApiError> {
        let Some(permits) = permits(text) else { return Ok(None) };
        let taken = Arc::clone(&self.0).try_acquire_many_owned(permits);
        taken.map(|permit| Some(Arc::new(permit))).map_err(|_| busy())
    }

    /// Room for a body's values, once others have given it back. One that would take all has all.
    ///
    /// # Errors
    /// 429 if there is none within this time.
    pub(crate) async fn take(&self, body: &[u8], within: Duration) -> Result<Option<RoomTaken>, ApiError> {
        let Some(permits) = permits(body) else { return Ok(None) };
        match timeout(within, Arc::clone(&self.0).acquire_many_owned(permits)).await {
            Ok(Ok(permit)) => Ok(Some(Arc::new(permit))),
            _ => Err(busy()),
        }
    }
}

fn busy() -> ApiError {
    ApiError::busy("other large requests are being read; try again later")
}

/// How much of the room a text needs; `None` for one that is small, or no JSON.
fn permits(text: &[u8]) -> Option<u32> {
    let is_json = matches!(text.trim_ascii_start().first(), Some(b'{' | b'['));
    (is_json && text.len() >= SMALL).then(|| (parsed_bytes(text).min(MOST) / PERMIT) as u32)
}

/// What the values of a body of JSON take, about.
fn parsed_bytes(body: &[u8]) -> usize {
    let (mut bytes, mut in_text, mut escaped) = (0, false, false);
    for &byte in body {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_text,
            b'"' => in_text = !in_text,
            _ if in_text => {}
            b',' | b'[' => bytes += OF_VALUE,
            b'{' => bytes += OF_OBJECT,
            _ => {}
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_outside_of_texts() {
        assert_eq!(parsed_bytes(br#"{"a": [1, {}, "[,\",{"]}"#), 2 * OF_OBJECT + 3 * OF_VALUE);
        assert_eq!(parsed_bytes(b"\"\\\\\"[,]"), 2 * OF_VALUE);
    }

    #[test]
    fn bodies_wait_for_each_other() {
        let room = ParsingRoom::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let take = |body: String| runtime.block_on(room.take(body.as_bytes(), Duration::ZERO));
        let bomb = || format!("{{\"x\":[{}0]}}", "{},".repeat(1 << 20));
        let text = || format!("{{\"x\":\"{}\"}}", "{},".repeat(1 << 14));
        let first = take(bomb()).unwrap();
        assert!(first.is_some());
        assert!(take("{\"x\":[{},{}]}".to_owned()).unwrap().is_none(), "it is small");
        assert_eq!(take(bomb()).unwrap_err().status, 429);
        drop(first);
        let (one, other) = (take(text()).unwrap(), take(text()).unwrap());
        assert!(one.is_some() && other.is_some());
    }
}
