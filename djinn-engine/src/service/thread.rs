//! A service on a thread of its own, and its clients.

mod pool;
mod transfer;
mod worker;

pub use pool::{LoadError, Pool, PoolModel, Residence};

use super::logits::AskedLogits;
use super::tracing::TraceWish;
use super::transfer::TransferCommand;
use super::{Answer, Happening, Occupancy, Opening, Service, Snapshot};
use crate::debug::{DebugWork, Debugger};
use crate::{Error, Result, Trace, Turn};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use djinn_device::Ops;
use djinn_scheduler::{SessionEvent, SessionId, SessionReport, Signal, SignalAnswer};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use worker::Worker;

/// Gets what happens to a session, on the service's thread, and must not wait. False ends the session, or its turn if it
/// [outlives its listener](Opening::outlives_listener). It is dropped when the session is gone.
pub type Listener = Box<dyn FnMut(Happening) -> bool + Send>;

enum Command {
    Open(Box<Opening>, Listener, Answer<SessionId>),
    Turn(SessionId, Turn, Answer<()>),
    Prompt(SessionId, Box<Prompt>, Answer<u64>),
    Fork(SessionId, Answer<SessionId>),
    Rollback(SessionId, u64, Answer<u64>),
    Signal(SessionId, Signal, Answer<SignalAnswer>),
    Event(SessionId, SessionEvent, Answer<()>),
    Count(Answer<Occupancy>),
    Snapshot(Answer<Snapshot>),
    Trace(TraceWish),
    Logits(AskedLogits),
    Report(Vec<SessionId>, Answer<Vec<Option<SessionReport>>>),
    Debug(DebugWork),
    Transfer(TransferCommand),
    Retire(Retirement),
}

impl Command {
    /// Refuses what would begin a turn, because the service ends; gives all else back.
    fn refuse(self, why: &str) -> Option<Command> {
        let error = Error::Retired { why: why.to_owned() };
        match self {
            Command::Open(_, _, answer) | Command::Fork(_, answer) => answer(Err(error)),
            Command::Turn(_, _, answer) => answer(Err(error)),
            Command::Prompt(_, _, answer) => answer(Err(error)),
            Command::Logits(asked) => (asked.answer)(Err(error)),
            other => return Some(other),
        }
        None
    }

    /// Refuses whatever it asks, because the model cannot be loaded. What only asks how things are gets no answer.
    fn fail(self, why: &str) {
        let error = || Error::Retired { why: why.to_owned() };
        match self {
            Command::Open(_, _, answer) | Command::Fork(_, answer) => answer(Err(error())),
            Command::Turn(_, _, answer) => answer(Err(error())),
            Command::Prompt(_, _, answer) | Command::Rollback(_, _, answer) => answer(Err(error())),
            Command::Signal(_, _, answer) => answer(Err(error())),
            Command::Event(_, _, answer) => answer(Err(error())),
            Command::Trace(TraceWish::Begin(_, answer)) => answer(Err(error())),
            Command::Transfer(command) => command.fail(error()),
            Command::Logits(asked) => (asked.answer)(Err(error())),
            Command::Count(_)
            | Command::Snapshot(_)
            | Command::Report(..)
            | Command::Trace(TraceWish::End(_))
            | Command::Debug(_)
            | Command::Retire(_) => {}
        }
    }

    /// Whether a model is loaded for it. All else is about sessions, and a model that is not loaded has none.
    fn loads(&self) -> bool {
        self.begins_turn() || matches!(self, Command::Transfer(_))
    }

    /// Whether it takes the device at once.
    fn takes_device(&self) -> bool {
        matches!(self, Command::Debug(_) | Command::Trace(_) | Command::Transfer(_) | Command::Logits(_))
    }

    /// Whether it may begin a turn, or other work of the kind.
    fn begins_turn(&self) -> bool {
        let is_turn =
            matches!(self, Command::Open(..) | Command::Turn(..) | Command::Prompt(..) | Command::Fork(..));
        is_turn || matches!(self, Command::Logits(_))
    }
}

/// How a service is told to end.
struct Retirement {
    why: String,
    /// Sessions that compute by then are broken off.
    until: Instant,
}

/// A turn with the whole conversation, for a session that lives.
struct Prompt {
    turn: Turn,
    priority: i32,
    listener: Listener,
}

/// Talks to a service from any thread. When the last one is dropped, the service ends with its sessions.
#[derive(Clone, Debug)]
pub struct Client {
    commands: Sender<Command>,
}

/// What clients ask of a service that is still to come.
pub struct Inbox {
    commands: Receiver<Command>,
    after_telling: Box<dyn FnMut() + Send>,
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").field("commands", &self.commands.len()).finish()
    }
}

