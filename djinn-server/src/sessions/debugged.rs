//! Breakpoints and steering in a session's record.

use super::table::{Key, Record};
use super::{EngineSession, SessionTable, SessionUse};
use crate::debug::Armed;
use crate::{ApiError, SteeringUse};
use djinn_engine::SessionId;
use djinn_engine::debug::{Breakpoint, BreakpointId};
use std::sync::Arc;

impl Record {
    /// Updates a session that the engine has opened with `armed`, whose breakpoints it numbers from 1: breakpoints
    /// that were added or removed meanwhile are added or removed there, and noted in `table`.
    pub(super) fn opened(
        &mut self,
        session: &EngineSession,
        armed: &[(u64, Breakpoint)],
        table: &Arc<SessionTable>,
        key: &Key,
    ) {
        let id = |place: usize| BreakpointId(place as u64 + 1);
        for own in &mut self.breakpoints {
            let place = armed.iter().position(|&(number, _)| number == own.number);
            own.before = own.hits;
            own.at = place.map(|place| (session.id, id(place)));
            if place.is_none() && !own.is_spent() {
                own.begin_arming(session, table, key);
            }
        }
        for (place, (number, _)) in armed.iter().enumerate() {
            if self.breakpoints.iter().all(|own| own.number != *number) {
                let (client, session) = (&session.client, session.id);
                // It may have ended by then.
                client.begin_debug(move |debugger| drop(debugger.clear_breakpoint(session, id(place))));
            }
        }
    }
}

impl Armed {
    /// Arms it in the engine, and notes that in `table`; if it was deleted meanwhile, it is removed again. A breakpoint
    /// without room stays unarmed, and is shown so.
    fn begin_arming(&self, session: &EngineSession, table: &Arc<SessionTable>, key: &Key) {
        let (number, breakpoint) = (self.number, self.again());
        let (client, session, table, key) = (&session.client, session.id, Arc::clone(table), key.clone());
        client.begin_debug(move |debugger| {
            let at = debugger.set_breakpoint(session, breakpoint).ok();
            let mut is_kept = false;
            table.change(&key, |record| {
                if let Some(own) = record.breakpoints.iter_mut().find(|armed| armed.number == number) {
                    own.at = at.map(|at| (session, at));
                    is_kept = true;
                }
            });
            if let Some(at) = at.filter(|_| !is_kept) {
                // The session may be gone.
                let _ = debugger.clear_breakpoint(session, at);
            }
        });
    }
}

impl SessionTable {
    /// A session's breakpoints, as last known.
    pub(crate) fn breakpoints(&self, key: &Key) -> Vec<Armed> {
        self.record(key).map_or_else(Vec::new, |record| record.breakpoints)
    }

    /// Adds a breakpoint, which may be armed in the engine; if the engine has opened the session meanwhile, it is armed
    /// there. `None` if the session is gone.
    pub(crate) fn add_breakpoint(
        self: &Arc<Self>,
        key: &Key,
        breakpoint: Breakpoint,
        at: Option<(SessionId, BreakpointId)>,
    ) -> Option<Armed> {
        let mut added = None;
        self.change(key, |record| {
            record.armed += 1;
            record.is_debugged = true;
            let armed = Armed { number: record.armed, breakpoint, at, hits: 0, before: 0 };
            let opened = record.engine.as_ref().filter(|engine| at.is_none_or(|(at, _)| at != engine.id));
            opened.iter().for_each(|engine| armed.begin_arming(engine, self, key));
            record.breakpoints.push(armed.clone());
            added = Some(armed);
        });
        added
    }

    /// Returns the breakpoint, and the session of the engine that may stop at it.
    pub(crate) fn remove_breakpoint(&self, key: &Key, number: u64) -> Option<(Armed, Option<EngineSession>)> {
        let mut removed = None;
        self.change(key, |record| {
            let at = record.breakpoints.iter().position(|armed| armed.number == number);
            removed = at.map(|at| (record.breakpoints.remove(at), record.engine.clone()));
        });
        removed
    }

    /// Records the engine's report on a session's breakpoints.
    pub(crate) fn update_breakpoints(
        &self,
        key: &Key,
        session: SessionId,
        told: &[(BreakpointId, Breakpoint, u64)],
    ) {
        self.change(key, |record| {
            for armed in &mut record.breakpoints {
                let own = told.iter().find(|(id, ..)| armed.at == Some((session, *id)));
                armed.hits = own.map_or(armed.hits, |(.., hits)| armed.before + hits);
            }
        });
    }

    /// Checks that edits are kept for a session's requests: those of all sessions take at most `most` bytes.
    ///
    /// # Errors
    /// 429 if they take more.
    pub(crate) fn check_steering(
        &self,
        key: &Key,
        steering: &SteeringUse,
        most: u64,
    ) -> Result<(), ApiError> {
        let (own, others) = (steering.bytes(), self.edit_bytes_besides(key));
        if own == 0 || own + others <= most {
            return Ok(());
        }
        let message = format!(
            "the edits take {own} bytes, and those of other sessions {others} of {most}; put them into requests, or \
             delete sessions"
        );
        Err(ApiError::busy(message))
    }

    /// Sets a session's default steering, and the digest of the steering of its keys and values.
    pub(crate) fn steer(&self, key: &Key, steering: SteeringUse, digest: Option<blake3::Hash>) {
        let steering = Some(Arc::new(steering));
        self.change(key, |record| (record.steering, record.steered) = (steering, digest));
    }

    /// The default steering of a request's session, if its client has set one.
    pub(crate) fn steering(&self, using: &SessionUse) -> Option<Arc<SteeringUse>> {
        self.record(&(using.tenant.clone(), using.id.clone()))?.steering
    }

    /// The engine's session of a request, if breakpoints may have stopped it.
    pub(crate) fn debugged(&self, using: &SessionUse) -> Option<EngineSession> {
        let record = self.record(&(using.tenant.clone(), using.id.clone()))?;
        record.engine.filter(|_| record.is_debugged)
    }
}
