//! Carries events from the engine's thread to the tasks of requests.
//!
//! A step has a token for each of many requests. Waking each task from the engine's thread would take locks and system
//! calls. So the thread collects events and passes them on together; a task of the web layer distributes them.

use djinn_engine::Happening;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// An event of an answer, with the answer's number in its request, and when the engine sent it.
pub(crate) type AnswerEvent = (usize, Happening, Instant);

/// An event for a request.
struct Letter {
    to: UnboundedSender<AnswerEvent>,
    answer: usize,
    happening: Happening,
}

/// Events that were passed on together.
type Batch = (Instant, Vec<Letter>);

/// Collects the engine's events.
pub(crate) struct Outbox {
    gathered: Mutex<Vec<Letter>>,
    batches: UnboundedSender<Batch>,
    /// Until the distributing task has begun.
    arriving: Mutex<Option<UnboundedReceiver<Batch>>>,
}

impl Outbox {
    pub(super) fn new() -> Arc<Self> {
        let (batches, arriving) = unbounded_channel();
        Arc::new(Outbox { gathered: Mutex::default(), batches, arriving: Mutex::new(Some(arriving)) })
    }

    /// Collects an event of an answer. Returns false if no request waits for it.
    pub(crate) fn put(&self, to: &UnboundedSender<AnswerEvent>, answer: usize, happening: Happening) -> bool {
        if to.is_closed() {
            return false;
        }
        let letter = Letter { to: to.clone(), answer, happening };
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner).push(letter);
        true
    }

    /// Passes the collected events on.
    pub(super) fn pass_on(&self) {
        let gathered = std::mem::take(&mut *self.gathered.lock().unwrap_or_else(PoisonError::into_inner));
        if gathered.is_empty() {
            return;
        }
        // The task may have ended with its runtime, while its requests run in another one.
        if let Err(unsent) = self.batches.send((Instant::now(), gathered)) {
            hand_out(unsent.0);
        }
    }

    /// Distributes events, in a task of the runtime of the first call.
    pub(crate) fn deliver(&self) {
        let arriving = self.arriving.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut arriving) = arriving {
            tokio::spawn(async move {
                while let Some(batch) = arriving.recv().await {
                    hand_out(batch);
                }
            });
        }
    }
}

fn hand_out((told, letters): Batch) {
    for Letter { to, answer, happening } in letters {
        // The client may have left.
        let _ = to.send((answer, happening, told));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().build().unwrap()
    }

    #[test]
    fn what_is_put_comes_in_order_and_a_receiver_that_left_is_noticed() {
        let (outbox, runtime) = (Outbox::new(), runtime());
        let (one, mut to_one) = unbounded_channel();
        let (other, to_other) = unbounded_channel();
        runtime.block_on(async {
            outbox.deliver();
            outbox.deliver();
            assert!(outbox.put(&one, 3, Happening::TurnEnded) && outbox.put(&one, 4, Happening::Expired));
            assert!(outbox.put(&other, 0, Happening::TurnEnded));
            drop(to_other);
            assert!(!outbox.put(&other, 0, Happening::TurnEnded));
            assert!(to_one.try_recv().is_err(), "it is not passed on yet");
            outbox.pass_on();
            drop(one);
            let told = [to_one.recv().await.unwrap(), to_one.recv().await.unwrap()];
            assert!(matches!(told, [(3, Happening::TurnEnded, _), (4, Happening::Expired, _)]));
            assert!(to_one.recv().await.is_none(), "nothing else holds the channel");
        });
        // The task ended with its runtime.
        drop(runtime);
        let (late, mut to_late) = unbounded_channel();
        assert!(outbox.put(&late, 1, Happening::TurnEnded));
        outbox.pass_on();
        assert!(matches!(to_late.try_recv(), Ok((1, Happening::TurnEnded, _))));
    }
}
