//! Models that share a device, each with an inbox, on one thread.
//!
//! A model is loaded when a client first needs it. If it does not fit beside the loaded ones, models without a running
//! turn leave the device; the one that computed last goes last. Their sessions and copies of their weights stay in
//! host memory. Models that wait for room come in order. While one waits for models with running turns, these begin no
//! new turn. So no model waits forever, and none waits while it holds memory that another one needs.

use super::worker::{LOOK_EVERY, Worker};
use super::{Command, Inbox};
use crate::{Error, Result, Runtime, Service};
use crossbeam_channel::{Receiver, Select, TryRecvError};
use djinn_device::{Ops, Space};
use djinn_scheduler::SessionEvent;
use djinn_vmu::WeightSource;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Seconds from a failed load to the next attempt: after the first failure, the second, and so on. The last value
/// counts for all later ones.
const RETRY_AFTER: [u64; 4] = [1, 5, 15, 30];

/// Where a model is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Residence {
    /// Not loaded; with the reason if it cannot be.
    Unloaded(Option<String>),
    /// It is being loaded.
    Loading,
    /// On the device.
    Device,
    /// In host memory, with its sessions. Weights without a copy there are read again.
    Host,
}

/// Why a model is not loaded.
#[derive(Debug)]
pub enum LoadError {
    /// The device has no room for it beside others.
    NoRoom,
    /// Host memory has no room for it beside what is there, with the reason.
    NoHostRoom(String),
    /// Another reason, for this model only.
    Refused(String),
    /// The device failed, and with it all models.
    Failed(Error),
}

impl From<Error> for LoadError {
    fn from(error: Error) -> Self {
        use djinn_device::Error::{DeviceLost, OutOfMemory};
        match &error {
            Error::Device(device) => match device {
                OutOfMemory { space: Space::Device, .. } => LoadError::NoRoom,
                OutOfMemory { space: Space::Host, .. } => LoadError::NoHostRoom(error.to_string()),
                DeviceLost { .. } => LoadError::Failed(error),
                _ => LoadError::Refused(error.to_string()),
            },
            Error::Stopped(_) => LoadError::Failed(error),
            _ => LoadError::Refused(error.to_string()),
        }
    }
}

/// A model of a [`Pool`], as its owner describes it.
pub trait PoolModel<D: Ops> {
    /// The most bytes that it allocates on the device.
    fn device_bytes(&self) -> u64;

    /// Bytes that it needs in host memory while it is loaded: see [`Options::host_bytes`](crate::Options::host_bytes).
    fn host_bytes(&self) -> u64;

    /// Loads it. `progress` must be called often, with the bytes so far and in all: other models compute in it.
    ///
    /// # Errors
    /// Nothing of it stays on the runtime.
    fn load(
        &self,
        runtime: &Rc<Runtime<D>>,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Service<D>, LoadError>;

    /// Where weights without a copy in host memory are read again.
    fn source(&self) -> &dyn WeightSource;

    /// Reports the bytes of a load so far and in all. `Break` cancels a load that is not wanted any more.
    fn loading(&self, done: u64, total: u64) -> ControlFlow<()>;

    /// Reports where it is.
    fn residence_changed(&self, residence: Residence);
}

/// Models on one runtime.
pub struct Pool<D: Ops> {
    runtime: Rc<Runtime<D>>,
    members: Vec<Member<D>>,
}

struct Member<D: Ops> {
    model: Rc<dyn PoolModel<D>>,
    inbox: Receiver<Command>,
    after_telling: Box<dyn FnMut() + Send>,
    /// `None` before it is loaded.
    worker: Option<Worker<D>>,
    /// Commands that wait until the model is on the device, or may begin turns.
    waiting: VecDeque<Command>,
    waits_since: Option<Instant>,
    /// Whether to load it without a request.
    is_wanted: bool,
    /// It did not fit although it should have, so it gets the device alone.
    needs_all: bool,
    /// It begins no new turn, since another model waits.
    is_held: bool,
    /// It has no client any more.
    is_closed: bool,
    used: Instant,
    /// The id of the latest session before it was loaded.
    last_session: u64,
    failures: usize,
    /// Why it is not loaded, and until when.
    refused: Option<(String, Instant)>,
}

impl<D: Ops> Member<D> {
    fn is_on_device(&self) -> bool {
        self.worker.as_ref().is_some_and(|worker| !worker.service.engine().is_away())
    }

