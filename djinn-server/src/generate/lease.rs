//! An answer's hold on its session of the engine, from the request until the end of the answer.

use crate::blocking;
use crate::sessions::{EngineSession, Ticket, TurnResult};
use djinn_engine::{Client, Error, Listener, Opening, Result};
use djinn_scheduler::Error as SchedulerError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// A session whose turn ends when this is dropped, at any point. With a ticket the session lives on; otherwise it
/// ends.
pub(super) struct Lease {
    client: Client,
    state: Arc<Mutex<LeaseState>>,
    ticket: Option<Ticket>,
}

/// The engine's answer and the end of the lease may come in any order.
enum LeaseState {
    Asked,
    Open(EngineSession),
    Ended,
}

type Answered = oneshot::Receiver<Result<()>>;

/// A request to the engine that is not answered yet.
pub(super) struct Asked {
    answered: Answered,
    /// The session that got a turn, and what to open if it is lost.
    fallback: Option<(EngineSession, Opening, Listener)>,
}

impl Lease {
    /// Requests a turn of `waiting`, the ticket's session, or a new session.
    pub(super) fn ask(
        client: Client,
        opening: Opening,
        listener: impl Fn() -> Listener,
        ticket: Option<Ticket>,
        waiting: Option<EngineSession>,
    ) -> (Self, Asked) {
        let state = Arc::new(Mutex::new(LeaseState::Asked));
        let lease = Lease { client, state, ticket };
        let Some(session) = waiting else {
            let answered = lease.open(opening, listener());
            return (lease, Asked { answered, fallback: None });
        };
        let (answer, answered) = oneshot::channel();
        *lease.state() = LeaseState::Open(session.clone());
        let (turn, place) = (opening.turn.clone(), blocking::place());
        session.client.begin_prompt(session.id, turn, opening.priority, listener(), move |begun| {
            let _place = place;
            // The client may have left.
            let _ = answer.send(begun.map(drop));
        });
        (lease, Asked { answered, fallback: Some((session, opening, listener())) })
    }

    /// Waits until the engine has begun the turn. Opens a session if the one to continue is lost. `None` if the engine
    /// is gone.
    pub(super) async fn confirm(&self, asked: Asked) -> Option<Result<()>> {
        let Asked { answered, fallback } = asked;
        let answer = answered.await.ok();
        let Some((session, opening, listener)) = fallback else { return answer };
        if !answer.as_ref().is_none_or(is_lost) {
            return answer;
        }
        session.client.abort(session.id);
        *self.state() = LeaseState::Asked;
        self.open(opening, listener).await.ok()
    }

    fn open(&self, opening: Opening, listener: Listener) -> Answered {
        let (answer, answered) = oneshot::channel();
        let (state, client, ticket) = (Arc::clone(&self.state), self.client.clone(), self.ticket.clone());
        // A busy engine keeps the opening until it gets to it, also if the client has left.
        let place = blocking::place();
        self.client.begin_open(opening, listener, move |result| {
            let _place = place;
            if let Ok(id) = result {
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                match *state {
                    LeaseState::Ended => client.abort(id),
                    LeaseState::Asked | LeaseState::Open(_) => {
                        let session = EngineSession { client, id };
                        *state = LeaseState::Open(session.clone());
                        ticket.iter().for_each(|ticket| ticket.opened(session.clone()));
                    }
                }
            }
            let _ = answer.send(result.map(drop));
        });
        answered
    }

    fn state(&self) -> MutexGuard<'_, LeaseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its session, from its opening until the end of the turn.
    pub(super) fn session(&self) -> Option<EngineSession> {
        match &*self.state() {
            LeaseState::Open(session) => Some(session.clone()),
            LeaseState::Asked | LeaseState::Ended => None,
        }
    }

    /// Whether the client deleted the session during its turn.
    pub(super) fn is_deleted(&self) -> bool {
        self.ticket.as_ref().is_some_and(Ticket::is_deleted)
    }

    /// Ends the turn. `None`: its client has left.
    pub(super) fn end(&self, result: Option<TurnResult>) {
        let session = match std::mem::replace(&mut *self.state(), LeaseState::Ended) {
            LeaseState::Open(session) => Some(session),
            LeaseState::Asked => None,
            LeaseState::Ended => return,
        };
        match (&self.ticket, session) {
            (Some(ticket), session) => ticket.end(session, result),
            (None, Some(session)) => session.client.abort(session.id),
            (None, None) => {}
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.end(None);
    }
}

/// Whether a session cannot take a turn any more.
fn is_lost(answer: &Result<()>) -> bool {
    use SchedulerError::{Missing, NotNow};
    matches!(answer, Err(Error::NoSession { .. } | Error::Scheduler(Missing { .. } | NotNow { .. })))
}
