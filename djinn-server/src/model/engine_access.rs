//! Access to a model's engine, which changes after failures, and its loading state.

use djinn_engine::{Client, Residence};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::timeout;

/// An engine that loses its sessions reports its end within this time.
const TELLS_WITHIN: Duration = Duration::from_secs(1);

/// The client of the engine that runs now, or will at the next request.
pub(super) struct EngineAccess {
    engine: watch::Sender<Reach>,
    progress: [AtomicU64; 2],
}

/// Statistics of a model's loads.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Loads {
    pub(crate) count: u64,
    /// Bytes of weights, from host memory or from files.
    pub(crate) bytes: u64,
    pub(crate) time: Duration,
    /// Bytes and time of the latest.
    pub(crate) latest: (u64, Duration),
}

#[derive(Clone)]
struct Reach {
    client: Client,
    /// Why requests are refused, if they are.
    refused: Option<String>,
    residence: Residence,
    /// Whether it was on the device since the latest start, or is loaded without a request.
    is_wanted: bool,
    failures: u64,
    /// Why the engine failed last.
    why: String,
    /// Whether this process cannot get a device any more.
    lost: bool,
    loads: Loads,
    began: Option<Instant>,
}

impl EngineAccess {
    /// For a model that is loaded at its first request.
    pub(super) fn new(client: Client) -> Self {
        let (refused, residence, why) = (None, Residence::Unloaded(None), String::new());
        let (is_wanted, failures, lost, loads, began) = (false, 0, false, Loads::default(), None);
        let reach = Reach { client, refused, residence, is_wanted, failures, why, lost, loads, began };
        EngineAccess { engine: watch::Sender::new(reach), progress: [AtomicU64::new(0), AtomicU64::new(0)] }
    }

    /// The engine's client, or why there is none.
    pub(super) fn client(&self) -> Result<Client, String> {
        let reach = self.engine.borrow();
        match &reach.refused {
            None => Ok(reach.client.clone()),
            Some(why) => Err(why.clone()),
        }
    }

    /// Whether requests are answered. A model that is loaded on request is ready until then, even if its last load
    /// failed.
    pub(super) fn is_ready(&self) -> bool {
        let reach = self.engine.borrow();
        let failed = matches!(reach.residence, Residence::Unloaded(Some(_)));
        reach.refused.is_none() && !(failed && reach.is_wanted)
    }

    pub(super) fn residence(&self) -> Residence {
        self.engine.borrow().residence.clone()
    }

    /// Bytes loaded and in all, during a load.
    pub(super) fn progress(&self) -> [u64; 2] {
        [0, 1].map(|at| self.progress[at].load(Ordering::Relaxed))
    }

    pub(super) fn loads(&self) -> Loads {
        self.engine.borrow().loads
    }

    pub(super) fn loaded(&self, done: u64, total: u64) {
        self.progress[0].store(done, Ordering::Relaxed);
        self.progress[1].store(total, Ordering::Relaxed);
    }

    /// Whether to load it again after a failure.
    pub(super) fn is_wanted(&self) -> bool {
        self.engine.borrow().is_wanted
    }

    /// Makes the engine end when its requests have ended, or after `within`. New requests are refused with `why`. It
    /// has no effect on a model that is not loaded.
    pub(super) fn retire(&self, why: &str, within: Duration) {
        self.engine.send_if_modified(|reach| {
            let is_loaded = matches!(reach.residence, Residence::Device | Residence::Host);
            let retires = is_loaded && reach.refused.is_none();
            if retires {
                reach.client.retire(why.to_owned(), within);
                (reach.refused, reach.why) = (Some(why.to_owned()), why.to_owned());
            }
            retires
        });
    }

    /// How often the engine has failed, was told to end, or could not be loaded.
    pub(super) fn failures(&self) -> u64 {
        self.engine.borrow().failures
    }

    /// Why an engine failed after it had failed `before` times; `None` if it did not.
    pub(super) async fn failure_after(&self, before: u64) -> Option<String> {
        let mut reach = self.engine.subscribe();
        let failed = timeout(TELLS_WITHIN, reach.wait_for(|reach| reach.failures > before)).await;
        failed.ok()?.ok().map(|reach| reach.why.clone())
    }

    /// Records that the engine, and all engines on its device, have ended.
    pub(super) fn failed(&self, why: &str) {
        self.engine.send_modify(|reach| {
            reach.is_wanted |= !matches!(reach.residence, Residence::Unloaded(_));
            reach.residence = Residence::Unloaded(None);
            reach.failures += 1;
            (reach.refused, reach.why) = (Some(why.to_owned()), why.to_owned());
        });
    }

    /// Records the client of a new engine on a new device.
    pub(super) fn renewed(&self, client: Client) {
        self.engine.send_modify(|reach| {
            (reach.client, reach.lost) = (client, false);
            if !reach.is_wanted {
                reach.refused = None;
            }
        });
    }

    /// Records where the model is. Returns whether it runs again after a failure.
    pub(super) fn is_at(&self, residence: Residence) -> bool {
        let mut runs_again = false;
        let [bytes, _] = self.progress();
        self.engine.send_modify(|reach| {
            match &residence {
                Residence::Device => {
                    runs_again = reach.refused.take().is_some();
                    reach.is_wanted = false;
                    let time = reach.began.take().map_or(Duration::ZERO, |began| began.elapsed());
                    let Loads { count, bytes: before, time: spent, .. } = reach.loads;
                    reach.loads = Loads {
                        count: count + 1,
                        bytes: before + bytes,
                        time: spent + time,
                        latest: (bytes, time),
                    };
                }
                Residence::Unloaded(Some(why)) => {
                    reach.failures += 1;
                    reach.why.clone_from(why);
                    reach.refused = None;
                }
                Residence::Unloaded(None) => reach.failures += u64::from(reach.refused.is_some()),
                Residence::Loading => {
                    reach.began = Some(Instant::now());
                    self.loaded(0, 0);
                }
                Residence::Host => {}
            }
            reach.residence = residence;
        });
        runs_again
    }

    /// Records that the device failed and cannot be replaced.
    pub(super) fn lose_device(&self) {
        self.engine.send_modify(|reach| reach.lost = true);
    }

    /// Whether the device is lost and cannot be replaced.
    pub(super) fn has_lost_device(&self) -> bool {
        self.engine.borrow().lost
    }
}
