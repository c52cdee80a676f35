//! A model on a device that it may share: its loading, and reports of where it is.

use super::Serving;
use super::device_thread::{DeviceThread, Follower, Report};
use super::engine_access::EngineAccess;
use super::outbox::Outbox;
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

/// By default the KV cache takes this fraction of the available memory (1 divided by this).
const KV_SHARE: u64 = 4;

/// Everything needed to start an engine, repeatedly.
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
        // A context that is too long stays as it is: the plan refuses it.
        let options = Options { context: options.context.max(self.context()), ..options.clone() };
        let table = options.context.div_ceil(options.page_tokens.into());
        let mut options = Options { hook_bytes: serving.hook_bytes, ..options.serving(serving.sequences) };
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

    /// The most tokens of a sequence, as the engine will have it.
    pub(super) fn context(&self) -> u64 {
        let page_tokens = u64::from(self.options.page_tokens);
        let whole = self.options.context.checked_next_multiple_of(page_tokens);
        whole.unwrap_or(u64::MAX).min(self.model.graph.max_context)
    }

    fn load<D: Ops>(
        &self,
        runtime: &Rc<Runtime<D>>,
        options: &Options,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Service<D>> {
        let engine = load_into(Rc::clone(runtime), &self.model, options, progress)?;
        let (engine, cost) = engine.prepared(|engine| engine.measure_cost(&mut engine.free_pages()))?;
        let settings = &self.serving.scheduler;
        Ok(Service::new(engine, |capacity| Registry::default().scheduler(settings, capacity, cost))?)
    }
}

/// A model that survives failures of its device.
pub(super) struct Resident {
    pub(super) starting: Arc<Starting>,
    /// The owner's; without an owner, nothing is loaded again.
    pub(super) access: Weak<EngineAccess>,
    /// The inbox of its first client.
    inbox: Option<Inbox>,
    /// Until its first load, if the owner waits for that.
    follower: Arc<Mutex<Option<Follower>>>,
}

impl Resident {
    /// A model that is loaded at once if there is a `follower`, or else at its first request; and the access to its engine.
    pub(super) fn new(starting: Starting, follower: Option<Follower>) -> (Self, Arc<EngineAccess>) {
        let (client, inbox) = Client::pair();
        let access = Arc::new(EngineAccess::new(client));
        let (starting, follower) = (Arc::new(starting), Arc::new(Mutex::new(follower)));
        let resident = Resident { starting, access: Arc::downgrade(&access), inbox: Some(inbox), follower };
        (resident, access)
    }

    pub(super) fn has_owner(&self) -> bool {
        self.access.strong_count() > 0
    }

    /// Reports to a waiting owner why the first load failed. Returns whether one waits.
    pub(super) fn give_up(&self, why: &mut Option<Error>) -> bool {
        let Some(follower) = lock(&self.follower).take() else { return false };
        let ended = || Error::Setting("the device failed while the model was loaded".to_owned());
        let ready = Report::Ready(Box::new(Err(why.take().unwrap_or_else(ended))));
        // The owner may have gone.
        let _ = follower.reports.send(ready);
        true
    }

    pub(super) fn is_awaited(&self) -> bool {
        lock(&self.follower).is_some()
    }

