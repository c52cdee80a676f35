//! What the engine is asked of a session, and how its refusals are told.

use crate::ApiError;
use crate::debug::hooks;
use crate::sessions::{EngineSession, conflict};
use axum::http::StatusCode;
use djinn_engine::debug::{AttentionScores, Debugger, KvEdit, Look, Looked};
use djinn_engine::{Error as EngineError, SessionId};
use djinn_srg::Graph;
use tokio::sync::oneshot;

/// Does `work` on the engine's thread, for a session of it.
///
/// # Errors
/// What the engine refuses; 409 for a session that it does not have any more.
pub(crate) async fn debug<T: Send + 'static>(
    session: &EngineSession,
    graph: &Graph,
    work: impl FnOnce(&mut dyn Debugger, SessionId) -> djinn_engine::Result<T> + Send + 'static,
) -> Result<T, ApiError> {
    let (answer, answered) = oneshot::channel();
    let id = session.id;
    session.client.begin_debug(move |debugger| {
        // A client that has left reads no answer.
        let _ = answer.send(work(debugger, id));
    });
    told(answered.await.ok(), graph)
}

/// Reads a session that is paused.
///
/// # Errors
/// As [`debug`]; 409 for a session that is not paused.
pub(crate) async fn look(session: &EngineSession, graph: &Graph, look: Look) -> Result<Looked, ApiError> {
    let (answer, answered) = oneshot::channel();
    let id = session.id;
    session.client.begin_debug(move |debugger| {
        // As above.
        debugger.look(id, look, Box::new(|looked| drop(answer.send(looked))));
    });
    told(answered.await.ok(), graph)
}

/// Reads the queries and keys of a block, of a session that is paused.
///
/// # Errors
/// As [`look`].
pub(crate) async fn attention(
    session: &EngineSession,
    graph: &Graph,
    layer: u32,
) -> Result<AttentionScores, ApiError> {
    let (answer, answered) = oneshot::channel();
    let id = session.id;
    session.client.begin_debug(move |debugger| {
        // As above.
        debugger.attention(id, layer, Box::new(|read| drop(answer.send(read))));
    });
    told(answered.await.ok(), graph)
}

/// Writes over keys or values of a session that is paused.
///
/// # Errors
/// As [`look`]; 400 for a number that the cache cannot hold.
pub(crate) async fn edit_cache(session: &EngineSession, graph: &Graph, edit: KvEdit) -> Result<(), ApiError> {
    let (answer, answered) = oneshot::channel();
    let id = session.id;
    session.client.begin_debug(move |debugger| {
        // As above.
        debugger.edit_cache(id, edit, Box::new(|written| drop(answer.send(written))));
    });
    match answered.await.ok() {
        Some(Err(error @ EngineError::Intervention { .. })) => {
            Err(ApiError::field("values", error.to_string()))
        }
        answer => told(answer, graph),
    }
}

/// `None` stands for an answer that was dropped: the session is gone, or the engine.
fn told<T>(answer: Option<djinn_engine::Result<T>>, graph: &Graph) -> Result<T, ApiError> {
    match answer {
        Some(Ok(told)) => Ok(told),
        Some(Err(error)) => Err(refusal(&error, graph)),
        None => Err(gone()),
    }
}

fn gone() -> ApiError {
    conflict("the session ended meanwhile".to_owned(), "session_without_state")
}

/// How a client is told what the engine refuses.
pub(crate) fn refusal(error: &EngineError, graph: &Graph) -> ApiError {
    match error {
        EngineError::NotPaused { .. } => not_paused(),
        EngineError::NoSession { .. } => gone(),
        EngineError::UnknownHook(name) => match hooks::find(graph, name, "hook") {
            Err(error) => error,
            Ok(_) => ApiError::failed(error.to_string()),
        },
        EngineError::Intervention { .. } => ApiError::field("hook", error.to_string()),
        EngineError::HookMemory { need, have } => {
            let message = format!(
                "with this, a step may need {need} bytes of memory for hooks, and the server has {have} (--hook-memory); \
                 arm fewer hooks or fewer sessions at a time"
            );
            ApiError { code: Some("hook_memory"), ..ApiError::busy(message) }
        }
        error => ApiError::of_engine(error, "id"),
    }
}

/// 409.
pub(crate) fn not_paused() -> ApiError {
    let message = "the session is not paused at a breakpoint; wait for it at /v1/sessions/{id}/pause";
    let error = ApiError::refused(StatusCode::CONFLICT, message);
    ApiError { code: Some("session_not_paused"), ..error }
}
