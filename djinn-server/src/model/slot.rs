//! Where a model's engine is reached, over its failures, and how far the model is from the device.

use djinn_engine::{Client, Residence};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::timeout;

/// An engine whose sessions are gone tells why at once: it has ended before they go.
const TELLS_WITHIN: Duration = Duration::from_secs(1);

/// Where the engine that runs now is reached, or the one that will once it is asked for something.
pub(super) struct Slot {
    engine: watch::Sender<Reach>,
    /// Bytes that are loaded, and in all.
    progress: [AtomicU64; 2],
}

/// How a model came to its device so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Loads {
    pub(crate) count: u64,
    /// Of weights, from host memory or from where they are stored.
    pub(crate) bytes: u64,
    pub(crate) time: Duration,
    /// The latest, in bytes and time.
    pub(crate) latest: (u64, Duration),
}

#[derive(Clone)]
struct Reach {
    client: Client,
    /// Why requests are refused, if they are.
    refused: Option<String>,
    residence: Residence,
    /// It was on the device since the latest start, or is to be without being asked.
    is_wanted: bool,
    failures: u64,
    /// Why the engine failed last.
    why: String,
    /// Whether no device can be had in this process any more.
    lost: bool,
    loads: Loads,
    /// When it set out for the device.
    began: Option<Instant>,
}

impl Slot {
    /// Of a model that is loaded when it is asked for something.
    pub(super) fn new(client: Client) -> Self {
        let (refused, residence, why) = (None, Residence::Unloaded(None), String::new());
        let (is_wanted, failures, lost, loads, began) = (false, 0, false, Loads::default(), None);
        let reach = Reach { client, refused, residence, is_wanted, failures, why, lost, loads, began };
        Slot { engine: watch::Sender::new(reach), progress: [AtomicU64::new(0), AtomicU64::new(0)] }
    }

    /// The engine's client, or why there is none.
    pub(super) fn client(&self) -> Result<Client, String> {
        let reach = self.engine.borrow();
        match &reach.refused {
            None => Ok(reach.client.clone()),
            Some(why) => Err(why.clone()),
        }
    }

    /// Whether requests are answered: one that is loaded when it is asked for something is ready until then, even if it could
    /// not be loaded the last time.
    pub(super) fn is_ready(&self) -> bool {
        let reach = self.engine.borrow();
        let failed = matches!(reach.residence, Residence::Unloaded(Some(_)));
        reach.refused.is_none() && !(failed && reach.is_wanted)
    }

    /// Where the model is.
    pub(super) fn residence(&self) -> Residence {
        self.engine.borrow().residence.clone()
    }

    /// How much of the model is loaded, in bytes, while it is.
    pub(super) fn progress(&self) -> [u64; 2] {
        [0, 1].map(|at| self.progress[at].load(Ordering::Relaxed))
    }

    /// How it came there so far.
    pub(super) fn loads(&self) -> Loads {
        self.engine.borrow().loads
    }

    pub(super) fn loaded(&self, done: u64, total: u64) {
        self.progress[0].store(done, Ordering::Relaxed);
        self.progress[1].store(total, Ordering::Relaxed);
    }

    /// Whether it is to be loaded again after a failure.
    pub(super) fn is_wanted(&self) -> bool {
        self.engine.borrow().is_wanted
    }

    /// Tells the engine to end once its requests have ended, or after `within`; new ones are told `why` there is none. A model
    /// that is not loaded is left alone.
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

    /// Why an engine failed that had failed `before` times until then; `None` if it did not.
    pub(super) async fn failure_after(&self, before: u64) -> Option<String> {
        let mut reach = self.engine.subscribe();
        let failed = timeout(TELLS_WITHIN, reach.wait_for(|reach| reach.failures > before)).await;
        failed.ok()?.ok().map(|reach| reach.why.clone())
    }

    /// The engine ended, and all engines on its device.
    pub(super) fn failed(&self, why: &str) {
        self.engine.send_modify(|reach| {
            reach.is_wanted |= !matches!(reach.residence, Residence::Unloaded(_));
            reach.residence = Residence::Unloaded(None);
            reach.failures += 1;
            (reach.refused, reach.why) = (Some(why.to_owned()), why.to_owned());
        });
    }

    /// There is a device again: another engine will be reached there.
    pub(super) fn renewed(&self, client: Client) {
        self.engine.send_modify(|reach| {
            (reach.client, reach.lost) = (client, false);
            if !reach.is_wanted {
                reach.refused = None;
            }
        });
    }

    /// The model is elsewhere. Whether it runs again after a failure.
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

    /// The device failed, and another one cannot be made in its place.
    pub(super) fn lose_device(&self) {
        self.engine.send_modify(|reach| reach.lost = true);
    }

    /// Whether the device is lost in this way.
    pub(super) fn has_lost_device(&self) -> bool {
        self.engine.borrow().lost
    }
}