impl Inbox {
    /// Calls `done` on the service's thread whenever its listeners were told what has happened, after the last of them: what
    /// they gathered can be passed on in one piece. It must not wait.
    #[must_use]
    pub fn after_telling(self, done: impl FnMut() + Send + 'static) -> Self {
        Inbox { after_telling: Box::new(done), ..self }
    }

    /// Runs a service on this thread until its last client is dropped.
    ///
    /// # Errors
    /// The engine failed, or was [retired](Client::retire): all sessions are lost, and clients are told so from now on.
    pub fn serve<D: Ops>(self, service: Service<D>) -> Result<()> {
        let Inbox { commands, mut after_telling } = self;
        let mut worker = Worker::new(service);
        loop {
            if worker.is_over() {
                return Err(Error::Retired { why: worker.end()? });
            }
            let command = match worker.idle_for() {
                Some(wait) => commands.recv_timeout(wait),
                None => commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match command {
                Ok(command) => worker.obey(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return worker.end().map(drop),
            }
            while let Ok(command) = commands.try_recv() {
                worker.obey(command);
            }
            worker.advance(&mut after_telling)?;
        }
    }
}

impl Client {
    /// A client, and the inbox to [serve](Inbox::serve) on another thread. Commands wait until then.
    pub fn pair() -> (Client, Inbox) {
        let (commands, inbox) = unbounded();
        (Client { commands }, Inbox { commands: inbox, after_telling: Box::new(|| ()) })
    }

    /// Whether both talk to the same service.
    pub fn is_same(&self, other: &Client) -> bool {
        self.commands.same_channel(&other.commands)
    }

    /// Opens a session. What happens to it comes from the receiver; dropping that ends the session. The channel
    /// closes when the session is gone.
    ///
    /// # Errors
    /// As [`Service::open`], or [`Error::Stopped`] if the service has ended.
    pub fn open(&self, opening: Opening) -> Result<(SessionId, Receiver<Happening>)> {
        let (sender, happenings) = unbounded();
        let listener: Listener = Box::new(move |happening| sender.send(happening).is_ok());
        let id = self.ask(|answer| Command::Open(Box::new(opening), listener, answer))?;
        Ok((id, happenings))
    }

    /// [`open`](Self::open) without waiting: `answer` gets its result, and `listener` what happens, both on the service's
    /// thread, where they must not wait. If the service has ended, both are dropped.
    pub fn begin_open(
        &self,
        opening: Opening,
        listener: Listener,
        answer: impl FnOnce(Result<SessionId>) + Send + 'static,
    ) {
        self.tell(Command::Open(Box::new(opening), listener, Box::new(answer)));
    }

    /// [`Service::prompt`] without waiting, as in [`begin_open`](Self::begin_open): for a session that outlives its
    /// listener, which is replaced. A turn that the client has ended may end first; where the new one is ended before
    /// that, it does not begin, and `answer` is dropped.
    pub fn begin_prompt(
        &self,
        id: SessionId,
        turn: Turn,
        priority: i32,
        listener: Listener,
        answer: impl FnOnce(Result<u64>) + Send + 'static,
    ) {
        let prompt = Box::new(Prompt { turn, priority, listener });
        self.tell(Command::Prompt(id, prompt, Box::new(answer)));
    }

    /// [`Service::fork`] without waiting, as in [`begin_open`](Self::begin_open). The session has no listener yet.
    pub fn begin_fork(&self, id: SessionId, answer: impl FnOnce(Result<SessionId>) + Send + 'static) {
        self.tell(Command::Fork(id, Box::new(answer)));
    }

    /// [`signal`](Self::signal) without waiting.
    pub fn begin_signal(
        &self,
        id: SessionId,
        signal: Signal,
        answer: impl FnOnce(Result<SignalAnswer>) + Send + 'static,
    ) {
        self.tell(Command::Signal(id, signal, Box::new(answer)));
    }

    /// [`event`](Self::event) without waiting.
    pub fn begin_event(
        &self,
        id: SessionId,
        event: SessionEvent,
        answer: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        self.tell(Command::Event(id, event, Box::new(answer)));
    }

    /// Tells `answer` how sessions are, as [`begin_count`](Self::begin_count) does: for each, `None` if it is gone.
    pub fn begin_report(
        &self,
        ids: Vec<SessionId>,
        answer: impl FnOnce(Result<Vec<Option<SessionReport>>>) + Send + 'static,
    ) {
        self.tell(Command::Report(ids, Box::new(answer)));
    }

    /// Gives `work` a [`Debugger`] on the service's thread, where it must not wait. If the service has ended, it is dropped.
    pub fn begin_debug(&self, work: impl FnOnce(&mut dyn Debugger) + Send + 'static) {
        self.tell(Command::Debug(Box::new(work)));
    }

    /// Ends a session without waiting for it: its pages are free after the step that it is in.
    pub fn abort(&self, id: SessionId) {
        // It may have ended by itself.
        self.begin_event(id, SessionEvent::Abort, |_| ());
    }

    /// Ends the service, and with it [`Inbox::serve`], once no session computes or waits for pages, or after `within`. No
    /// turn begins from now on: clients get [`Error::Retired`].
    pub fn retire(&self, why: String, within: Duration) {
        self.tell(Command::Retire(Retirement { why, until: Instant::now() + within }));
    }

    /// Tells `answer` what the service holds, on the service's thread; drops it if the service has ended.
    pub fn begin_count(&self, answer: impl FnOnce(Occupancy) + Send + 'static) {
        self.tell(Command::Count(Box::new(|counted| {
            if let Ok(occupancy) = counted {
                answer(occupancy);
            }
        })));
    }

    /// Computes the logits of every position of `tokens` between two steps, in pages that no session holds, and gives
    /// them to `answer`: see [`Service::logits`]. Sessions wait meanwhile.
    pub fn begin_logits(&self, tokens: Vec<u32>, answer: impl FnOnce(Result<Vec<f32>>) + Send + 'static) {
        self.tell(Command::Logits(AskedLogits { tokens, answer: Box::new(answer) }));
    }

    /// Tells `answer` all that people may see of the service, as [`begin_count`](Self::begin_count) does.
    pub fn begin_snapshot(&self, answer: impl FnOnce(Snapshot) + Send + 'static) {
        self.tell(Command::Snapshot(Box::new(|taken| {
            if let Ok(snapshot) = taken {
                answer(snapshot);
            }
        })));
    }

    /// Begins a trace between two steps, in place of one that runs; it ends by itself after `most`, or when it has grown
    /// large. `answer` gets whether it has begun; see [`Service::start_trace`].
    pub fn begin_trace(&self, most: Duration, answer: impl FnOnce(Result<()>) + Send + 'static) {
        self.tell(Command::Trace(TraceWish::Begin(most, Box::new(answer))));
    }

    /// Ends the trace between two steps, and gives it to `answer`; `None` if there is none.
    pub fn end_trace(&self, answer: impl FnOnce(Option<Trace>) + Send + 'static) {
        self.tell(Command::Trace(TraceWish::End(Box::new(answer))));
    }

    /// As [`Service::turn`].
    ///
    /// # Errors
    /// As [`Service::turn`], or [`Error::Stopped`] if the service has ended.
    pub fn turn(&self, id: SessionId, turn: Turn) -> Result<()> {
        self.ask(|answer| Command::Turn(id, turn, answer))
    }

    /// As [`Service::rollback`].
    ///
    /// # Errors
    /// As [`Service::rollback`], or [`Error::Stopped`] if the service has ended.
    pub fn rollback(&self, id: SessionId, tokens: u64) -> Result<u64> {
        self.ask(|answer| Command::Rollback(id, tokens, answer))
    }

    /// As [`Service::signal`]; while a step runs as well.
    ///
    /// # Errors
    /// [`Error::Stopped`] if the service has ended.
    pub fn signal(&self, id: SessionId, signal: Signal) -> Result<SignalAnswer> {
        self.ask(|answer| Command::Signal(id, signal, answer))
    }

    /// As [`Service::event`].
    ///
    /// # Errors
    /// As [`Service::event`], or [`Error::Stopped`] if the service has ended.
    pub fn event(&self, id: SessionId, event: SessionEvent) -> Result<()> {
        self.ask(|answer| Command::Event(id, event, answer))
    }

    fn ask<T: Send + 'static>(&self, command: impl FnOnce(Answer<T>) -> Command) -> Result<T> {
        let ended = || Error::Stopped("the service has ended".to_owned());
        let (sender, answered) = crossbeam_channel::bounded(1);
        // Clients that do not wait for their answer are no failure.
        let answer = Box::new(move |result| drop(sender.send(result)));
        self.commands.send(command(answer)).map_err(|_| ended())?;
        answered.recv().unwrap_or_else(|_| Err(ended()))
    }

    /// A service that has ended has no session to act on: the command is dropped.
    fn tell(&self, command: Command) {
        let _ = self.commands.send(command);
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
    let (client, inbox) = Client::pair();
    let (made, is_made) = crossbeam_channel::bounded(1);
    let run = move || match make() {
        Ok(service) => {
            // The caller waits for it.
            let _ = made.send(Ok(()));
            inbox.serve(service)
        }
        Err(error) => {
            let _ = made.send(Err(error));
            Ok(())
        }
    };
    let thread = std::thread::Builder::new().name("djinn-engine".to_owned()).spawn(run);
    let thread = thread.map_err(|error| Error::Stopped(format!("no thread for the service: {error}")))?;
    match is_made.recv() {
        Ok(Ok(())) => Ok((client, thread)),
        Ok(Err(error)) => Err(error),
        Err(_) => match thread.join() {
            Ok(_) => Err(Error::Stopped("the service ended while it was made".to_owned())),
            Err(panic) => std::panic::resume_unwind(panic),
        },
    }
}
