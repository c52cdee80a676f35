//! The HTTP layer's own time: from a token of the engine to the write of its event to the socket.
//!
//! A connection is one task, in which its streams are polled and its socket is written. What is known of it is kept with
//! the task, so that nothing between the two has to carry it.

use crate::metrics::Histogram;
use std::cell::Cell;
use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

tokio::task_local! {
    static CONNECTION: Connection;
}

struct Connection {
    times: Arc<Histogram>,
    /// When the engine told the earliest token that is in no event yet.
    told: Cell<Option<Instant>>,
    /// The same of the events that are not written yet.
    framed: Cell<Option<Instant>>,
    /// When the client last took bytes in for which it had let the server wait.
    taken: Cell<Option<Instant>>,
}

/// Runs a connection, whose times are counted.
pub(crate) async fn counted<F: Future>(times: Arc<Histogram>, connection: F) -> F::Output {
    let state = Connection { times, told: Cell::new(None), framed: Cell::new(None), taken: Cell::new(None) };
    CONNECTION.scope(state, connection).await
}

/// A stream begins.
pub(crate) fn stream_begins() {
    with(|connection| {
        connection.told.set(None);
        connection.framed.set(None);
    });
}

/// A token is about to become part of an event; the engine told it at `at`.
pub(crate) fn told(at: Instant) {
    with(|connection| connection.told.set(earlier(connection.told.get(), Some(at))));
}

/// All tokens that were told are in events that are given to the connection.
pub(crate) fn framed() {
    with(|connection| connection.framed.set(earlier(connection.framed.get(), connection.told.take())));
}

/// The socket was given all events to write. Time that the client takes is not counted.
pub(crate) fn written() {
    with(|connection| {
        if let Some(at) = connection.framed.take() {
            connection.times.observe(connection.taken.get().map_or(at, |taken| taken.max(at)).elapsed());
        }
    });
}

/// The client took bytes in, for which it had let the server wait.
pub(crate) fn taken() {
    with(|connection| connection.taken.set(Some(Instant::now())));
}

fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    a.into_iter().chain(b).min()
}

fn with(work: impl FnOnce(&Connection)) {
    // What is done outside of a connection has no times.
    let _ = CONNECTION.try_with(work);
}
