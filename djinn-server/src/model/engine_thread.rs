//! The thread that owns an engine: makes the device, loads the model, serves, and starts again after a failure, or when it was told to.

use super::Serving;
use super::outbox::Outbox;
use super::slot::Slot;
use crate::error::{Error, Result};
use crossbeam_channel::{RecvTimeoutError, Sender};
use djinn_device::Ops;
use djinn_engine::{Client, Inbox, Options, Service};
use djinn_host::{Needs, OnDevice, Setup, load_on, one_line, system};
use djinn_models::Model;
use djinn_scheduler::Registry;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// The KV cache takes the memory that is available divided by this, unless its size is given.
const KV_SHARE: u64 = 4;

/// Makes a device and does the thread's work on it. The number is the bytes of pinned host memory that it takes at most.
pub(super) type Place = Box<dyn FnMut(Needs, OnThread<'_>) -> Result<()> + Send>;

/// All that an engine is started with, once or again.
pub(super) struct Starting {
    pub(super) model: Arc<Model>,
    pub(super) setup: Setup,
    pub(super) options: Options,
    pub(super) serving: Serving,
    pub(super) outbox: Arc<Outbox>,
}

/// What the thread tells while the model is loaded first.
enum Report {
    Loaded(u64, u64),
    Ready(Box<Result<(Arc<Slot>, u64)>>),
}

impl Starting {
    /// Starts the thread, and waits until the engine serves; where it is reached, and its context.
    pub(super) fn start(
        self,
        mut place: Place,
        on_progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(Arc<Slot>, u64)> {
        let (sender, reports) = crossbeam_channel::unbounded();
        let ended = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ended);
        let run = move || self.run(&mut place, &sender, &seen);
        let thread = std::thread::Builder::new().name("djinn-engine".to_owned()).spawn(run);
        thread.map_err(|source| Error::Io { what: "cannot start the engine's thread".to_owned(), source })?;
        loop {
            match reports.recv() {
                Ok(Report::Loaded(done, total)) => {
                    if on_progress(done, total).is_break() {
                        ended.store(true, Ordering::Relaxed);
                    }
                }
                Ok(Report::Ready(ready)) => return *ready,
                Err(_) => return Err(Error::Setting("the engine's thread ended while it loaded".to_owned())),
            }
        }
    }

    fn run(&self, place: &mut Place, reports: &Sender<Report>, ended: &AtomicBool) {
        let report = |report| drop(reports.send(report));
        let mut on_progress = |done, total| {
            report(Report::Loaded(done, total));
            if ended.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        // The slot of the first start is the one of all others. It is the owner's: nothing is started again without one.
        let mut slot: Weak<Slot> = Weak::new();
        let (owned, owner) = crossbeam_channel::bounded(0);
        let mut owned = Some(owned);
        let first = self.serve(place, &mut on_progress, &mut |client, context| {
            let Some(owned) = owned.take() else { return };
            let made = Arc::new(Slot::new(client, owned));
            slot = Arc::downgrade(&made);
            report(Report::Ready(Box::new(Ok((made, context)))));
        });
        let mut failure = match first {
            Err(error) if slot.strong_count() == 0 => return report(Report::Ready(Box::new(Err(error)))),
            Err(error) => error,
            Ok(()) => return,
        };
        let waits = &self.serving.restart_after;
        let mut failures = 0;
        loop {
            let why = one_line(&failure);
            match is_planned(&failure) {
                true => log::info!(target: "djinn::server", "{}: {why}", self.model.name),
                false => {
                    log::error!(target: "djinn::server", "{}: the engine failed: {why}", self.model.name)
                }
            }
            match slot.upgrade() {
                None => return,
                Some(slot) => slot.failed(why),
            }
            let wait = waits.get(failures).or(waits.last()).copied().unwrap_or_default();
            // Nothing is ever sent.
            if let Err(RecvTimeoutError::Disconnected) = owner.recv_timeout(wait) {
                return;
            }
            let mut on_progress = |_, _| match slot.strong_count() {
                0 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            };
            let mut runs = false;
            let served = self.serve(place, &mut on_progress, &mut |client, _| {
                runs = true;
                if let Some(slot) = slot.upgrade() {
                    slot.runs(client);
                    log::info!(target: "djinn::server", "{}: the engine runs again", self.model.name);
                }
            });
            failures = if runs { 0 } else { failures + 1 };
            failure = match served {
                Ok(()) => return,
                Err(error) => error,
            };
            if let (false, Error::Host(error), Some(slot)) = (runs, &failure, slot.upgrade())
                && error.is_device_lost()
            {
                slot.lose_device();
            }
        }
    }

    /// Makes the device and the engine, gives its client to `on_ready` with its context, and serves until the last client
    /// is gone. An engine that panics has failed.
    fn serve(
        &self,
        place: &mut Place,
        on_progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
        on_ready: &mut dyn FnMut(Client, u64),
    ) -> Result<()> {
        // What is shared with the engine is the model alone, which nothing changes.
        let served = catch_unwind(AssertUnwindSafe(|| {
            let options = self.options()?;
            let needs = Needs::of(&self.model, &options);
            place(needs, OnThread { starting: self, options, on_progress, on_ready })
        }));
        // Requests of an engine that has failed are told what came before.
        self.outbox.pass_on();
        served.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            Err(Error::Panicked { what: text.unwrap_or("without a message").to_owned() })
        })
    }

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
}

/// Whether the engine was told to end.
fn is_planned(failure: &Error) -> bool {
    matches!(failure, Error::Host(djinn_host::Error::Engine(djinn_engine::Error::Retired { .. })))
}

/// Loads the model onto a device, and serves there.
pub(super) struct OnThread<'a> {
    starting: &'a Starting,
    options: Options,
    on_progress: &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    on_ready: &'a mut dyn FnMut(Client, u64),
}

impl OnDevice for OnThread<'_> {
    type Out = ();
    type Error = Error;

    fn on<D: Ops + 'static>(self, device: D) -> Result<()> {
        let OnThread { starting, options, on_progress, on_ready } = self;
        let Starting { model, serving, outbox, .. } = starting;
        let mut engine = load_on(device, model, &options, on_progress)?;
        let cost = engine.measure_cost(&mut engine.free_pages())?;
        let context = engine.context();
        let settings = &serving.scheduler;
        let service =
            Service::new(engine, |capacity| Registry::default().scheduler(settings, capacity, cost))?;
        let (client, inbox): (Client, Inbox) = Client::pair();
        on_ready(client, context);
        let outbox = Arc::clone(outbox);
        Ok(inbox.after_telling(move || outbox.pass_on()).serve(service)?)
    }
}