    fn is_busy(&self) -> bool {
        self.is_on_device() && self.worker.as_ref().is_some_and(|worker| worker.service.is_busy())
    }

    /// Whether it should be on the device and is not.
    fn wants_in(&self) -> bool {
        let wants = |worker: &Worker<D>| worker.service.wants_device();
        let is_due = self.retries_in().is_none_or(|left| left.is_zero());
        let asked = self.is_wanted || !self.waiting.is_empty() || self.worker.as_ref().is_some_and(wants);
        asked && is_due && !self.is_on_device()
    }

    /// The time until it is loaded or brought back again, after a failure.
    fn retries_in(&self) -> Option<Duration> {
        let (_, until) = self.refused.as_ref()?;
        Some(until.saturating_duration_since(Instant::now()))
    }

    /// Bytes of device memory that it still needs.
    fn missing_bytes(&self) -> u64 {
        let own = || self.model.device_bytes();
        self.worker.as_ref().map_or_else(own, |worker| worker.service.engine().missing_bytes())
    }

    fn take_commands(&mut self) {
        loop {
            match self.inbox.try_recv() {
                Ok(command) => self.take(command),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => return self.is_closed = true,
            }
        }
    }

    fn take(&mut self, command: Command) {
        let is_on_device = self.is_on_device();
        if let Command::Event(id, SessionEvent::EndTurn | SessionEvent::Abort | SessionEvent::End, _) =
            &command
        {
            // The event is for the session's latest turn, which may wait.
            self.waiting.retain(|later| !later.is_turn_of(*id));
        }
        match &mut self.worker {
            None if !command.loads() => command.fail("the model is not loaded"),
            None => match &self.refused {
                Some((why, until)) if Instant::now() < *until => command.fail(why),
                Some(_) | None => self.waiting.push_back(command),
            },
            Some(worker) if !is_on_device && command.takes_device(&worker.service) => {
                self.waiting.push_back(command);
            }
            Some(_) if command.begins_turn() && self.is_held => self.waiting.push_back(command),
            Some(worker) => worker.obey(command),
        }
    }

    /// Does all work that is possible at once.
    fn go_on(&mut self) -> Result<()> {
        self.take_commands();
        let is_on_device = self.is_on_device();
        if self.is_busy() {
            self.used = Instant::now();
        }
        let Some(worker) = &mut self.worker else { return Ok(()) };
        if !is_on_device {
            worker.advance_away(&mut self.after_telling);
            return Ok(());
        }
        if !self.is_held {
            self.waiting.drain(..).for_each(|command| worker.obey(command));
        }
        worker.advance(&mut self.after_telling)
    }

    /// Refuses all waiting commands with a reason. An unloaded model refuses later ones until the next attempt.
    fn refuse(&mut self, why: String) {
        let wait = RETRY_AFTER[self.failures.min(RETRY_AFTER.len() - 1)];
        self.failures += 1;
        // Clients see it before they are answered.
        self.model.residence_changed(match self.worker {
            Some(_) => Residence::Host,
            None => Residence::Unloaded(Some(why.clone())),
        });
        self.waiting.drain(..).for_each(|command| command.fail(&why));
        self.refused = Some((why, Instant::now() + Duration::from_secs(wait)));
    }

    /// Frees the model. Returns why it was told to end, if it was.
    fn unload(&mut self) -> Result<String> {
        let Some(worker) = self.worker.take() else { return Ok(String::new()) };
        self.last_session = worker.service.last_session();
        worker.end()
    }
}

impl<D: Ops> Pool<D> {
    /// A pool without models, on a runtime whose models [take turns](Runtime::in_turns).
    pub fn new(runtime: Rc<Runtime<D>>) -> Self {
        Pool { runtime, members: Vec::new() }
    }

