//! Where a model's engine is reached, over its failures.

use crossbeam_channel::Sender;
use djinn_engine::Client;
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// An engine whose sessions are gone tells why at once: it has ended before they go.
const TELLS_WITHIN: Duration = Duration::from_secs(1);

/// Where the engine that runs now is reached.
pub(super) struct Slot {
    engine: watch::Sender<Reach>,
    /// Disconnects when the slot is dropped: the engine's thread waits for that.
    _owned: Sender<Infallible>,
}

#[derive(Clone)]
struct Reach {
    /// None after a failure.
    client: Option<Client>,
    failures: u64,
    /// Why the engine failed last.
    why: String,
    /// Whether no device can be had in this process any more.
    lost: bool,
}

impl Slot {
    pub(super) fn new(client: Client, owned: Sender<Infallible>) -> Self {
        let reach = Reach { client: Some(client), failures: 0, why: String::new(), lost: false };
        Slot { engine: watch::Sender::new(reach), _owned: owned }
    }

    /// The engine's client, or why there is none.
    pub(super) fn client(&self) -> Result<Client, String> {
        let reach = self.engine.borrow();
        reach.client.clone().ok_or_else(|| reach.why.clone())
    }

    /// Tells the engine to end once its requests have ended, or after `within`; new ones are told `why` there is none.
    pub(super) fn retire(&self, why: &str, within: Duration) {
        self.engine.send_modify(|reach| {
            if let Some(client) = reach.client.take() {
                client.retire(why.to_owned(), within);
                reach.why = why.to_owned();
            }
        });
    }

    /// How often the engine has failed, or was told to end.
    pub(super) fn failures(&self) -> u64 {
        self.engine.borrow().failures
    }

    /// Why an engine failed that had failed `before` times until then; `None` if it did not.
    pub(super) async fn failure_after(&self, before: u64) -> Option<String> {
        let mut reach = self.engine.subscribe();
        let failed = timeout(TELLS_WITHIN, reach.wait_for(|reach| reach.failures > before)).await;
        failed.ok()?.ok().map(|reach| reach.why.clone())
    }

    pub(super) fn failed(&self, why: String) {
        self.engine.send_modify(|reach| {
            *reach = Reach { client: None, failures: reach.failures + 1, why, lost: reach.lost };
        });
    }

    pub(super) fn runs(&self, client: Client) {
        self.engine.send_modify(|reach| (reach.client, reach.lost) = (Some(client), false));
    }

    /// The device failed, and another one cannot be made in its place.
    pub(super) fn lose_device(&self) {
        self.engine.send_modify(|reach| reach.lost = true);
    }

    /// Waits until the device is lost in this way.
    pub(super) async fn device_lost(&self) {
        // The sender is the slot's own.
        let _ = self.engine.subscribe().wait_for(|reach| reach.lost).await;
    }
}
