//! A model on a device that it may share: how it gets there, and who is told where it is.

use super::Serving;
use super::device_thread::{DeviceThread, Follower, Report};
use super::outbox::Outbox;
use super::slot::Slot;
use crate::error::{Error, Result};
use djinn_device::{Ops, Space};
use djinn_engine::{Client, Inbox, LoadError, Options, Pool, PoolModel, Residence, Runtime, Service};
use djinn_host::{OnDevice, Setup, load_into, one_line, system};
use djinn_models::Model;
use djinn_scheduler::Registry;
use djinn_vmu::WeightSource;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The KV cache takes the memory that is available divided by this, unless its size is given.
const KV_SHARE: u64 = 4;

/// All that an engine is started with, once or again.
pub(super) struct Starting {
    pub(super) model: Arc<Model>,
    pub(super) setup: Setup,
    pub(super) options: Options,
    pub(super) serving: Serving,
    pub(super) outbox: Arc<Outbox>,
}

impl Starting {
    /// The engine's options, with its KV pages.
    fn options(&self) -> Result<Options> {
        let Starting { model, serving, setup, options, .. } = self;
        let table = options.context.div_ceil(options.page_tokens.into());
        let mut options =
            Options { hook_bytes: serving.hook_bytes, ..options.clone().serving(serving.sequences) };
        // Prefill chunks are whole pages.
        let page_tokens = u64::from(options.page_tokens);
        let whole = (options.context / page_tokens * page_tokens).max(page_tokens);
        let rows = u64::from(options.prefill_rows).next_multiple_of(page_tokens).min(whole);
        options.prefill_rows = u32::try_from(rows).unwrap_or(options.prefill_rows);
        options.pages = Some(u32::try_from(table).unwrap_or(u32::MAX));
        let page_bytes =
            options.plan(&model.graph, 0).map_err(djinn_host::Error::from)?.kv.page_bytes().max(1);
        let wanted = table.saturating_mul(serving.sequences.into());
        let bytes = match serving.kv_bytes {
            Some(bytes) if bytes / page_bytes < table => {
                let least = djinn_vmu::size::human(table * page_bytes);
                return Err(Error::Setting(format!(
                    "a KV cache of {bytes} bytes does not hold one context of {} tokens; give {least} at least, or a \
                     shorter context",
                    options.context
                )));
            }
            Some(bytes) => bytes,
            None => {
                let memory = setup.vram.or_else(|| system::memory().map(|memory| memory.available));
                memory.map_or(u64::MAX, |memory| memory / KV_SHARE).min(wanted.saturating_mul(page_bytes))
            }
        };
        options.pages = Some(u32::try_from((bytes / page_bytes).max(table)).unwrap_or(u32::MAX));
        options.host_pages = u32::try_from(serving.host_kv_bytes / page_bytes).unwrap_or(u32::MAX);
        Ok(options)
    }

    /// Tokens that a sequence may have, as the engine will say.
    pub(super) fn context(&self) -> u64 {
        let page_tokens = u64::from(self.options.page_tokens);
        self.options.context.next_multiple_of(page_tokens).min(self.model.graph.max_context)
    }

    fn load<D: Ops>(
        &self,
        runtime: &Rc<Runtime<D>>,
        options: &Options,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Service<D>> {
        let mut engine = load_into(Rc::clone(runtime), &self.model, options, progress)?;
        let cost = engine.measure_cost(&mut engine.free_pages())?;
        let settings = &self.serving.scheduler;
        Ok(Service::new(engine, |capacity| Registry::default().scheduler(settings, capacity, cost))?)
    }
}

/// A model that its thread keeps over failures of the device.
pub(super) struct Resident {
    pub(super) starting: Arc<Starting>,
    /// It is the owner's: nothing is loaded again without one.
    pub(super) slot: Weak<Slot>,
    /// Of its first client.
    inbox: Option<Inbox>,
    /// Until it is loaded first, where the owner waits for that.
    follower: Arc<Mutex<Option<Follower>>>,
}

impl Resident {
    /// One that is loaded at once if there is a `follower`, else when it is asked for something; and where it is reached.
    pub(super) fn new(starting: Starting, follower: Option<Follower>) -> (Self, Arc<Slot>) {
        let (client, inbox) = Client::pair();
        let slot = Arc::new(Slot::new(client));
        let (starting, follower) = (Arc::new(starting), Arc::new(Mutex::new(follower)));
        let resident = Resident { starting, slot: Arc::downgrade(&slot), inbox: Some(inbox), follower };
        (resident, slot)
    }

    pub(super) fn has_owner(&self) -> bool {
        self.slot.strong_count() > 0
    }

    /// Tells the owner, who waits until the model is loaded first, why it is not. Whether one does wait.
    pub(super) fn give_up(&self, why: &mut Option<Error>) -> bool {
        let Some(follower) = lock(&self.follower).take() else { return false };
        let ended = || Error::Setting("the device failed while the model was loaded".to_owned());
        let ready = Report::Ready(Box::new(Err(why.take().unwrap_or_else(ended))));
        // One who has left waits for nothing.
        let _ = follower.reports.send(ready);
        true
    }

    pub(super) fn is_awaited(&self) -> bool {
        lock(&self.follower).is_some()
    }

