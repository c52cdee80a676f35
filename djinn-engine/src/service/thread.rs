//! A service on a thread of its own, and its clients.

use super::{Happening, Opening, Service};
use crate::{Error, Result, Turn};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use djinn_device::Ops;
use djinn_scheduler::{Event, SessionId, Signal, SignalAnswer};
use std::collections::BTreeMap;
use std::thread::JoinHandle;
use std::time::Duration;

/// While the device works, the thread looks at it as often.
const LOOK_EVERY: Duration = Duration::from_micros(50);

type Answer<T> = Sender<Result<T>>;

enum Command {
    Open(Box<Opening>, Sender<Happening>, Answer<SessionId>),
    Turn(SessionId, Turn, Answer<()>),
    Signal(SessionId, Signal, Answer<SignalAnswer>),
    Event(SessionId, Event, Answer<()>),
}

/// The service's thread has ended, since its engine failed or it was told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the service has stopped")]
pub struct Stopped;

/// Talks to a service from any thread. When the last one is dropped, the thread ends with its sessions.
#[derive(Clone, Debug)]
pub struct Client {
    commands: Sender<Command>,
}

impl Client {
    /// Opens a session. What happens to it comes from the receiver; dropping that ends the session. The channel
    /// closes when the session is gone.
    ///
    /// # Errors
    /// [`Stopped`], or within, what [`Service::open`] says.
    pub fn open(&self, opening: Opening) -> Result<Result<(SessionId, Receiver<Happening>)>, Stopped> {
        let (sender, happenings) = unbounded();
        let opened = self.ask(|answer| Command::Open(Box::new(opening), sender, answer))?;
        Ok(opened.map(|id| (id, happenings)))
    }

    /// As [`Service::turn`].
    ///
    /// # Errors
    /// [`Stopped`], or within, what [`Service::turn`] says.
    pub fn turn(&self, id: SessionId, turn: Turn) -> Result<Result<()>, Stopped> {
        self.ask(|answer| Command::Turn(id, turn, answer))
    }

    /// As [`Service::signal`]; while a step runs as well.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn signal(&self, id: SessionId, signal: Signal) -> Result<SignalAnswer, Stopped> {
        self.ask(|answer| Command::Signal(id, signal, answer))?.map_err(|_| Stopped)
    }

    /// As [`Service::event`].
    ///
    /// # Errors
    /// [`Stopped`], or within, what [`Service::event`] says.
    pub fn event(&self, id: SessionId, event: Event) -> Result<Result<()>, Stopped> {
        self.ask(|answer| Command::Event(id, event, answer))
    }

    fn ask<T>(&self, command: impl FnOnce(Answer<T>) -> Command) -> Result<Result<T>, Stopped> {
        let (answer, answered) = crossbeam_channel::bounded(1);
        self.commands.send(command(answer)).map_err(|_| Stopped)?;
        answered.recv().map_err(|_| Stopped)
    }
}

/// Runs a service on a thread of its own, which makes it, since devices may be bound to their thread. The handle gives
/// how the service ended.
///
/// # Errors
/// Those of `make`; no thread stays then.
pub fn spawn<D: Ops + 'static>(
    make: impl FnOnce() -> Result<Service<D>> + Send + 'static,
) -> Result<(Client, JoinHandle<Result<()>>)> {
    let (commands, inbox) = unbounded();
    let (made, is_made) = crossbeam_channel::bounded(1);
    let run = move || match make() {
        Ok(service) => {
            // The caller waits for it.
            let _ = made.send(Ok(()));
            Worker { service, inbox, clients: BTreeMap::new() }.run()
        }
        Err(error) => {
            let _ = made.send(Err(error));
            Ok(())
        }
    };
    let thread = std::thread::Builder::new().name("djinn-engine".to_owned()).spawn(run);
    let thread = thread.map_err(|error| Error::Stopped(format!("no thread for the service: {error}")))?;
    match is_made.recv() {
        Ok(Ok(())) => Ok((Client { commands }, thread)),
        Ok(Err(error)) => Err(error),
        Err(_) => match thread.join() {
            Ok(_) => Err(Error::Stopped("the service ended while it was made".to_owned())),
            Err(panic) => std::panic::resume_unwind(panic),
        },
    }
}

struct Worker<D: Ops> {
    service: Service<D>,
    inbox: Receiver<Command>,
    clients: BTreeMap<SessionId, Sender<Happening>>,
}

impl<D: Ops> Worker<D> {
    fn run(mut self) -> Result<()> {
        loop {
            let command = match self.service.idle_for() {
                Some(wait) => self.inbox.recv_timeout(wait.max(LOOK_EVERY)),
                None => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match command {
                Ok(command) => self.obey(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.service.into_engine().map(drop),
            }
            while let Ok(command) = self.inbox.try_recv() {
                self.obey(command);
            }
            for (id, happening) in self.service.advance()? {
                let ended = matches!(happening, Happening::Refused(_) | Happening::Failed(_));
                let gone = self.clients.get(&id).is_some_and(|client| client.send(happening).is_err());
                if gone {
                    // It may have ended by itself.
                    let _ = self.service.event(id, Event::Abort);
                }
                if gone || ended {
                    self.clients.remove(&id);
                }
            }
        }
    }

    /// Clients that do not wait for their answer are no failure.
    fn obey(&mut self, command: Command) {
        match command {
            Command::Open(opening, happenings, answer) => {
                let opened = self.service.open(*opening);
                if let Ok(id) = opened {
                    self.clients.insert(id, happenings);
                }
                let _ = answer.send(opened);
            }
            Command::Turn(id, turn, answer) => {
                let _ = answer.send(self.service.turn(id, turn));
            }
            Command::Signal(id, signal, answer) => {
                let _ = answer.send(Ok(self.service.signal(id, signal)));
            }
            Command::Event(id, event, answer) => {
                let done = self.service.event(id, event);
                if done.is_ok() && self.service.state().session(id).is_none_or(|s| s.is_ending()) {
                    self.clients.remove(&id);
                }
                let _ = answer.send(done);
            }
        }
    }
}