    /// Adds a model with the `inbox` of its clients. It is loaded at once if `wanted`, and otherwise at the first
    /// command that needs it.
    pub fn add(&mut self, model: Box<dyn PoolModel<D>>, inbox: Inbox, wanted: bool) {
        self.members.push(Member {
            model: model.into(),
            inbox: inbox.commands,
            after_telling: inbox.after_telling,
            worker: None,
            waiting: VecDeque::new(),
            waits_since: None,
            is_wanted: wanted,
            needs_all: false,
            is_held: false,
            is_closed: false,
            used: Instant::now(),
            last_session: 0,
            failures: 0,
            refused: None,
        });
    }

    /// Serves until something comes from `control`, which it returns. Returns `None` if nothing can come any more and
    /// no model has a client.
    ///
    /// # Errors
    /// The device failed, or all loaded models were [retired](super::Client::retire): all sessions are lost.
    pub fn run<T>(&mut self, control: &Receiver<T>) -> Result<Option<T>> {
        let mut is_controlled = true;
        loop {
            match control.try_recv() {
                Ok(message) => return Ok(Some(message)),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => is_controlled = false,
            }
            self.members.iter_mut().try_for_each(Member::go_on)?;
            self.end_members()?;
            if self.members.is_empty() && !is_controlled {
                return Ok(None);
            }
            self.place()?;
            self.wait(is_controlled.then_some(control));
        }
    }

    /// Removes models without clients, and those that were told to end.
    fn end_members(&mut self) -> Result<()> {
        let mut at = 0;
        while at < self.members.len() {
            let is_over = self.members[at].worker.as_ref().is_some_and(Worker::is_over);
            if self.members[at].is_closed {
                self.members.remove(at).unload()?;
                continue;
            }
            if is_over {
                let why = self.members[at].unload()?;
                if self.members.iter().all(|member| member.worker.is_none()) {
                    return Err(Error::Retired { why });
                }
                self.members[at].is_wanted = true;
                self.members[at].model.residence_changed(Residence::Unloaded(None));
            }
            at += 1;
        }
        Ok(())
    }

    /// Brings waiting models to the device, in order, as long as there is room.
    fn place(&mut self) -> Result<()> {
        let now = Instant::now();
        for member in &mut self.members {
            match member.wants_in() || !member.waiting.is_empty() {
                true => drop(member.waits_since.get_or_insert(now)),
                false => member.waits_since = None,
            }
        }
        let is_blocked = loop {
            let waits = self.members.iter().enumerate().filter(|(_, member)| member.wants_in());
            let Some((next, _)) = waits.min_by_key(|(_, member)| member.waits_since) else { break false };
            if !self.make_room(next)? || !self.bring_in(next)? {
                break true;
            }
        };
        for member in &mut self.members {
            let was_held = std::mem::replace(&mut member.is_held, is_blocked);
            if was_held && !is_blocked {
                member.go_on()?;
            }
        }
        Ok(())
    }

    /// Of the models that may leave, the one whose last turn ended first.
    fn idle(&self, but: usize) -> Option<usize> {
        let members = self.members.iter().enumerate();
        let idle = members.filter(|(at, member)| *at != but && member.is_on_device() && !member.is_busy());
        idle.min_by_key(|(_, member)| member.used).map(|(at, _)| at)
    }

    /// Makes idle models leave until another one fits. Returns whether it does.
    fn make_room(&mut self, next: usize) -> Result<bool> {
        loop {
            let member = &self.members[next];
            let mut others = self.members.iter().enumerate().filter(|(at, _)| *at != next);
            let is_alone = others.all(|(_, other)| !other.is_on_device());
            let fits = !member.needs_all && member.missing_bytes() <= self.runtime.free_bytes();
            if fits || is_alone {
                break;
            }
            let Some(idle) = self.idle(next) else { return Ok(false) };
            self.evict(idle)?;
        }
        if self.members[next].worker.is_none() {
            self.clear_host(next);
        }
        Ok(true)
    }

    /// Drops host copies of other models' weights until the host has room for an unloaded model.
    fn clear_host(&mut self, next: usize) {
        let wanted = self.members[next].model.host_bytes();
        while wanted > self.runtime.host_room() && drop_copies(&mut self.members) {}
    }

    fn evict(&mut self, at: usize) -> Result<()> {
        let member = &mut self.members[at];
        if let Some(worker) = &mut member.worker {
            worker.service.evict()?;
            member.model.residence_changed(Residence::Host);
        }
        Ok(())
    }

