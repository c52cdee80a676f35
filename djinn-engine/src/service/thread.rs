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

/// Gets the events of a session, on the service's thread, where it must not wait. Returning false ends the session, or
/// only its turn if it [outlives its listener](Opening::outlives_listener). It is dropped when the session is gone.
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
    /// Refuses a command that begins a turn, because the service is ending. Returns other commands.
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

    /// Refuses a command because the model cannot be loaded. Queries of the state get no answer.
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

    /// Whether it makes an unloaded model load. Other commands are about sessions, and an unloaded model has none.
    fn loads(&self) -> bool {
        self.begins_turn() || matches!(self, Command::Transfer(_))
    }

    /// Whether it begins a turn of a session that is there.
    fn is_turn_of(&self, id: SessionId) -> bool {
        matches!(self, Command::Turn(of, ..) | Command::Prompt(of, ..) if *of == id)
    }

    /// Whether it uses the device at once.
    fn takes_device<D: Ops>(&self, service: &Service<D>) -> bool {
        match self {
            Command::Transfer(command) => service.takes_device(command),
            _ => matches!(self, Command::Debug(_) | Command::Trace(_) | Command::Logits(_)),
        }
    }

    /// Whether it begins a turn, or similar work.
    fn begins_turn(&self) -> bool {
        let is_turn =
            matches!(self, Command::Open(..) | Command::Turn(..) | Command::Prompt(..) | Command::Fork(..));
        is_turn || matches!(self, Command::Logits(_) | Command::Transfer(TransferCommand::Import(..)))
    }
}

/// A request to end the service.
struct Retirement {
    why: String,
    /// When sessions that still compute are cancelled.
    until: Instant,
}

/// A turn with the whole conversation, for an open session.
struct Prompt {
    turn: Turn,
    priority: i32,
    listener: Listener,
}

/// A handle to a service for any thread. The service and its sessions end with the last one.
#[derive(Clone, Debug)]
pub struct Client {
    commands: Sender<Command>,
}

/// The commands for a service.
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
    /// Calls `done` on the service's thread after its listeners got all present events, so that these can be forwarded
    /// together. It must not wait.
    #[must_use]
    pub fn after_telling(self, done: impl FnMut() + Send + 'static) -> Self {
        Inbox { after_telling: Box::new(done), ..self }
    }

    /// Runs a service on this thread until its last client is dropped.
    ///
    /// # Errors
    /// The engine failed, or was [retired](Client::retire). All sessions are lost, and later commands get that error.
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

    /// Whether both belong to the same service.
    pub fn is_same(&self, other: &Client) -> bool {
        self.commands.same_channel(&other.commands)
    }

    /// Opens a session. The receiver gets its events; dropping it ends the session. The channel closes when the
    /// session is gone.
    ///
    /// # Errors
    /// As [`Service::open`], or [`Error::Stopped`] if the service has ended.
    pub fn open(&self, opening: Opening) -> Result<(SessionId, Receiver<Happening>)> {
        let (sender, happenings) = unbounded();
        let listener: Listener = Box::new(move |happening| sender.send(happening).is_ok());
        let id = self.ask(|answer| Command::Open(Box::new(opening), listener, answer))?;
        Ok((id, happenings))
    }

    /// [`open`](Self::open) without waiting. `answer` gets its result and `listener` the events, both on the service's
    /// thread, where they must not wait. Both are dropped if the service has ended.
    pub fn begin_open(
        &self,
        opening: Opening,
        listener: Listener,
        answer: impl FnOnce(Result<SessionId>) + Send + 'static,
    ) {
        self.tell(Command::Open(Box::new(opening), listener, Box::new(answer)));
    }

    /// [`Service::prompt`] without waiting, as [`begin_open`](Self::begin_open), for a session that outlives its
    /// listener. `listener` replaces the present one. A turn that its client has ended may end first. If the new turn
    /// is ended before it begins, `answer` is dropped.
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

    /// [`Service::fork`] without waiting, as [`begin_open`](Self::begin_open). The new session has no listener yet.
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

    /// Passes the state of sessions to `answer`, as [`begin_count`](Self::begin_count) does; `None` for those that are
    /// gone.
    pub fn begin_report(
        &self,
        ids: Vec<SessionId>,
        answer: impl FnOnce(Result<Vec<Option<SessionReport>>>) + Send + 'static,
    ) {
        self.tell(Command::Report(ids, Box::new(answer)));
    }

    /// Passes a [`Debugger`] to `work` on the service's thread, where it must not wait. Dropped if the service has
    /// ended.
    pub fn begin_debug(&self, work: impl FnOnce(&mut dyn Debugger) + Send + 'static) {
        self.tell(Command::Debug(Box::new(work)));
    }

    /// Ends a session without waiting. Its pages are free after its present step.
    pub fn abort(&self, id: SessionId) {
        // It may have ended already.
        self.begin_event(id, SessionEvent::Abort, |_| ());
    }

    /// Ends the service, and with it [`Inbox::serve`], when no session computes or waits for pages, at the latest
    /// after `within`. No turn begins from now on: clients get [`Error::Retired`].
    pub fn retire(&self, why: String, within: Duration) {
        let now = Instant::now();
        let until = now.checked_add(within).unwrap_or(now + Duration::from_secs(u32::MAX.into()));
        self.tell(Command::Retire(Retirement { why, until }));
    }

    /// Passes the numbers of sessions and pages to `answer`, on the service's thread. Dropped if the service has
    /// ended.
    pub fn begin_count(&self, answer: impl FnOnce(Occupancy) + Send + 'static) {
        self.tell(Command::Count(Box::new(|counted| {
            if let Ok(occupancy) = counted {
                answer(occupancy);
            }
        })));
    }

    /// Computes the logits of every position of `tokens` between two steps, in free pages, and passes them to
    /// `answer`: see [`Service::logits`]. Sessions wait meanwhile.
    pub fn begin_logits(&self, tokens: Vec<u32>, answer: impl FnOnce(Result<Vec<f32>>) + Send + 'static) {
        self.tell(Command::Logits(AskedLogits { tokens, answer: Box::new(answer) }));
    }

    /// Passes a snapshot to `answer`, as [`begin_count`](Self::begin_count) does.
    pub fn begin_snapshot(&self, answer: impl FnOnce(Snapshot) + Send + 'static) {
        self.tell(Command::Snapshot(Box::new(|taken| {
            if let Ok(snapshot) = taken {
                answer(snapshot);
            }
        })));
    }

    /// Begins a trace between two steps; it replaces a running one. It ends after `most`, or when it has grown large.
    /// `answer` gets the result; see [`Service::start_trace`].
    pub fn begin_trace(&self, most: Duration, answer: impl FnOnce(Result<()>) + Send + 'static) {
        self.tell(Command::Trace(TraceWish::Begin(most, Box::new(answer))));
    }

    /// Ends the trace between two steps, and passes it to `answer`; `None` if there is none.
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

    /// As [`Service::signal`], also while a step runs.
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
        // A client need not wait for its answer.
        let answer = Box::new(move |result| drop(sender.send(result)));
        self.commands.send(command(answer)).map_err(|_| ended())?;
        answered.recv().unwrap_or_else(|_| Err(ended()))
    }

    /// A service that has ended has no sessions, so the command is dropped.
    fn tell(&self, command: Command) {
        let _ = self.commands.send(command);
    }
}

/// Runs a service on a new thread, which creates it, since devices may be bound to their thread. The handle returns
/// how the service ended.
///
/// # Errors
/// Those of `make`. The thread then ends.
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
