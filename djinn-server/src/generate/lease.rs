//! An answer's hold on its session of the engine, from when it is asked for until the answer is over.

use crate::sessions::{EngineSession, Ticket, TurnResult};
use djinn_engine::{Client, Error, Listener, Opening, Result};
use djinn_scheduler::Error as SchedulerError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// A session whose turn ends when this is dropped, at whatever point. With a ticket the session lives on; else it ends.
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

/// What the engine was asked, until it answers.
pub(super) struct Asked {
    answered: Answered,
    /// The session that was given a turn, and what to open if it is lost.
    fallback: Option<(EngineSession, Opening, Listener)>,
}

impl Lease {
    /// Asks for a turn of `waiting`, the ticket's session, or for a session of its own.
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
        let turn = opening.turn.clone();
        session.client.begin_prompt(session.id, turn, opening.priority, listener(), move |begun| {
            // A client that has left reads no answer.
            let _ = answer.send(begun.map(drop));
        });
        (lease, Asked { answered, fallback: Some((session, opening, listener())) })
    }

    /// Waits until the engine has begun the turn; opens a session if the one that was to go on is lost. `None` if the
    /// engine is gone.
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
        self.client.begin_open(opening, listener, move |result| {
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
            // As above.
            let _ = answer.send(result.map(drop));
        });
        answered
    }

    fn state(&self) -> MutexGuard<'_, LeaseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its session, once the engine has opened it and until the turn is over.
    pub(super) fn session(&self) -> Option<EngineSession> {
        match &*self.state() {
            LeaseState::Open(session) => Some(session.clone()),
            LeaseState::Asked | LeaseState::Ended => None,
        }
    }

    /// Whether the client deleted the session while its turn ran.
    pub(super) fn is_deleted(&self) -> bool {
        self.ticket.as_ref().is_some_and(Ticket::is_deleted)
    }

    /// Ends the turn, which had a result or was left by its client.
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
