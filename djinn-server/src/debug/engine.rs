//! Requests to the engine about a session, and the answers to its refusals.

use crate::ApiError;
use crate::ask::ask;
use crate::debug::hooks;
use crate::sessions::EngineSession;
use djinn_engine::debug::{AttentionScores, Debugger, KvEdit, Look, Looked, PausedAt};
use djinn_engine::{Error as EngineError, SessionId};
use djinn_srg::Graph;

/// Does `work` on the engine's thread, for one of its sessions.
///
/// # Errors
/// The engine's refusals; 409 if it does not have the session any more.
pub(crate) async fn debug<T: Send + 'static>(
    session: &EngineSession,
    graph: &Graph,
    work: impl FnOnce(&mut dyn Debugger, SessionId) -> djinn_engine::Result<T> + Send + 'static,
) -> Result<T, ApiError> {
    let id = session.id;
    let answer = ask(|answer| session.client.begin_debug(move |debugger| answer(work(debugger, id)))).await;
    told(answer, graph)
}

/// Where a session is paused.
///
/// # Errors
/// As [`debug`]; 409 if the session is not paused.
pub(crate) async fn paused_at(session: &EngineSession, graph: &Graph) -> Result<PausedAt, ApiError> {
    debug(session, graph, |debugger, id| Ok(debugger.paused_at(id))).await?.ok_or_else(not_paused)
}

/// Reads a paused session.
///
/// # Errors
/// As [`debug`]; 409 if the session is not paused.
pub(crate) async fn look(session: &EngineSession, graph: &Graph, look: Look) -> Result<Looked, ApiError> {
    let id = session.id;
    let look = ask(|answer| session.client.begin_debug(move |debugger| debugger.look(id, look, answer)));
    told(look.await, graph)
}

/// Reads the queries and keys of a block of a paused session.
///
/// # Errors
/// As [`look`].
pub(crate) async fn attention(
    session: &EngineSession,
    graph: &Graph,
    layer: u32,
) -> Result<AttentionScores, ApiError> {
    let id = session.id;
    let read = ask(|answer| {
        session.client.begin_debug(move |debugger| debugger.attention(id, layer, answer));
    });
    told(read.await, graph)
}

/// Changes keys or values of a paused session.
///
/// # Errors
/// As [`look`]; 400 for a number that the cache cannot represent.
pub(crate) async fn edit_cache(session: &EngineSession, graph: &Graph, edit: KvEdit) -> Result<(), ApiError> {
    let id = session.id;
    let written = ask(|answer| {
        session.client.begin_debug(move |debugger| debugger.edit_cache(id, edit, answer));
    });
    match written.await {
        Some(Err(error @ EngineError::Intervention { .. })) => {
            Err(ApiError::field("values", error.to_string()))
        }
        answer => told(answer, graph),
    }
}

/// `None`: the answer was dropped, since the session or the engine is gone.
fn told<T>(answer: Option<djinn_engine::Result<T>>, graph: &Graph) -> Result<T, ApiError> {
    match answer {
        Some(Ok(told)) => Ok(told),
        Some(Err(error)) => Err(refusal(&error, graph)),
        None => Err(gone()),
    }
}

fn gone() -> ApiError {
    ApiError::conflict("the session ended meanwhile", "session_without_state")
}

/// The client's error for an engine's refusal.
pub(crate) fn refusal(error: &EngineError, graph: &Graph) -> ApiError {
    match error {
        EngineError::NotPaused { .. } => not_paused(),
        EngineError::NoSession { .. } => gone(),
        EngineError::UnknownHook(name) => match hooks::find(graph, name, "hook") {
            Err(error) => error,
            Ok(_) => ApiError::failed(error.to_string()),
        },
        EngineError::Intervention { .. } => ApiError::field("hook", error.to_string()),
        error => ApiError::of_engine(error, "id"),
    }
}

pub(crate) fn not_paused() -> ApiError {
    let message = "the session is not paused at a breakpoint; wait for it at /v1/sessions/{id}/pause";
    ApiError::conflict(message, "session_not_paused")
}