    /// Comes to a device that was made.
    fn enter<D: Ops + 'static>(&mut self, pool: &mut Pool<D>, runtime: &Runtime<D>, runs: &Arc<AtomicBool>) {
        let Some(slot) = self.slot.upgrade() else { return };
        let inbox = self.inbox.take().unwrap_or_else(|| {
            let (client, inbox) = Client::pair();
            slot.renewed(client);
            inbox
        });
        let reserved = runtime.device().info().reserved_bytes;
        let planned = self.starting.options().and_then(|options| {
            let plan = options.plan(&self.starting.model.graph, reserved).map_err(djinn_host::Error::from)?;
            let device_bytes = plan.segments.total() - plan.segments.reserved;
            Ok(Planned { options, device_bytes, host_bytes: plan.host_bytes })
        });
        let wanted = slot.is_wanted() || self.is_awaited();
        let outbox = Arc::clone(&self.starting.outbox);
        let seat = Seat {
            starting: Arc::clone(&self.starting),
            slot: Weak::clone(&self.slot),
            follower: Arc::clone(&self.follower),
            runs: Arc::clone(runs),
            planned: Mutex::new(planned.map_err(Some)),
            is_told: AtomicBool::new(false),
        };
        pool.add(Box::new(seat), inbox.after_telling(move || outbox.pass_on()), wanted);
    }
}

/// What a model takes.
struct Planned {
    options: Options,
    device_bytes: u64,
    host_bytes: u64,
}

/// A model in a pool.
struct Seat {
    starting: Arc<Starting>,
    slot: Weak<Slot>,
    follower: Arc<Mutex<Option<Follower>>>,
    runs: Arc<AtomicBool>,
    /// Or why it cannot be planned, until that is told.
    planned: Mutex<std::result::Result<Planned, Option<Error>>>,
    /// Whether somebody who waited was told why it is not loaded: the log need not.
    is_told: AtomicBool,
}

impl Seat {
    fn bytes(&self, of: impl Fn(&Planned) -> u64) -> u64 {
        lock(&self.planned).as_ref().map_or(0, of)
    }

    /// Somebody who waits gets the error as it is.
    fn refuse(&self, error: Error) -> LoadError {
        let error = match error {
            Error::Host(djinn_host::Error::Engine(error)) if !self.is_awaited() => return error.into(),
            error => error,
        };
        let why = one_line(&error);
        let is_lost = matches!(&error, Error::Host(error) if error.is_device_lost());
        if let Some(follower) = lock(&self.follower).take() {
            // One who has left waits for nothing.
            let _ = follower.reports.send(Report::Ready(Box::new(Err(error))));
            self.is_told.store(true, Ordering::Relaxed);
        }
        if is_lost { LoadError::Failed(djinn_engine::Error::Stopped(why)) } else { LoadError::Refused(why) }
    }

    fn is_awaited(&self) -> bool {
        lock(&self.follower).is_some()
    }
}

impl<D: Ops> PoolModel<D> for Seat {
    fn device_bytes(&self) -> u64 {
        self.bytes(|planned| planned.device_bytes)
    }

    fn host_bytes(&self) -> u64 {
        self.bytes(|planned| planned.host_bytes)
    }

    fn load(
        &self,
        runtime: &Rc<Runtime<D>>,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> std::result::Result<Service<D>, LoadError> {
        let options = match &mut *lock(&self.planned) {
            Ok(planned) => Ok(planned.options.clone()),
            Err(error) => {
                Err(error.take().unwrap_or_else(|| Error::Setting("it cannot be planned".to_owned())))
            }
        };
        let loaded = options.and_then(|options| self.starting.load(runtime, &options, progress));
        loaded.map_err(|error| self.refuse(error))
    }

    fn source(&self) -> &dyn WeightSource {
        &*self.starting.model.source
    }

    fn loading(&self, done: u64, total: u64) -> ControlFlow<()> {
        let Some(slot) = self.slot.upgrade() else { return ControlFlow::Break(()) };
        slot.loaded(done, total);
        if let Some(follower) = &*lock(&self.follower) {
            // As above.
            let _ = follower.reports.send(Report::Loaded(done, total));
            if follower.ended.load(Ordering::Relaxed) {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    fn is_at(&self, residence: Residence) {
        let name = &self.starting.model.name;
        let Some(slot) = self.slot.upgrade() else { return };
        if residence == Residence::Device {
            self.runs.store(true, Ordering::Relaxed);
        }
        if let Residence::Unloaded(Some(why)) = &residence
            && !self.is_told.swap(false, Ordering::Relaxed)
        {
            log::error!(target: "djinn::server", "{name}: not loaded: {why}");
        }
        if slot.is_at(residence.clone()) {
            log::info!(target: "djinn::server", "{name}: the engine runs again");
        }
        if residence == Residence::Device
            && let Some(follower) = lock(&self.follower).take()
        {
            // As above.
            let _ = follower.reports.send(Report::Ready(Box::new(Ok(()))));
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves the models of a thread on a device.
pub(super) struct OnThread<'a> {
    pub(super) thread: &'a mut DeviceThread,
    /// Whether one was loaded.
    pub(super) runs: Arc<AtomicBool>,
}

impl OnDevice for OnThread<'_> {
    type Out = ();
    type Error = Error;

    fn on<D: Ops + 'static>(self, device: D) -> Result<()> {
        let OnThread { thread, runs } = self;
        // Where the device is the host's memory and has no cap, no model ever leaves it.
        let is_unlimited = device.info().host_memory && device.usage(Space::Device).limit == u64::MAX;
        let host_limit = if is_unlimited { 0 } else { thread.host_limit };
        let runtime = Rc::new(Runtime::in_turns(device, host_limit)?);
        let mut pool = Pool::new(Rc::clone(&runtime));
        thread.residents().for_each(|resident| resident.enter(&mut pool, &runtime, &runs));
        let joining = thread.joining.clone();
        while let Some(resident) = pool.run(&joining)? {
            thread.join(*resident).enter(&mut pool, &runtime, &runs);
        }
        Ok(())
    }
}