    /// Joins a new device.
    fn enter<D: Ops + 'static>(&mut self, pool: &mut Pool<D>, runtime: &Runtime<D>, runs: &Arc<AtomicBool>) {
        let Some(access) = self.access.upgrade() else { return };
        let inbox = self.inbox.take().unwrap_or_else(|| {
            let (client, inbox) = Client::pair();
            access.renewed(client);
            inbox
        });
        let reserved = runtime.device().info().reserved_bytes;
        let planned = self.starting.options().and_then(|options| {
            let plan = options.plan(&self.starting.model.graph, reserved).map_err(djinn_host::Error::from)?;
            for what in djinn_host::without_effect(&options, &plan) {
                log::warn!(target: "djinn::server", "{}: {what}", self.starting.model.name);
            }
            let device_bytes = plan.segments.total() - plan.segments.reserved;
            let host_bytes = options.host_bytes(&self.starting.model.graph, &plan);
            Ok(Planned { options, device_bytes, host_bytes })
        });
        let wanted = access.is_wanted() || self.is_awaited();
        let outbox = Arc::clone(&self.starting.outbox);
        let seat = Seat {
            starting: Arc::clone(&self.starting),
            access: Weak::clone(&self.access),
            follower: Arc::clone(&self.follower),
            runs: Arc::clone(runs),
            planned: Mutex::new(planned.map_err(Some)),
            is_told: AtomicBool::new(false),
            full: Mutex::default(),
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
    access: Weak<EngineAccess>,
    follower: Arc<Mutex<Option<Follower>>>,
    runs: Arc<AtomicBool>,
    /// Or why it cannot be planned, until that is reported.
    planned: Mutex<std::result::Result<Planned, Option<Error>>>,
    /// Whether a waiting owner got the reason of a failed load, so that it is not logged.
    is_told: AtomicBool,
    /// Why the last load failed, if host memory was full.
    full: Mutex<Option<djinn_engine::Error>>,
}

impl Seat {
    fn bytes(&self, of: impl Fn(&Planned) -> u64) -> u64 {
        lock(&self.planned).as_ref().map_or(0, of)
    }

    /// A waiting owner gets the error itself.
    fn refuse(&self, error: Error) -> LoadError {
        let error = match error {
            Error::Host(djinn_host::Error::Engine(error)) if is_full(&error) => {
                let why = error.to_string();
                *lock(&self.full) = Some(error);
                return LoadError::NoHostRoom(why);
            }
            Error::Host(djinn_host::Error::Engine(error)) if !self.is_awaited() => return error.into(),
            error => error,
        };
        let why = one_line(error.unwrapped());
        let is_lost = matches!(&error, Error::Host(error) if error.is_device_lost());
        if let Some(follower) = lock(&self.follower).take() {
            // The owner may have gone.
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
        lock(&self.full).take();
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
        let Some(access) = self.access.upgrade() else { return ControlFlow::Break(()) };
        access.loaded(done, total);
        if let Some(follower) = &*lock(&self.follower) {
            let _ = follower.reports.send(Report::Loaded(done, total));
            if follower.ended.load(Ordering::Relaxed) {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    fn residence_changed(&self, residence: Residence) {
        let name = &self.starting.model.name;
        let Some(access) = self.access.upgrade() else { return };
        if residence == Residence::Device {
            self.runs.store(true, Ordering::Relaxed);
        }
        if let Residence::Unloaded(Some(why)) = &residence
            && let Some(follower) = lock(&self.follower).take()
        {
            let full = lock(&self.full).take().map(|error| Error::Host(djinn_host::Error::Engine(error)));
            let error = full.unwrap_or_else(|| Error::Setting(why.clone()));
            let _ = follower.reports.send(Report::Ready(Box::new(Err(error))));
            self.is_told.store(true, Ordering::Relaxed);
        }
        if let Residence::Unloaded(Some(why)) = &residence
            && !self.is_told.swap(false, Ordering::Relaxed)
        {
            log::error!(target: "djinn::server", "{name}: not loaded: {why}");
        }
        if access.is_at(residence.clone()) {
            log::info!(target: "djinn::server", "{name}: the engine runs again");
        }
        if residence == Residence::Device
            && let Some(follower) = lock(&self.follower).take()
        {
            let _ = follower.reports.send(Report::Ready(Box::new(Ok(()))));
        }
    }
}

/// Whether a load failed since host memory is full. It may have room once copies of other models' weights are dropped.
fn is_full(error: &djinn_engine::Error) -> bool {
    use djinn_device::Error::OutOfMemory;
    matches!(error, djinn_engine::Error::Device(OutOfMemory { space: Space::Host, .. }))
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
        // On a device in host memory without a cap, no model ever leaves.
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
