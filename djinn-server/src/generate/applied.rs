//! The report of an answer about steering and edits: how many tokens they changed.

use super::Piece;
use crate::ApiError;
use crate::SessionUse;
use crate::debug::debug;
use crate::model::ServedModel;
use crate::sessions::EngineSession;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tokio::sync::oneshot;

/// Names, with the number of tokens changed under each.
type Counts = Vec<(String, u64)>;

/// Collects these numbers at the end of each answer of a request.
#[derive(Default)]
pub(super) struct Applied {
    /// Finished answers, with their last pieces, until the engine has reported.
    waiting: Vec<(usize, Piece, oneshot::Receiver<Counts>)>,
    told: BTreeMap<String, u64>,
}

impl Applied {
    /// Requests the numbers for the session of an answer with this last piece.
    pub(super) fn ask(&mut self, at: usize, last: Piece, session: Option<EngineSession>) {
        let (answer, answered) = oneshot::channel();
        if let Some(EngineSession { client, id }) = session {
            client.begin_debug(move |debugger| {
                // The client may have left.
                let _ = answer.send(debugger.applied(id).unwrap_or_default());
            });
        }
        self.waiting.push((at, last, answered));
    }

    /// The next finished answer that the engine has reported on; `None` if there is none. Dropping the future loses
    /// nothing.
    pub(super) async fn ended(&mut self) -> Option<(usize, Piece)> {
        let (.., answered) = self.waiting.first_mut()?;
        let counts = answered.await.unwrap_or_default();
        let (at, last, _) = self.waiting.remove(0);
        for (name, tokens) in counts {
            *self.told.entry(name).or_default() += tokens;
        }
        Some((at, last))
    }

    /// The object `djinn` of an answer, if anything was changed.
    pub(super) fn json(&self) -> Option<Value> {
        let one = |(name, tokens): (&String, &u64)| json!({ "name": name, "tokens": tokens });
        let steering: Vec<Value> = self.told.iter().filter(|(_, tokens)| **tokens > 0).map(one).collect();
        (!steering.is_empty()).then(|| json!({ "steering": steering }))
    }
}

/// Refuses a request for a session that is stopped at a breakpoint, and updates the session's breakpoints.
///
/// # Errors
/// 409 if the session is paused.
pub(super) async fn check_free(
    model: &ServedModel,
    using: &SessionUse,
    engine: &EngineSession,
) -> Result<(), ApiError> {
    let told = debug(engine, model.graph(), |debugger, id| {
        Ok((debugger.paused_at(id).is_some(), debugger.breakpoints(id)?))
    });
    // A lost session is opened again.
    let Ok((is_paused, breakpoints)) = told.await else { return Ok(()) };
    if is_paused {
        let message = format!("the session `{}` is paused at a breakpoint; resume it first", using.id);
        return Err(ApiError::conflict(message, "session_paused"));
    }
    let key = (using.tenant.clone(), using.id.clone());
    model.sessions.update_breakpoints(&key, engine.id, &breakpoints);
    Ok(())
}
