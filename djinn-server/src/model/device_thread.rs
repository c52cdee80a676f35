//! The thread that owns a device: makes it, serves its models, and starts again after a failure or on request.

use super::outbox::Outbox;
use super::resident::{OnThread, Resident, Starting};
use crate::error::{Error, Result};
use crossbeam_channel::{Receiver, Sender};
use djinn_device::panic_line;
use djinn_host::{Needs, Setup, one_line, system};
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Room for decoded rows of encoded weights, on a device that may get further models.
const DECODED_BYTES: u64 = 64 << 20;
/// While the thread waits to make a device again, it checks this often whether one is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Makes a device that meets these needs and runs the thread's work on it. It is called again after a failure.
pub(super) type MakeDevice = Box<dyn FnMut(Needs, OnThread<'_>) -> Result<()> + Send>;

/// Reports during a model's first load.
pub(super) enum Report {
    Loaded(u64, u64),
    Ready(Box<Result<()>>),
}

/// Receives reports about a model that is loaded without a request.
pub(super) struct Follower {
    pub(super) reports: Sender<Report>,
    /// The receiver has gone.
    pub(super) ended: Arc<AtomicBool>,
}

/// Models that share a device.
pub(super) struct DeviceThread {
    make_device: MakeDevice,
    residents: Vec<Resident>,
    /// Models that are added later.
    pub(super) joining: Receiver<Box<Resident>>,
    restart_after: Vec<Duration>,
    /// Bytes of host memory for all models in turns; 0 for a single model.
    pub(super) host_limit: u64,
    /// Whether models may be added later.
    is_open: bool,
}

impl DeviceThread {
    /// Starts the thread. It ends when no model has an owner, and none can be added; then `running` is dropped.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub(super) fn start(
        make_device: MakeDevice,
        residents: Vec<Resident>,
        joining: Receiver<Box<Resident>>,
        running: Sender<Infallible>,
        (setup, restart_after, is_open): (&Setup, Vec<Duration>, bool),
    ) -> Result<()> {
        let shares = is_open || residents.len() > 1;
        // Without a budget, not all of the system's memory is used.
        let available = || system::memory().map_or(u64::MAX, |memory| memory.available / 4 * 3);
        let host_limit = if shares { setup.ram.unwrap_or_else(available) } else { 0 };
        let thread = DeviceThread { make_device, residents, joining, restart_after, host_limit, is_open };
        let run = move || {
            let _running = running;
            thread.run();
        };
        let started = std::thread::Builder::new().name("djinn-engine".to_owned()).spawn(run);
        let failed = |source| Error::Io { what: "cannot start the engine's thread".to_owned(), source };
        started.map(drop).map_err(failed)
    }

    fn run(mut self) {
        let mut failures = 0;
        loop {
            if self.residents.is_empty() {
                match self.joining.recv() {
                    Ok(resident) => self.residents.push(*resident),
                    Err(_) => return,
                }
            }
            let runs = Arc::new(AtomicBool::new(false));
            let failure = match self.serve(&runs) {
                Ok(()) => return,
                Err(error) => error,
            };
            let runs = runs.load(Ordering::Relaxed);
            failures = if runs { 0 } else { failures + 1 };
            let why = one_line(failure.unwrapped());
            let is_planned = is_planned(&failure);
            for resident in self.residents.iter().filter(|resident| !resident.is_awaited()) {
                let name = &resident.starting.model.name;
                match is_planned {
                    true => log::info!(target: "djinn::server", "{name}: {why}"),
                    false => log::error!(target: "djinn::server", "{name}: the engine failed: {why}"),
                }
                if let Some(access) = resident.access.upgrade() {
                    access.failed(&why);
                    if let (false, Error::Host(error)) = (runs, &failure)
                        && error.is_device_lost()
                    {
                        access.lose_device();
                    }
                }
            }
            // Models without an owner end here. One whose first load is awaited reports the failure.
            let mut failure = Some(failure);
            self.residents.retain(|resident| resident.has_owner() && !resident.give_up(&mut failure));
            if self.wait(failures).is_break() {
                return;
            }
        }
    }

    /// Waits until the time to start again; breaks if no model has an owner.
    fn wait(&mut self, failures: usize) -> ControlFlow<()> {
        let waits = &self.restart_after;
        let wait = waits.get(failures).or(waits.last()).copied().unwrap_or_default();
        let until = Instant::now() + wait;
        loop {
            self.residents.retain(Resident::has_owner);
            while let Ok(resident) = self.joining.try_recv() {
                self.residents.push(*resident);
            }
            if self.residents.is_empty() && !self.is_open {
                return ControlFlow::Break(());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return ControlFlow::Continue(());
            }
            std::thread::sleep(left.min(LOOK_EVERY));
        }
    }

    /// Makes the device and serves its models until none has an owner. `runs` says whether one was loaded. A panic
    /// counts as a failure.
    fn serve(&mut self, runs: &Arc<AtomicBool>) -> Result<()> {
        let needs = self.needs();
        let outboxes: Vec<Arc<Outbox>> =
            self.residents.iter().map(|r| Arc::clone(&r.starting.outbox)).collect();
        let mut make_device = std::mem::replace(&mut self.make_device, Box::new(|_, _| Ok(())));
        // The engines share the models only, which do not change.
        let served = catch_unwind(AssertUnwindSafe(|| {
            make_device(needs, OnThread { thread: self, runs: Arc::clone(runs) })
        }));
        self.make_device = make_device;
        // Requests of a failed engine first get its earlier events.
        outboxes.iter().for_each(|outbox| outbox.pass_on());
        served.unwrap_or_else(|panic| Err(Error::Panicked { what: panic_line(&*panic) }))
    }

    /// The device's requirements for all models.
    fn needs(&self) -> Needs {
        let own = self.residents.iter().map(|resident| {
            let Starting { model, options, .. } = &*resident.starting;
            Needs::of(model, options)
        });
        let Needs { mut pinned_bytes, mut workspaces, mut cpu_products, .. } = Needs::default();
        for needs in own {
            pinned_bytes = pinned_bytes.saturating_add(needs.pinned_bytes);
            workspaces = workspaces.max(needs.workspaces);
            cpu_products |= needs.cpu_products;
        }
        if self.host_limit > 0 {
            let weights = |resident: &Resident| resident.starting.model.graph.text_bytes();
            let copies = self.residents.iter().map(weights).fold(pinned_bytes, u64::saturating_add);
            pinned_bytes =
                if self.is_open { self.host_limit } else { copies.min(self.host_limit.max(pinned_bytes)) };
        }
        if self.is_open {
            workspaces.decoded_bytes = workspaces.decoded_bytes.max(DECODED_BYTES);
        }
        // A server's setup has a cap on a GPU whose driver tells what is free.
        Needs { pinned_bytes, workspaces, vram: None, cpu_products }
    }

    /// The models, each with an inbox for a new device.
    pub(super) fn residents(&mut self) -> impl Iterator<Item = &mut Resident> {
        self.residents.iter_mut()
    }

    pub(super) fn join(&mut self, resident: Resident) -> &mut Resident {
        self.residents.retain(Resident::has_owner);
        self.residents.push(resident);
        self.residents.last_mut().expect("one was just added")
    }
}

/// Whether the engine was told to end.
fn is_planned(failure: &Error) -> bool {
    matches!(failure, Error::Host(djinn_host::Error::Engine(djinn_engine::Error::Retired { .. })))
}