    /// Loads a model or brings it back; others compute meanwhile. The outer error is theirs.
    fn try_in(&mut self, member: &mut Member<D>) -> Result<Result<(), LoadError>> {
        let (model, others) = (Rc::clone(&member.model), &mut self.members);
        let mut failure = None;
        let mut progress = |done, total| {
            if failure.is_none() {
                failure = others.iter_mut().try_for_each(Member::go_on).err();
            }
            if failure.is_some() { ControlFlow::Break(()) } else { model.loading(done, total) }
        };
        model.residence_changed(Residence::Loading);
        let brought = match &mut member.worker {
            Some(worker) => worker.service.restore(model.source(), &mut progress).map_err(LoadError::from),
            None => model.load(&self.runtime, &mut progress).map(|mut service| {
                service.continue_ids_after(member.last_session);
                member.worker = Some(Worker::new(service));
            }),
        };
        failure.map_or(Ok(brought), Err)
    }

    /// Loads a model or brings it back. Returns false if there is no room because of other models. If host memory is
    /// full, copies of weights are dropped, its own last.
    fn bring_in(&mut self, next: usize) -> Result<bool> {
        let mut member = self.members.remove(next);
        let model = Rc::clone(&member.model);
        let brought = loop {
            let brought = self.try_in(&mut member)?;
            let is_full = matches!(brought, Err(LoadError::NoHostRoom(_)));
            let tries_again =
                is_full && (drop_copies(&mut self.members) || drop_copies(std::slice::from_mut(&mut member)));
            if !tries_again {
                break brought;
            }
        };
        let is_alone = self.members.iter().all(|other| !other.is_on_device());
        let has_room = match brought {
            Ok(()) => {
                (member.is_wanted, member.needs_all, member.refused, member.failures) =
                    (false, false, None, 0);
                (member.waits_since, member.used, member.is_held) = (None, Instant::now(), false);
                model.residence_changed(Residence::Device);
                member.go_on()?;
                true
            }
            Err(LoadError::NoRoom) if !is_alone => {
                member.needs_all = true;
                let at = if member.worker.is_some() { Residence::Host } else { Residence::Unloaded(None) };
                model.residence_changed(at);
                false
            }
            Err(LoadError::NoRoom) => {
                member.unload()?;
                member.refuse("the device has no room for it".to_owned());
                true
            }
            // Its sessions stay where they are.
            Err(LoadError::NoHostRoom(why)) if member.worker.is_some() => {
                member.refuse(why);
                true
            }
            Err(LoadError::NoHostRoom(why) | LoadError::Refused(why)) => {
                member.unload()?;
                member.refuse(why);
                true
            }
            Err(LoadError::Failed(error)) => return Err(error),
        };
        self.members.insert(next, member);
        Ok(has_room)
    }

    /// Waits for the next command or event.
    fn wait<T>(&self, control: Option<&Receiver<T>>) {
        let left = |member: &Member<D>| match &member.worker {
            None => member.retries_in().filter(|_| member.is_wanted),
            Some(worker) if member.is_on_device() => worker.idle_for(),
            Some(worker) => {
                let retry = member.retries_in().filter(|left| !left.is_zero());
                [worker.service.next_end_of_a_stop(), retry].into_iter().flatten().min()
            }
        };
        let left = self.members.iter().filter_map(left).min();
        let mut select = Select::new();
        for member in &self.members {
            select.recv(&member.inbox);
        }
        if let Some(control) = control {
            select.recv(control);
        }
        match left {
            Some(left) => drop(select.ready_timeout(left.max(LOOK_EVERY))),
            None => drop(select.ready()),
        }
    }
}

/// Drops the host copies of one model's weights: models off the device come first, then the least recently used. Returns
/// whether that freed any bytes.
fn drop_copies<D: Ops>(members: &mut [Member<D>]) -> bool {
    let mut loaded: Vec<_> = members.iter_mut().filter(|member| member.worker.is_some()).collect();
    loaded.sort_by_key(|member| (member.is_on_device(), member.used));
    let mut workers = loaded.into_iter().filter_map(|member| member.worker.as_mut());
    workers.any(|worker| worker.service.drop_copies() > 0)
}
